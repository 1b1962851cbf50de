#!/usr/bin/env python3
"""Strikes a rank of a real job, again and again, and judges what the others do about it.

Each run is a small training of 2 to 4 ranks with one of seven schemes; its seed says which fault strikes which rank where.
First the calls are counted that each phase makes in jobs without a fault; then a run's phase is drawn, and a call in it. A run
is well when every other rank raises within the timeout + 2 s and names the right rank, or when all ranks finish with equal
parameters.
Results are lines of JSON, one for each run; runs whose line exists are skipped, so that an interrupted series goes on where it
stopped.

    .venv/bin/python tests/faults/drive.py --runs 1000 --seed 7 --results out/faults.jsonl  # runs 7000 to 7999
    .venv/bin/python tests/faults/drive.py --only 7017 --verbose  # one run again, with what its ranks printed
"""

import argparse
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime"),
                str(Path(__file__).parents[2] / "python")]

import case as cases  # noqa: E402  the path is set above
import ranks  # noqa: E402
import verdict  # noqa: E402
import victim  # noqa: E402
from phases import PHASES  # noqa: E402

from gradweave.lab.hosts import Hosts, free_port  # noqa: E402

START_S = 180.0  # to import, meet and train until the fault
END_S = 60.0     # after the last sign of a rank, for the others


SERIES = 1000    # runs of one --seed

# A store that is nobody's rank.
STORE = """import sys, time
from torch import distributed
store = distributed.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("ready", flush=True)
time.sleep(600)"""


class Run:
    """A case under way. `poll()` moves it on and returns True when it is over. `calls`: as victim.run() takes them."""

    def __init__(self, case, slack_s, calls):
        self.case, self.slack_s, self.begin = case, slack_s, time.monotonic()
        self._store, self._host, environment = None, None, {}
        if case.fault == "store" and calls is not None:
            port = free_port()
            self._store = subprocess.Popen([sys.executable, "-c", STORE, str(port)], stdout=subprocess.PIPE)
            self._store.stdout.readline()
            environment = {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
                           "STORE_PROCESS": str(self._store.pid)}
        if case.fault == "loss" and calls is not None:  # in a network of its own
            self._host = Hosts(workers=1).__enter__()
        self.job = ranks.start(victim.run, case.world_size, fresh=case.fresh, environment=environment,
                               prefix=self._host.inside(0) if self._host else (), case=asdict(case), calls=calls)
        self.folder = Path(self.job.folder.name)
        self.fault_s = self.continued_s = self.struck = None  # of the last victim
        self.left = {}  # rank: when its process had ended

    def poll(self):
        now = time.monotonic()
        told = [fault for rank in self.case.victims if (fault := self.read(f"fault{rank}"))]
        if told:  # the last
            self.fault_s, self.struck = max((fault["time"], fault["phase"]) for fault in told)
        if self.case.fault == "pause" and self.fault_s and not self.continued_s and now > self.fault_s + self.case.pause_s:
            self.job.processes[self.case.victim].send_signal(signal.SIGCONT)
            self.continued_s = now
        outcomes = [self.read(f"outcome{rank}") for rank in range(self.case.world_size)]
        for rank, process in enumerate(self.job.processes):
            if process.poll() is not None:
                self.left.setdefault(rank, now)
        stays = set(self.case.victims) if self.case.fault == "stop" and self.fault_s else set()
        ended = {rank for rank, outcome in enumerate(outcomes) if outcome is not None or rank in self.left}
        if ended | stays == set(range(self.case.world_size)) and not (self.folder / "end").exists():
            all_finished = all(outcome and outcome["ended"] == "finished" for outcome in outcomes)
            victim.note(self.folder, "end", {"all_finished": all_finished and self.case.fault != "store"})
        return len(set(self.left) | stays) >= self.case.world_size or now > self._deadline(outcomes)

    def result(self):
        """The line of this run; ends what is left of it."""
        now = time.monotonic()
        found = []
        for rank, process in enumerate(self.job.processes):
            outcome = self.read(f"outcome{rank}")
            left_s = self.left.get(rank, now) - outcome["time"] if outcome else 0.0
            found.append(verdict.Rank(outcome, process.poll(), left_s))
        self.end()
        what, why = verdict.judge(self.case, self.struck, self.fault_s, self.continued_s, found, self.slack_s)
        return {"seed": self.case.seed, "verdict": what, "why": why, "case": asdict(self.case),
                "struck": self.struck, "seconds": round(now - self.begin, 1)}

    def end(self):
        self.job.end()
        if self._store:
            self._store.kill()
            self._store.wait()
            self._store.stdout.close()
        if self._host:
            self._host.close()

    def logs(self):
        return "\n".join(f"--- rank {rank}\n{self.job.log(rank)}" for rank in range(self.case.world_size))

    def _deadline(self, outcomes):
        if self.fault_s is None:
            return self.begin + START_S
        since = max(self.fault_s,
                    self.continued_s or self.fault_s + (self.case.pause_s if self.case.fault == "pause" else 0))
        if any(outcomes):
            since = max(since, max(outcome["time"] for outcome in outcomes if outcome))
        return since + (START_S if self.case.fault == "loss" else END_S)  # where it goes on, it takes its time

    def read(self, name):
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None


def counted(kinds, known, jobs):
    """{kind: {"first": {phase: calls}, "other": ...}}, of jobs without a fault: rank 0's calls, and another rank's.
    `known`: what has been counted before."""
    found = dict(known)
    waiting = [case for kind, case in kinds.items() if kind not in found]
    running = []
    while waiting or running:
        while waiting and len(running) < jobs:
            running.append(Run(waiting.pop(0), 0, None))
        for run in [run for run in running if run.poll()]:
            running.remove(run)
            calls = {role: run.read(f"calls{rank}") for role, rank in (("first", 0), ("other", 1))}
            outcomes = [run.read(f"outcome{rank}") for rank in range(run.case.world_size)]
            run.end()
            if not all(outcome and outcome["ended"] == "finished" for outcome in outcomes):
                raise RuntimeError(f"a job without a fault has failed: {run.case}: {outcomes}\n{run.logs()}")
            found[run.case.kind] = calls
        time.sleep(0.02)
    return found


def plain(case):
    """The same job without a fault, with two ranks and one model: what it calls is counted."""
    return replace(case, world_size=2, victims=(0,), fault="kill", iteration=None, models=1, managed=False, emulated=True,
                   fresh=False)


def drive(drawn, jobs, slack_s, on_result, calls=None):
    """Run the cases `drawn`, `jobs` at a time; calls on_result(line, run) after each. `calls`: what counted() knows
    already, which it adds to."""
    waiting, running = list(drawn), []
    calls = {} if calls is None else calls
    calls.update(counted({case.kind: plain(case) for case in waiting}, calls, jobs))
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                case = waiting.pop(0)
                of_phase = {role: count.get(case.phase, 0) for role, count in calls[case.kind].items()}
                running.append(Run(case, slack_s, of_phase))
            for run in [run for run in running if run.poll()]:
                running.remove(run)
                line = run.result()
                on_result(line, run)
                run.job.folder.cleanup()
            time.sleep(0.02)
    finally:
        for run in running:
            run.end()


def table(lines):
    """The phase that was struck by the fault: in each field how many runs ended how, as markdown."""
    faults = [fault for fault in cases.FAULTS if any(line["case"]["fault"] == fault for line in lines)]
    rows = [["phase", *faults], ["---"] * (1 + len(faults))]
    for phase in PHASES:
        row = [phase]
        for fault in faults:
            counts = Counter(line["verdict"]
                             for line in lines if (line["case"]["fault"], line["struck"]) == (fault, phase))
            row.append(", ".join(f"{counts[what]} {what}" for what in verdict.VERDICTS if counts[what]))
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help=f"how many, at most {SERIES} (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="of the series (default: 0)")
    parser.add_argument("--only", type=int, help="this run alone, whatever there is of it in the results")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES, help="strike in these only")
    parser.add_argument("--faults", nargs="+", choices=cases.FAULTS, help="these only (default: all but loss)")
    parser.add_argument("--jobs", type=int, default=2 * len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--slack", type=float, default=1.0, help="seconds that a busy machine may take besides (default: 1)")
    parser.add_argument("--results", type=Path, help="lines of JSON, kept and continued; what was counted is kept beside them")
    parser.add_argument("--verbose", action="store_true", help="print what the ranks of a run that is not ok printed")
    options = parser.parse_args()
    if options.faults and "loss" in options.faults and (os.geteuid() != 0 or not shutil.which("iptables-legacy")):
        parser.error("--faults loss: run it as root, with iptables: apt-get install iptables")
    draw = functools.partial(cases.draw, phases=options.phases, **({"of": options.faults} if options.faults else {}))
    first = SERIES * options.seed
    seeds = range(first, first + min(options.runs, SERIES)) if options.only is None else [options.only]
    lines, calls, kept = {}, {}, options.results and options.results.with_suffix(".calls.json")
    if kept and kept.exists():
        calls = json.loads(kept.read_text())
    if options.results and options.results.exists() and options.only is None:
        known = map(json.loads, options.results.read_text().splitlines())
        lines = {line["seed"]: line for line in known if line["seed"] in seeds}

    def on_result(line, run):
        lines[line["seed"]] = line
        if options.results:
            with options.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
        if line["verdict"] != verdict.OK or options.verbose:
            print(f"{line['verdict']}: {run.case}\n    {line['why']}", flush=True)
        if options.verbose:
            print(run.logs(), flush=True)

    missing = [draw(seed) for seed in seeds if seed not in lines]
    kinds = {case.kind: plain(case) for case in missing}
    calls = counted(kinds, calls, options.jobs)
    if kept:
        kept.write_text(json.dumps(calls))
    drive(missing, options.jobs, options.slack, on_result, calls)
    print(table(list(lines.values())))
    failing = sorted(seed for seed, line in lines.items() if line["verdict"] != verdict.OK)
    print(f"\n{len(lines)} runs, {len(lines) - len(failing)} ok"
          + (f"; not ok: {' '.join(map(str, failing))}" if failing else ""))
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
