"""What a job tells: which plan it runs and why, and at the end what was gained. Through logging, on rank 0."""

import collections
import logging
import statistics
import sys
import time

logger = logging.getLogger("gradweave")
SETTLING = 3  # iterations after the switch that do not count: buffers are made then, graphs compiled


class Report:
    """`on`: whether this rank tells anything."""

    def __init__(self, on):
        self._on = on
        self._starter, self._plan = collections.deque(maxlen=64), collections.deque(maxlen=1024)
        self._seconds, self._last, self._left_out = self._starter, None, 0
        self._chosen = self._ddp_us = None

    def iteration_ended(self):
        now = time.monotonic()
        if self._last is not None and self._left_out == 0:
            self._seconds.append(now - self._last)
        self._left_out = max(0, self._left_out - 1)
        self._last = now

    def switched(self, decided, chosen):
        """`decided`: what decision.decide() returned; `chosen`: the candidate that is in force."""
        self._seconds, self._left_out, self._last = self._plan, SETTLING, None
        self._chosen, self._ddp_us = chosen, decided["ddp_us"]
        line = (f"in force: {chosen['name']}, {_ms(chosen['iteration_us'])} an iteration predicted for forward, backward and "
                "communication")
        if decided["passed_over"]:
            line += f"; {decided['passed_over']}"
        if other := decided["if_corrected"]:
            line += f"; options={{'allow': 'exact+corrected'}} would give {other['scheme']}, {_ms(other['iteration_us'])}"
        self._tell(line)
        if decided["objection"]:
            self.objected(decided["objection"])

    def refused(self, candidate, refusal):
        """A candidate can't come into force; another one follows."""
        self._tell(f"{candidate.get('name', 'the next plan')} is passed over: {refusal}")

    def objected(self, objection):
        """To the plan of a scheme that was asked for by name."""
        self._tell(f"the Preserver objects: {objection}")

    def obeyed(self, objection, chosen):
        """The Preserver objected to the plan that was in force."""
        self._change_to(chosen)
        self._tell(f"{objection}: in force now {chosen['name']}, {_ms(chosen['iteration_us'])} an iteration predicted")

    def followed(self, chosen, before):
        """The measured times have changed, and with them the plan."""
        self._change_to(chosen)
        self._tell(f"what was measured has changed: in force now {chosen['name']}, {_ms(chosen['iteration_us'])} an iteration "
                   f"predicted; the plan before would take {_ms(before['iteration_us'])}")

    def tuned(self, chosen, tuning):
        """`tuning`: as model.gradweave.tuning has it; the best plan that was tried is in force."""
        self._change_to(chosen)
        trials = tuning["trials"]
        best, start = (statistics.mean(trials[place]["measured_us"]) for place in (tuning["best"], 0))
        options = ", ".join(f"{name} {value}" for name, value in trials[tuning["best"]]["options"].items())
        self._tell(f"tuned by {len(trials)} plans in {tuning['seconds']:.0f} s: in force now {chosen['name']} with {options}, "
                   f"{_ms(best)} an iteration measured; the first one took {_ms(start)}")

    def _change_to(self, chosen):
        self._chosen, self._left_out, self._last = chosen, SETTLING, None
        self._plan.clear()

    def resumed(self, scheme, iteration):
        self._tell(f"goes on with {scheme} from iteration {iteration}")

    def folded(self, before, now, iteration):
        self._tell(f"goes on from iteration {iteration} with {now} ranks in place of {before}")

    def ended(self):
        chosen, self._chosen = self._chosen, None
        if chosen is None or not self._plan or not self._starter:
            return
        before, now = statistics.median(self._starter), statistics.median(self._plan)
        line = (f"{chosen['name']}: {1e3 * now:.1f} ms an iteration measured, {before / now:.2f} times as fast as the starter "
                f"without overlap ({1e3 * before:.1f} ms)")
        if self._ddp_us:
            line += f"; {self._ddp_us / chosen['iteration_us']:.2f} times as fast as ddp predicted"
        self._tell(line)

    def _tell(self, line):
        if not self._on:
            return
        if not logger.hasHandlers():
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("gradweave: %(message)s"))
            logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        logger.info(line)


def _ms(microseconds):
    return f"{microseconds / 1e3:.1f} ms"
