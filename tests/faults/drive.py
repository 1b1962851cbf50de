#!/usr/bin/env python3
"""Strikes one rank of a real job, again and again, and judges what the others do about it.

Each run is a small training of 2 to 4 ranks with one of seven schemes; its seed says which fault strikes which rank where.
A run is well when every other rank raises within the timeout + 2 s and names the right rank, or when all ranks finish with
equal parameters. Results are lines of JSON, one for each run; seeds whose line exists are skipped, so that an interrupted
series goes on where it stopped.

    .venv/bin/python tests/faults/drive.py --runs 500           # about half an hour on two processors
    .venv/bin/python tests/faults/drive.py --seed 17 --verbose  # one run again, with what its ranks printed
"""

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime"),
                str(Path(__file__).parents[2] / "python")]

import case as cases  # noqa: E402  the path is set above
import ranks  # noqa: E402
import verdict  # noqa: E402
import victim  # noqa: E402

START_S = 180.0  # to import, meet and train until the fault
END_S = 60.0     # after the last sign of a rank, for the others


class Run:
    """A case under way. `poll()` moves it on and returns True when it is over."""

    def __init__(self, case, slack_s):
        self.case, self.slack_s, self.begin = case, slack_s, time.monotonic()
        self.job = ranks.start(victim.run, case.world_size, fresh=case.fresh, case=asdict(case))
        self.folder = Path(self.job.folder.name)
        self.fault_s = self.continued_s = None
        self.left = {}  # rank: when its process had ended

    def poll(self):
        now = time.monotonic()
        if self.fault_s is None and (told := self._read("fault")):
            self.fault_s = told["time"]
        if self.case.fault == "continue" and self.fault_s and not self.continued_s and now > self.fault_s + self.case.pause_s:
            self.job.processes[self.case.victim].send_signal(signal.SIGCONT)
            self.continued_s = now
        outcomes = [self._read(f"outcome{rank}") for rank in range(self.case.world_size)]
        for rank, process in enumerate(self.job.processes):
            if process.poll() is not None:
                self.left.setdefault(rank, now)
        stays = self.case.victim if self.case.fault == "stop" else None
        ended = [outcome is not None or rank in self.left for rank, outcome in enumerate(outcomes)]
        if all(done for rank, done in enumerate(ended) if rank != stays) and not (self.folder / "end").exists():
            all_finished = all(outcome and outcome["ended"] == "finished" for outcome in outcomes)
            victim.note(self.folder, "end", {"all_finished": all_finished})
        return len(self.left) >= self.case.world_size - (stays is not None) or now > self._deadline(outcomes)

    def result(self):
        """The line of this run; ends what is left of it."""
        now = time.monotonic()
        found = []
        for rank, process in enumerate(self.job.processes):
            outcome = self._read(f"outcome{rank}")
            left_s = self.left.get(rank, now) - outcome["time"] if outcome else 0.0
            found.append(verdict.Rank(outcome, process.poll(), left_s))
        self.job.end()
        what, why = verdict.judge(self.case, self.fault_s, self.continued_s, found, self.slack_s)
        return {"seed": self.case.seed, "verdict": what, "why": why, "case": asdict(self.case),
                "seconds": round(now - self.begin, 1)}

    def logs(self):
        return "\n".join(f"--- rank {rank}\n{self.job.log(rank)}" for rank in range(self.case.world_size))

    def _deadline(self, outcomes):
        if self.fault_s is None:
            return self.begin + START_S
        since = max(self.fault_s,
                    self.continued_s or self.fault_s + (self.case.pause_s if self.case.fault == "continue" else 0))
        if any(outcomes):
            since = max(since, max(outcome["time"] for outcome in outcomes if outcome))
        return since + END_S

    def _read(self, name):
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None


def drive(seeds, jobs, slack_s, on_result):
    """Run the cases of `seeds`, `jobs` at a time; calls on_result(line, run) after each."""
    waiting, running = list(seeds), []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(Run(cases.draw(waiting.pop(0)), slack_s))
            for run in [run for run in running if run.poll()]:
                running.remove(run)
                line = run.result()
                on_result(line, run)
                run.job.folder.cleanup()
            time.sleep(0.02)
    finally:
        for run in running:
            run.job.end()


def table(lines):
    """Fault by phase: in each field how many runs ended how, as markdown."""
    rows = [["fault", *cases.PHASES], ["---"] * (1 + len(cases.PHASES))]
    for fault in cases.FAULTS:
        row = [fault]
        for phase in cases.PHASES:
            counts = Counter(line["verdict"]
                             for line in lines if (line["case"]["fault"], line["case"]["phase"]) == (fault, phase))
            row.append(", ".join(f"{counts[what]} {what}" for what in verdict.VERDICTS if counts[what]))
        rows.append(row)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=34, help="how many seeds (default: 34, one for each fault in each phase)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="only this one, whatever there is of it in the results")
    parser.add_argument("--jobs", type=int, default=2 * len(os.sched_getaffinity(0)), help="runs at a time")
    parser.add_argument("--slack", type=float, default=1.0, help="seconds that a busy machine may take besides (default: 1)")
    parser.add_argument("--results", type=Path, help="lines of JSON, kept and continued")
    parser.add_argument("--verbose", action="store_true", help="print what the ranks of a run that is not ok printed")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.runs) if options.seed is None else [options.seed]
    lines = {}
    if options.results and options.results.exists() and options.seed is None:
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

    drive([seed for seed in seeds if seed not in lines], options.jobs, options.slack, on_result)
    print(table(lines.values()))
    failing = sorted(seed for seed, line in lines.items() if line["verdict"] != verdict.OK)
    print(f"\n{len(lines)} runs, {len(lines) - len(failing)} ok"
          + (f"; not ok: {' '.join(map(str, failing))}" if failing else ""))
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
