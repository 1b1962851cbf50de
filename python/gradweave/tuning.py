"""Plans of one scheme tried in training, some iterations each, and the best one kept (include/gradweave/tune.h)."""

import json
import math
import statistics
import time

from gradweave import _native, compiling, core, decision
from gradweave.reporting import SETTLING

MEASURED = 10  # iterations of a trial, as in DeAR, section IV.B
COMPILED = "gradweave.wrap(tune=): a compiled model would be compiled again for each trial; leave one of the two out"


def check(settings, model, device):
    """Errors: ValueError for what can't be tuned."""
    if not settings.tune:
        return
    if not isinstance(settings.tune, int):
        raise ValueError(f"gradweave.wrap: tune={settings.tune!r}: give a number of trials")
    if settings.plan is not None:
        raise ValueError("gradweave.wrap: tune= looks for a plan, and plan= gives one: leave one of the two out")
    core.check_tuning(settings.scheme, settings.options, settings.tune)
    if device.type != "cpu":
        raise ValueError(f"gradweave.wrap: tune= with parameters on {device.type}: iterations are timed by the host's clock, "
                         "which says nothing there; leave it out")
    if compiling.is_compiled(model):
        raise ValueError(COMPILED)


class Tuning:
    """Of one job in `trials` trials. Until begin(), and where it is not called, nothing happens."""

    def __init__(self, trials, control):
        self._trials, self._control = trials, control
        self._known = self._tuner = self._last = self.report = None
        self._iterations, self._seconds, self._began = 0, [], 0.0

    @property
    def under_way(self):
        return self._known is not None

    def begin(self, plan, workload, cluster):
        """The start is in force."""
        self._known, self._began = (workload, cluster), time.monotonic()
        self._clear()
        if self._control.decides:
            self._tuner = _native.PlanTuner(*map(json.dumps, (workload, cluster, plan)), self._trials)
            self._tuner.next()

    def end(self):
        """The plan in force stays."""
        self._known = self._tuner = None

    def iteration_ended(self):
        """Returns whether the plan in force has been measured. The same on all ranks."""
        now = time.monotonic()
        self._iterations += 1
        if self._iterations > SETTLING:
            self._seconds.append(now - self._last)
        self._last = now
        return len(self._seconds) == MEASURED

    def next(self, failed=False):
        """The candidate that is to come into force now, the best one of all if `ended`. failed: the last could not.
        Collective."""
        found, seconds = None, math.inf
        if not failed:
            seconds, = self._control.largest([statistics.median(self._seconds)], "the exchange of measured times")
        if self._control.decides:
            self._tuner.add(seconds)
            text = self._tuner.next()
            plan = json.loads(text or self._tuner.best())
            report = {**json.loads(self._tuner.report()), "ended": text is None, "seconds": time.monotonic() - self._began}
            found = {**decision.entry_of(plan["scheme"], plan, *self._known), "report": report}
        found = self._control.from_rank_0(found)
        self.report = found.pop("report")
        self._clear()
        if self.report["ended"]:
            self.end()
        return found

    def _clear(self):
        self._iterations, self._seconds, self._last = 0, [], None
