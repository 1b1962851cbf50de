"""What the meeting point (`gradweave meet`) takes for many islands: processor, memory, and how soon all know of one that
comes or goes. The islands train nothing, and run beside it on this machine, whose processors they share.

Results are one JSON file, docs/results/meeting.json.

    cmake --preset release -DGRADWEAVE_BENCH=ON && cmake --build build --target islands_bench gradweave_cli
    .venv/bin/python bench/meeting.py            # about 5 minutes
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from gradweave.lab.meeting import Meeting

ROOT = Path(__file__).parent.parent
BENCH = ROOT / "build/bench/islands_bench"
RESULTS = ROOT / "docs/results/meeting.json"
LARGEST = 1024  # islands in a process
STILL_S = 30
LEASE = "60s"


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
    with Meeting(folder, LEASE) as meeting:
        used = Used(meeting.process)
        sizes = [min(LARGEST, count - begun) for begun in range(0, count, LARGEST)]
        crowds = [Crowd(meeting, f"island{number}-", size) for number, size in enumerate(sizes)]

        def until_all_know(wanted):
            for crowd in crowds:
                crowd.ask(wanted)
            for crowd in crowds:
                crowd.answer()
            return used.look()

        found = {"islands": count, "gather": until_all_know(count)}
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--islands", type=int, nargs="+", default=[8, 64, 512, 4096])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = []
    for count in arguments.islands:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(count, folder))
        print(json.dumps(rows[-1]), flush=True)
    arguments.output.write_text(json.dumps({"processors": os.cpu_count(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
