"""What a plan in force really takes, looked at now and then; and a new plan once that has changed."""

import json
import math
import threading

from gradweave import _native, core, decision
from gradweave.reporting import SETTLING

SAMPLE_SECONDS = 0.2     # between two samples, of 5 to 16 iterations
ALARMS_PER_HOUR = 0.1  # false ones, where times scatter as if at random
GAIN = 0.03            # by which a new plan has to be faster, relative
WHAT = "the exchange of measured times"
Step = _native.Replanning.Step


class Follower:
    """Of the plan in force. `on`: a new one is made once the links or the compute have changed."""

    def __init__(self, on, settings, control, engine, loop, device, preserver):
        self._on = on and device.type == "cpu"  # an accelerator's times are not the host's
        self._settings, self._control, self._engine = settings, control, engine
        self._loop, self._device, self._preserver = loop, device, preserver
        self._observer = self._exchange = self._planning = self._known = self._proposal = self._before = None
        self._every = self._iterations = 0
        self._echoes, self._usual = [], {}  # by link that the plan in force leaves idle; what they took for the proposal
        self._replanning = _native.Replanning()  # rank 0's counts

    def plan_installed(self, plan, workload, cluster, of_this_run=False):
        """A plan has come into force; `cluster`: what it was made for, None where nothing is known of the links;
        `of_this_run`: it is what was observed under the plan before."""
        self._before = self._known[0] if of_this_run else None
        self._replanning.installed(before_ns=self._observer.iteration_ns if of_this_run else 0)
        self._observer = self._exchange = self._known = self._proposal = None
        self._echoes = []
        self._iterations = -SETTLING  # since the last sample
        if cluster is None or self._device.type != "cpu":
            return
        self._known = plan, workload, cluster
        seconds = core.simulate(plan, workload, cluster)["iteration_us"] / 1e6
        self._sample_after(seconds)
        self._observer = _native.Observer(*map(json.dumps, self._known), of_this_run=of_this_run,
                                          false_alarms=ALARMS_PER_HOUR * self._every * seconds / 3600,
                                          usual=self._usual if of_this_run else {})
        if self._on:
            self._echoes = [self._engine.echo(name) for name in self._observer.idle]

    def iteration_ended(self):
        """Returns whether rank 0 has a better plan. The same on all ranks."""
        if not self._on or self._observer is None:
            return False
        self._iterations += 1
        if self._iterations >= self._every:
            sample = self._engine.statistics(self._every, self._control.rank)
            if sample.iterations:  # alike on all ranks
                self._iterations = 0
                ready = -1.0 if self._proposal is not None else 0.0
                numbers = sample.numbers() + [echo.taken_ns for echo in self._echoes] + [ready]
                self._exchange = sample, self._control.begin_smallest(numbers, WHAT)
        elif self._iterations == self._every // 2 and self._exchange:  # beside the training until here
            return self._end_sample()
        return False

    def _sample_after(self, seconds):
        """seconds: what an iteration takes, 0 where that is not known."""
        wanted = math.ceil(SAMPLE_SECONDS / seconds) if seconds > 0 else 16
        self._every = max(min(max(wanted, 5), 16), self._iterations + 1)

    def _end_sample(self):
        (sample, ended), self._exchange = self._exchange, None
        *numbers, ready = ended()
        taken = numbers[len(numbers) - len(self._echoes):]
        changed = self._observer.add(sample.of_all(numbers), taken)
        if all(taken):  # alike on all ranks
            for echo in self._echoes:
                echo.start()
        self._sample_after(self._observer.iteration_ns / 1e9)
        if ready < 0 or not self._control.decides:  # announced, alike on all ranks
            return ready < 0
        planning = self._planning is not None and self._planning.is_alive()
        step = self._replanning.sampled(changed, self._observer.iteration_ns, planning, proposed=self._proposal is not None)
        if step == Step.PLAN:
            self._proposal = None  # which was made for what is no more
            found = self._known, *self._found()
            self._planning = threading.Thread(target=self._plan, args=found, name="planning", daemon=True)
            self._planning.start()
        elif step == Step.TAKE_BACK:
            workload, cluster, usual = self._found()
            self._proposal = {"workload": workload, "cluster": cluster, "usual": usual, "candidates": [
                decision.entry_of(each["scheme"], each, workload, cluster) for each in (self._before, self._known[0])]}
        return False

    def _found(self):
        """(workload, cluster, what echoes take) as they are now."""
        return json.loads(self._observer.workload()), json.loads(self._observer.cluster()), self._observer.usual

    def _plan(self, known, workload, cluster, usual):
        """On rank 0, beside the training: a plan for what was measured, if it is better there than the one in force."""
        decided = decision.decide(workload, cluster, self._settings, self._loop, self._device, self._preserver,
                                  beside_training=True)
        if known is not self._known:
            return
        if "error" not in decided:
            best, stays = decided["candidates"][0], decision.entry_of(known[0]["scheme"], known[0], workload, cluster)
            now, then = (decision.time_to_progress(entry, workload, self._preserver) for entry in (stays, best))
            if then < (1 - GAIN) * now:
                self._proposal = {**decided, "usual": usual, "candidates": [best, stays]}
                return
        self._replanning.no_better()

    def proposal(self):
        """Rank 0's, on all ranks: {"workload", "cluster", "candidates": the new plan and the one in force}."""
        proposal = self._control.from_rank_0(self._proposal)
        self._usual = proposal["usual"]
        return proposal

    def end(self):
        """Waits for an exchange that is under way. All ranks have begun it."""
        if self._exchange:
            self._end_sample()

    def close(self):
        """Waits for a plan that is being made: an interpreter must not end under it."""
        self._exchange, self._echoes = None, []
        if self._planning is not None:
            self._planning.join()

    def report(self):
        """What was measured of the plan in force beside what was predicted. Collective. None if too little was seen yet."""
        if self._observer is None:
            return None
        self.end()
        sample = self._engine.statistics(self._every, self._control.rank)
        if sample.iterations:
            self._observer.add(sample.of_all(self._control.begin_smallest(sample.numbers(), WHAT)()))
        return json.loads(self._observer.report()) if self._observer.sampled else None
