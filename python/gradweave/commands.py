"""What the controller of a job (src/control) has done by Python: with tensors, optimizers, hooks and groups."""

import datetime
import weakref

from gradweave import _native, core, preserving, probe, reporting


class Commands(_native.EngineJob):
    """Of one session, for as long as there is one."""

    def __init__(self, session):
        job = session.job
        super().__init__(session.engine, job.peers, session.control.planning, job.rank, job.size, job.decides,
                         datetime.timedelta(seconds=job.timeout_s))
        self._of = weakref.ref(session)  # the controller keeps this, and Python's collector can't see that

    @property
    def _session(self):
        return self._of()

    def install(self, plan, workload):
        return self._session.put_in_force(plan, workload)

    def compiled(self):
        return self._session.phase.seen

    def profiles(self, on):
        self._session.profiles(on)

    def look_at_optimizers(self):
        self._session.updates.look_at_optimizers()

    def measure(self, workload):
        settings = self._session.settings
        return self.measured(workload, settings.scheme, core.texts_of(settings.options), probe.JOB_SECONDS)

    def step_rule(self):
        return preserving.rule(self._session.updates.optimizers)

    def learning_rates(self):
        return preserving.learning_rates(self._session.updates.optimizers, self._session.parameters)

    def moments(self):
        values, share = preserving.moments(self._session.updates.optimizers, self._session.parameters)
        return self._session.laid_out(values), share

    def tell(self, line):
        reporting.tell(line)
