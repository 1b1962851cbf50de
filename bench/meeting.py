"""Many islands: what the meeting point (`gradweave meet`) takes for them, measured, and what is left of training, predicted.

Measured are processor, memory, and how soon all know of one that comes or goes. The islands train nothing, and run beside the
meeting point on this machine, whose processors they share. Results are one JSON file, docs/results/meeting.json.

    cmake --preset release -DGRADWEAVE_BENCH=ON && cmake --build build --target islands_bench gradweave_cli
    .venv/bin/python bench/meeting.py            # six minutes and a half
    .venv/bin/python bench/meeting.py --page     # the tables of docs/results/scale.md
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import churn
import runs
from gradweave.lab.meeting import Meeting
from training_tables import markdown, replace_section

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "build/bench/islands_bench"
RESULTS = ROOT / "docs/results/meeting.json"
PAGE = ROOT / "docs/results/scale.md"
LARGEST = 1024  # islands in a process
STILL_S = 30
LEASE_S, LONG_LEASE_S = 10, 60  # where all islands share this machine, many need longer for an answer
PREDICTED = ("--links", "100Mb/s,1Gb/s", "--mtbf", "6h,7d", "--islands", "8,64,512,4096", "--period", "64")


class Crowd:
    def __init__(self, meeting, name, count):
        command = ["nice", "-n", "19", BENCH, "crowd", meeting.key, meeting.address, name, str(count)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()

    def answer(self):
        if not self.process.stdout.readline():
            raise SystemExit("bench/meeting.py: the islands have failed")

    def kill(self):
        self.process.kill()
        self.process.wait()


class Used:
    """What the meeting point's process has used since the last look."""

    def __init__(self, process):
        self.process, self._before = process, None
        self.look()

    def look(self):
        fields = Path(f"/proc/{self.process}/stat").read_text().rsplit(")", 1)[1].split()
        now = (time.monotonic(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        before, self._before = self._before or now, now
        return {"seconds": now[0] - before[0], "processor_seconds": now[1] - before[1]}

    def megabytes(self):
        return int(Path(f"/proc/{self.process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measured(count, folder):
    lease_s = LEASE_S if count <= LARGEST else LONG_LEASE_S
    with Meeting(folder, f"{lease_s:d}s") as meeting:
        used = Used(meeting.process)
        sizes = [min(LARGEST, count - begun) for begun in range(0, count, LARGEST)]
        crowds = [Crowd(meeting, f"island{number}-", size) for number, size in enumerate(sizes)]

        def until_all_know(wanted):
            for crowd in crowds:
                crowd.ask(wanted)
            for crowd in crowds:
                crowd.answer()
            return used.look()

        found = {"islands": count, "lease_s": lease_s, "gather": until_all_know(count)}
        time.sleep(STILL_S)
        found["still"] = used.look()
        guest = Crowd(meeting, "guest", 1)
        found["one_comes"] = until_all_know(count + 1)
        guest.kill()
        found["one_dies"] = until_all_know(count)
        found["megabytes"] = used.megabytes()
        for crowd in crowds:
            crowd.kill()
        return found


def measured_table():
    def row(found):
        still = found["still"]
        share = still["processor_seconds"] / still["seconds"]
        return [str(found["islands"]), str(found["lease_s"]), f"{100 * share:.1f}", f"{found['megabytes']:.0f}",
                f"{found['gather']['processor_seconds']:.1f}", f"{found['one_comes']['seconds']:.1f}",
                f"{found['one_dies']['seconds']:.1f}"]

    header = ["islands", "lease, s", "one processor, %", "memory, MB", "processor s until all are in",
              "s until all know of one that came", "of one that died"]
    return markdown(header, [row(found) for found in json.loads(RESULTS.read_text())["rows"]])


def predicted(workload, *options):
    command = [ROOT / "build/gradweave", "compare", "--json", "--workload", ROOT / workload, "--cluster",
               ROOT / "examples/clusters/eth-10g-16.json", *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["goodput"]


def predicted_table():
    def row(case):
        ways = {way["way"]: way for way in case["ways"]}
        islands, checkpoints = ways["islands"], ways["best_checkpoints"]
        return [f"{1000 * case['gigabits']:g} Mb/s", f"{case['mtbf_us'] / 3.6e9:g} h", str(case["islands"]),
                f"{100 * islands['goodput']:.1f}", f"{islands['landed_every_us'] / case['step_us']:.0f}",
                f"{100 * checkpoints['goodput']:.1f}", f"{case['average_bytes'] / 1e6:.0f}", str(case["average_messages"]),
                f"{case['epochs_a_day']:.0f}"]

    header = ["link", "each dies every", "islands", "goodput, %", "an average lands every so many steps",
              "goodput of a job with checkpoints, %", "MB that each sends for an average", "messages", "come or go a day"]
    return markdown(header, [row(case) for case in predicted("examples/workloads/gpt2.json", *PREDICTED)])


def checked_table():
    """Against what bench/churn.py measured where islands are lost."""
    found = {}
    for run, result in runs.done(churn.RESULTS, churn.Run).items():
        if run.part in ("churn", "counts") and result["losses"]:
            found.setdefault(churn.COUNTS.get(run.how, (churn.ISLANDS, churn.STEP_S)), []).append(result)
    table = []
    for (count, step_s), results in sorted(found.items()):
        mtbf_s = 1 / statistics.mean(each["losses"] / (each["islands"] * each["seconds"]) for each in results)
        case, = predicted("bench/workloads/small.json", "--islands", str(count), "--mtbf", f"{mtbf_s:.1f}s", "--step",
                          f"{step_s}s", "--recovery", "33s", "--detection", "100ms", "--epoch-change", "50ms", "--average",
                          "100ms", "--checkpoint-every", "10s")
        islands, nominal = case["ways"][0], count * churn.BATCH / step_s
        measured = [statistics.mean(shares) for shares in zip(*(
            (each["samples_per_s"] / nominal, each["islands"] / count, each["lost"] / each["samples"]) for each in results))]
        table += [[str(count), name, *(f"{100 * share:.1f}" for share in shares[:2]), f"{100 * shares[2]:.2f}"]
                  for name, shares in (
                      (f"predicted, each dies every {mtbf_s:.0f} s", [islands["goodput"], islands["there"], islands["lost"]]),
                      (f"measured, the mean of {len(results)}" if len(results) > 1 else "measured, one run", measured))]
    return markdown(["islands", "", "goodput, %", "islands there, %", "of what was trained, lost, %"], table)


def sections():
    tables = {"meeting point": measured_table(), "goodput": predicted_table(), "checked": checked_table()}
    return [(PAGE, name, content) for name, content in tables.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--islands", type=int, nargs="+", default=[8, 64, 512, 1024, 2048, 4096])
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write the tables of docs/results/scale.md")
    arguments = parser.parse_args()
    if arguments.page:
        for section in sections():
            replace_section(*section)
        return
    rows = []
    for count in arguments.islands:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(count, folder))
        print(json.dumps(rows[-1]), flush=True)
    arguments.output.write_text(json.dumps({"processors": os.cpu_count(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
