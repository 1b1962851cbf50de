"""Strikes islands that train together, and judges what becomes of them. Everything follows from a seed.

    .venv/bin/python tests/faults/islands.py --runs 100 --seed 7 --results out/islands.jsonl
    .venv/bin/python tests/faults/islands.py --only 7017 --verbose
    .venv/bin/python tests/faults/islands.py --runs 50 --seed 8 --network   # as root; apt-get install iptables
    .venv/bin/python tests/faults/islands.py --table out/islands.jsonl

With --network each island and the meeting point is on a host of its own behind a slow link, which is cut, loses packets, or
carries them one way only, too.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/runtime")]

import ranks  # noqa: E402

from gradweave.lab.hosts import Hosts, address_of  # noqa: E402
from gradweave.lab.meeting import Meeting  # noqa: E402

LEASE_S = 1.0
STRIKES_S = 8.0
PATIENCE_S = 90.0
KINDS = [("plain", 1), ("plain", 1), ("plain", 1), ("ddp", 2), ("fsdp2", 2), ("gradweave", 2)]
HARMS = {"cut": ("ip link set gw0 down", "ip link set gw0 up"),
         "loss": ("iptables -A INPUT -m statistic --mode random --probability 0.3 -j DROP", "iptables -F INPUT"),
         "one way": ("iptables -A INPUT -i gw0 -j DROP", "iptables -F INPUT")}
STRIKES = ["kill", "freeze", *HARMS]
CODECS = ["int4", "int8", "int2", "ef_signsgd", "none"]


class Island:
    """One island's job, which may be killed and started again."""

    def __init__(self, number, case):
        self.number, self._case = number, case
        self.job, self.frozen_until, self.harmed_until = None, 0.0, 0.0

    def start(self):
        self.began = time.monotonic()
        self.job = ranks.start(ISLANDER, self._case.sizes[self.number], fresh=bool(self._case.hosts),
                               prefix=self._case.inside(self.number), number=self.number, **self._case.arguments)

    @property
    def lives(self):
        return self.job is not None

    def kill(self):
        self.thaw()
        self._signal(signal.SIGKILL)
        for process in self.job.processes:
            process.wait()
        self.job = None

    def freeze(self, seconds):
        self.frozen_until = time.monotonic() + seconds
        self._signal(signal.SIGSTOP)

    def thaw(self):
        if self.frozen_until:
            self.frozen_until = 0.0
            self._signal(signal.SIGCONT)

    def _signal(self, number):
        for process in self.job.processes:
            with contextlib.suppress(ProcessLookupError):
                if process.poll() is None:
                    process.send_signal(number)

    def harm(self, what, seconds):
        """Its link is cut, loses packets, or hears nothing."""
        self.harmed_until, self._harm = time.monotonic() + seconds, what
        self._network(HARMS[what][0])

    def heal(self):
        if self.harmed_until:
            self.harmed_until = 0.0
            self._network(HARMS[self._harm][1])

    def _network(self, command):
        subprocess.run([*self._case.inside(self.number), *command.split()], check=True)

    def ended(self):
        """A rank of it has ended by itself."""
        return any(process.poll() is not None for process in self.job.processes)


class Case:
    """One run, as its seed has it."""

    def __init__(self, seed, folder, network):
        self.random = random.Random(seed)
        self.kind, self.size = self.random.choice(KINDS)
        self.count = self.random.randint(3, 6) if self.size == 1 else 3
        self.folder = folder
        outer = {"outer_momentum": 0.5, "outer_learning_rate": 0.7} if self.random.random() < 0.3 else {}
        self.between = {"period": self.random.randint(2, 8), "compressor": self.random.choice(CODECS)} | outer
        if self.random.random() < 0.3:
            self.between = {"average": "gradients"}
        elif self.random.random() < 0.5:
            self.between["fragments"] = self.random.randint(2, 5)
        self.sizes = [self.size] * self.count
        if self.kind in ("ddp", "gradweave") and self.random.random() < 0.5:
            self.between["ranks"] = self.random.randint(1, 2)
            self.sizes = [self.random.randint(self.between["ranks"], 3) for _ in range(self.count)]
        self.hosts = Hosts(self.count + 1).__enter__() if network else None
        if network:
            self.hosts.shape(self.random.choice([20e6, 200e6]))
        host = address_of(self.count) if network else "127.0.0.1"
        self.meeting = Meeting(folder, f"{LEASE_S}s", host, self.inside(self.count))
        self.arguments = {"kind": self.kind, "given": self.meeting.given, "between": self.between, "folder": str(folder),
                          "pace_s": self.random.choice([0.005, 0.02])}
        self.islands = [Island(number, self) for number in range(self.count)]
        self.meeting_began = 0.0
        self.told = []  # (seconds, what, island)
        self.alone = 0  # islands that have ended alone, as their lease ran out on this machine

    def inside(self, number):
        return self.hosts.inside(number) if self.hosts else ()

    def tell(self, what, island=None):
        self.told.append((time.time(), what, None if island is None else island.number))

    def strike(self):
        """Starts all, and then does one thing after another to them."""
        for island in self.islands[:-1]:
            island.start()
        self._until(lambda: all(self._has_joined(island) for island in self.islands[:-1]), "the islands have not met")
        again, back, end = [], None, time.monotonic() + STRIKES_S
        while time.monotonic() < end or again or back:
            time.sleep(self.random.uniform(0.2, 1.2))
            now = time.monotonic()
            for island in self.islands:
                if island.frozen_until and now > island.frozen_until:
                    island.thaw()
                if island.harmed_until and now > island.harmed_until:
                    island.heal()
            for due, island in [each for each in again if each[0] <= now]:
                again.remove((due, island))
                island.start()
                self.tell("start", island)
            if back is not None and now >= back:
                self.meeting.start()
                self.meeting_began = now
                self.tell("meeting point is back")
                back = None
            if now > end:
                continue
            able = [island for island in self.islands if island.lives and not island.frozen_until and not island.harmed_until]
            unheard = [island for island in self.islands if island.frozen_until or island.harmed_until]
            # A meeting point that comes back waits one lease: who is silent for longer is refused, if all others are new.
            settled = self.meeting_began < now - 3 * LEASE_S and back is None
            # One that has the state, and hears and speaks, is left.
            old = [island for island in able if island.began < now - 4]
            what = self.random.choice(["kill", "kill", "two", "freeze", "meeting", "new", "nothing"]
                                      + (2 * list(HARMS) if self.hosts else []))
            if what in ("kill", "two") and len(able) > (2 if what == "two" else 1) and old:
                left = self.random.choice(old)
                for island in self.random.sample([each for each in able if each is not left], 2 if what == "two" else 1):
                    self.tell("kill", island)
                    island.kill()
                    again.append((now + self.random.uniform(0, 2), island))
            elif what == "freeze" and len(old) > 1 and settled:
                island = self.random.choice(old)
                self.tell("freeze", island)
                island.freeze(self.random.choice([0.3, 1.5, 3.0]))
            elif what in HARMS and len(old) > 1 and settled:
                island = self.random.choice(old)
                self.tell(what, island)
                island.harm(what, self.random.choice([0.3, 2.0, 5.0]))
            elif what == "meeting" and back is None and not unheard:
                self.tell("meeting point dies")
                self.meeting.end()
                back = now + self.random.uniform(0.1, 2)
            elif what == "new" and not self.islands[-1].lives and all(each[1] is not self.islands[-1] for each in again):
                self.islands[-1].start()
                self.tell("start", self.islands[-1])
        for island in self.islands:
            island.thaw()
            island.heal()
            if not island.lives:
                island.start()

    def end(self):
        """All come together, and end equal."""
        names = sorted(f"island{island.number}" for island in self.islands)
        self._until(lambda: all(self._last(island).get("names") == names for island in self.islands),
                    "they don't come together")
        landed = {island.number: self._last(island)["averages"] for island in self.islands}
        self._until(lambda: all(self._last(island)["averages"] > landed[island.number] + 2 for island in self.islands),
                    "they don't average any more")
        (self.folder / "end").touch()
        found = {f"island{island.number}": island.job.results(PATIENCE_S) for island in self.islands}
        for name, of in found.items():
            for rank, (digest, together) in enumerate(of):
                if any(found[other][min(rank, len(found[other]) - 1)] != (digest, together) for other in together):
                    raise AssertionError(f"rank {rank} of {name} has ended otherwise than {together}: {found}")
        self.alone = sum(of[0][1] == [name] for name, of in found.items())

    def recoveries(self):
        """[(what, seconds until an average landed somewhere else)], of those after which islands were left to average."""
        landings = {island.number: self._records(island) for island in self.islands}
        found = []
        for place, (when, what, struck) in enumerate(self.told):
            if what not in STRIKES:
                continue
            until = min((each[0] for each in self.told[place + 1:] if each[1] in STRIKES), default=float("inf"))
            later = [record["time"] for number, of in landings.items() if number != struck for record in of
                     if record["landed"] and when + 0.05 < record["time"] < until]
            if later:
                found.append((what, min(later) - when))
        return found

    def close(self):
        for island in self.islands:
            if island.lives:
                island.kill()
        self.meeting.end()
        if self.hosts:
            self.hosts.close()

    def logs(self):
        return "\n".join(f"--- island {island.number} rank {rank}\n{island.job.log(rank)[-3000:]}"
                         for island in self.islands if island.lives for rank in range(self.sizes[island.number]))

    def _records(self, island):
        path = self.folder / f"island{island.number}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def _last(self, island):
        records = self._records(island)
        return records[-1] if records else {}

    def _has_joined(self, island):
        return bool(self._last(island))

    def _until(self, holds, otherwise):
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            gone = [island.number for island in self.islands if island.lives and island.ended()]
            if gone or time.monotonic() > deadline:
                raise AssertionError(f"{f'islands {gone} have ended' if gone else otherwise}; "
                                     f"{ {island.number: self._last(island) for island in self.islands} }")
            time.sleep(0.05)


def run(seed, network=False, verbose=False):
    """{"seed", "kind", "count", "between", "ok", "why", "told", "recoveries", "seconds"}."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gradweave-islands-") as folder:
        case, begin, why = Case(seed, Path(folder), network), time.monotonic(), ""
        try:
            case.strike()
            case.end()
        except AssertionError as error:
            why = str(error)
            if verbose:
                print(case.logs())
        finally:
            case.close()
        first = case.told[0][0] if case.told else 0
        return {"seed": seed, "kind": case.kind, "count": case.count, "between": case.between, "ok": not why,
                "why": why[:2000], "alone": case.alone,
                "told": [(round(when - first, 2), what, island) for when, what, island in case.told],
                "recoveries": case.recoveries(), "seconds": round(time.monotonic() - begin, 1)}


def table(path):
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    print(f"{sum(row['ok'] for row in rows)} of {len(rows)} runs ok, {sum(len(row['told']) for row in rows)} strikes; "
          f"{sum(row['alone'] for row in rows)} islands ended alone")
    for what in STRIKES:
        seconds = sorted(s for row in rows for each, s in row["recoveries"] if each == what)
        if seconds:
            print(f"| {what} | {len(seconds)} | {statistics.median(seconds):.2f} | {seconds[int(0.95 * len(seconds))]:.2f} | "
                  f"{seconds[-1]:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="runs SEED * 1000 and those that follow")
    parser.add_argument("--only", type=int)
    parser.add_argument("--results", help="a file that each run's line is appended to; those that it has are not run again")
    parser.add_argument("--table", help="print what such a file holds")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    if given.table:
        return table(given.table)
    if given.network and (os.geteuid() != 0 or not shutil.which("iptables")):
        parser.error("--network: run it as root, with iptables: apt-get install iptables")
    seeds = [given.only] if given.only is not None else range(given.seed * 1000, given.seed * 1000 + given.runs)
    had = set()
    if given.results and Path(given.results).exists():
        had = {json.loads(line)["seed"] for line in Path(given.results).read_text().splitlines()}
    bad = 0
    for seed in seeds:
        if seed in had:
            continue
        found = run(seed, given.network, given.verbose)
        bad += not found["ok"]
        print(f"{seed}: {'ok' if found['ok'] else 'NOT OK: ' + found['why']} ({found['kind']} x {found['count']}, "
              f"{found['between']}, {len(found['told'])} strikes, {found['seconds']} s)", flush=True)
        if given.verbose:
            print("\n".join(map(str, found["told"])))
        if given.results:
            Path(given.results).parent.mkdir(parents=True, exist_ok=True)
            with open(given.results, "a") as file:
                file.write(json.dumps(found) + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    from islander import islander as ISLANDER

    sys.exit(main())
