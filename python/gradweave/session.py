"""One wrapped training job on one rank: from the first forward to the last step."""

import contextlib
import functools
import logging
import os
import threading
import warnings
import weakref
from typing import Any, Iterator, Mapping, Sequence

import torch

from gradweave import (_native, checkpoint, clipping, compiling, core, equality, graphs, interrupting, moments, pausing,
                       profiling, reading, reporting, scaling, sharding)
from gradweave._native import InvalidInput
from gradweave.agreement import Control, difference, digest, has_mean
from gradweave.buffers import BUFFERS, Buffers
from gradweave.checkpoint import RankState
from gradweave.closing import refusing_once_closed
from gradweave.commands import Commands
from gradweave.islands import Islands
from gradweave.loop import Loop
from gradweave.scalars import Scalars
from gradweave.scope import Scope
from gradweave.settings import COMPILED, LOCAL_IN_ISLAND, Plan, plan_of
from gradweave.subclasses import Hook, weakly
from gradweave.updating import Updates


OWN_BUFFERS = ("gradweave: each rank evaluates with running statistics of its own batches: call gradweave.finish(model) on "
               "all ranks before model.eval() to evaluate with rank 0's, as DistributedDataParallel does")
OWN_COPIES = ("gradweave.finish(): copies of the model, such as averages of its weights, differ between ranks, because ranks "
              "stepped on their own; call model.gradweave.average(copy) on all ranks to make a copy the mean over the ranks")
UNFINISHED = ("model.gradweave.close(): updates on their way are dropped, and parameters that ranks have stepped on their own "
              "stay different; call gradweave.finish(model) on all ranks before close()")
ENDED = ("this process ends, and a wrapped model was not finished: updates on their way are lost, and parameters that "
         "ranks have stepped on their own are different. Call gradweave.finish(model) on all ranks before the model is saved")
DROPPED = ("a wrapped model was dropped without close(), and updates on their way are lost: call "
           "gradweave.finish(model) on all ranks, then model.gradweave.close()")
LAST_OPS_S = 5.0  # where nobody calls close(): for an op under way, which another rank may still need
LOAD = "model.gradweave.load_state_dict()"


@refusing_once_closed
class Session:
    """What `model.gradweave` is.

    plan: the one in force; None before the first iteration. workload, cluster, overheads, prediction: what it was made from,
    and its time.
    """

    plan: core.Plan | None

    def __init__(self, model, optimizers, settings, job, links, around=None):
        """`around`: the class of an optimizer around one of these that does more than step it."""
        self.model, self.settings, self.links = model, settings, links
        self.plan = self.on_close = None
        self.closed = self._made = False
        self._order = profiling.ForwardOrder(model)
        self.layers, self._called, self._folded = None, False, False
        self._layer_handles = []
        self._records = self._profiles = self._only_gradients = False
        self._restored = None  # the engine's state, of a checkpoint, until its plan is in force
        self._scope = Scope(model, settings.exclude)
        self.names, self.parameters = self._scope.names, self._scope.parameters
        self._tensors = self._scope.tensors
        self._islands = sharding.Islands(model, self._scope.shards, self.parameters) if self._scope.shards else None
        self._syncs = True  # outside no_sync()
        self._loop = Loop(self.parameters)
        if settings.scales:
            self._loop.saw("scales")
        if around:
            self._loop.saw("steps around", around)
        self.updates = Updates(optimizers, self.parameters, self._scope.excluded, self._loop,
                               starts_synchronous=settings.plan is None)
        self._scalars = Scalars(self._to_tell)
        self.device = self.parameters[0].device
        self._is_capturing = graphs.capturing(self.device)
        self.job, self.control = job, Control(job, self.device)
        for link in self.links:
            link.open(job, self.device)
        if settings.broadcast:
            self.control.broadcast(self._scope.to_broadcast())
        self._buffers, self.evaluates_alone = Buffers(self._scope, self.control), False
        self._finished_at = self._synchronized_at = 0  # iterations
        self._copies, self._stepped_apart = [], False  # of the model, and whether ranks have stepped on their own
        for parameter in self.parameters:
            # Leaves a Python hook dictionary behind, which later Python hooks join instead of replacing ours.
            parameter.register_post_accumulate_grad_hook(_no_op).remove()
        self.engine = _native.Engine(self.names, self._tensors, [link.spec() for link in self.links], self.control.group,
                                     job.peers, job.size, settings.timeout, settings.checks,
                                     settings.find_unused_parameters, weakly(self.updates.step_subset), self._scope.shards)
        self.engine.set_pause(functools.partial(pausing.pause_of, self.device))
        self._interruption = interrupting.Interruption()
        self.engine.set_interrupt(self._interruption)
        self._looked_at = -1  # the last iteration whose backward was
        self.updates.engine = self.engine
        self._share = self.control.moment_share(job.size, self._tensors) if settings.moments == "measured" else None
        if settings.scales:
            self.engine.set_unscaler(functools.partial(scaling.inverse_scale, settings.scaler))
        self.phase = compiling.Phase()
        self._commands = Commands(self)
        self._controller = _native.Controller(
            self._commands, self._loop, scheme=settings.scheme, options=core.texts_of(settings.options),
            warm_up=settings.warm_up, profile_iterations=settings.profile_iterations,
            compares_gradients=settings.plan is None and job.size > 1 and not settings.scales, follows=settings.follows,
            trials=settings.tune, tells=settings.report, device=self.device)
        if settings.plan is not None:  # in force from the first forward on
            self._controller.install(settings.given_plan)
        self._controller.begin()
        self.islands = None  # of wrap(islands=)
        if self._islands is not None:
            self._islands.open(self.engine)
        self._order.start()
        if settings.islands is not None:
            self.islands = Islands(model, optimizers, settings, prepare=self.synchronize)
        self._made = True

    def __del__(self):
        # Model, optimizers and session are collected together, by whatever thread and in the midst of whatever: as at an exit
        # without close(), but nobody waits here.
        if not self._made or self.closed:
            return
        unfinished = self._is_unfinished()
        self._let_go()
        self.engine.unhook()
        self.closed = True
        threading.Thread(target=_end, args=(self._controller, self.job, self.engine, self.control),
                         name="gradweave close", daemon=False).start()
        if unfinished:
            reporting.tell(DROPPED, logging.WARNING)

    # ---- what users ask

    @property
    def workload(self) -> core.Workload | None:
        """What the plan in force was made for."""
        return self._controller.workload

    @property
    def cluster(self) -> core.Cluster | None:
        """What the plan in force was made for."""
        return self._controller.cluster

    @property
    def overheads(self) -> dict[str, float] | None:
        """What an iteration takes besides layers and messages, as simulate() takes it: {"optimizer_us": the optimizer and the
        rest of the loop, "contention": how many times longer compute takes beside messages, "burst_us": what a
        link sends at once after a pause, as the time in which it sends as much}. None before it is measured."""
        costs = self._controller.costs
        return None if costs is None else costs.overheads

    @property
    def prediction(self) -> dict[str, Any] | None:
        """What simulate() says of the plan in force there, with these overheads."""
        return self._controller.prediction

    @property
    def counters(self) -> dict[str, int]:
        """{"iterations", "updates", "ops", "bytes", "exposed_ns", "waits", "buffer_bytes"} since the start."""
        return self.engine.counters

    @property
    def emulated(self) -> bool:
        return any(link.emulated for link in self.links)

    def record_timeline(self, on: bool = True) -> None:
        """Record compute, ops and waits from now on, or stop. Waits for an accelerator, whose times are recorded."""
        self.engine.set_timeline(on)
        self._records = on
        self._hook_layers()

    def timeline(self) -> core.Timeline:
        """What was recorded since the last call. Waits for an accelerator."""
        return self.engine.take_timeline()

    @property
    def tuning(self) -> dict[str, Any] | None:
        """What wrap(tune=) has tried: {"trials": [{"scheme", "options", "measured_us": [...]}, ...], the first plan first,
        "best": the place of the best, "ended", "seconds" since the first plan came into force}. The same on all ranks; None
        before the first plan is measured."""
        return self._controller.tuning

    def report(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any] | None:
        """Measured times of the plan in force beside predicted ones, of the last iterations: {"predicted", "measured", "ccr",
        "links", "differences", "op", "stragglers", "text"}; "text" is all of it for people. None before enough iterations, and
        for a plan that was given. Collective, between iterations.

        With a `path` rank 0 also writes the page of `gradweave report`, whole or not at all: the plan in force beside the
        other schemes, and the timeline recorded since the last timeline(). The next timeline() begins after it. The other
        ranks go on meanwhile. Errors, on rank 0: InvalidInput for a path that can't be written, or if there is nothing to
        report."""
        found = self._controller.report()
        if path is not None and self.job.decides:
            self._write_page(path, found)
        return found

    def log_to(self, target: str | os.PathLike[str] | Any, every: int = 50) -> None:
        """Log on rank 0, every so many iterations: their mean iteration_ms, exposed_ms (waits for communication), ops and
        bytes sent, updates and waits; the scheme in force, its predicted_ms and buffer_bytes. `target`: the path of a file to
        which JSON lines are appended, or a torch.utils.tensorboard.SummaryWriter (or another object with add_scalar()).
        Errors, on rank 0: InvalidInput for a target that can't be written to."""
        if self.job.decides:
            self._scalars.add(target, every)

    def watching(self):
        """Returns what makes another session log and record as this one does now."""
        logs, records = self._scalars.targets, self._records

        def watch(session):
            for target, every in logs:
                session.log_to(target, every)
            if records:
                session.record_timeline()

        return watch

    def _to_tell(self):
        sums = dict(self.engine.counters)
        facts = {"scheme": core.chosen(self.plan)["scheme"] if self.plan else "", "buffer_bytes": sums.pop("buffer_bytes")}
        if (prediction := self.prediction) is not None:
            facts["predicted_ms"] = prediction["iteration_us"] / 1e3
        return sums, facts

    def _write_page(self, path, found):
        timeline = self.timeline()
        if self.cluster is None and timeline.empty:
            raise InvalidInput("model.gradweave.report(): there is nothing to report yet: call it once a plan is in "
                               "force, or call record_timeline() before")
        name = f"{core.chosen(self.plan)['scheme'] or 'plan'} in force"
        given = {} if self.cluster is None else {
            "workload": self.workload, "cluster": self.cluster, "plans": {name: self.plan}, **self.overheads}
        # Of the same name: the page compares it with the plan.
        core.write_report(path, timelines=[] if timeline.empty else [timeline.named(name)],
                          measured=found["text"].splitlines() if found else [], **given)

    def install(self, plan: Plan) -> None:
        """Drain the plan in force, and put another one in force at this iteration. Collective; every rank gives the same."""
        self._end_turn()
        self._controller.install(plan_of(plan))

    def synchronize(self) -> None:
        """Wait for, and apply, what this rank can finish alone."""
        if self.engine.installed:
            self.engine.synchronize()
            self._synchronized_at = self.engine.iteration

    def _layer_is_read(self, number):
        """Before parameters are read between iterations: apply what the plan has on its way for their layer."""
        if not self._only_gradients:
            self.engine.forward_start(number)

    @contextlib.contextmanager
    def looking_at_gradients(self):
        """In this context parameters are handed out for their gradients alone: nothing is waited for."""
        self._only_gradients = True
        try:
            yield
        finally:
            self._only_gradients = False

    def finish(self) -> None:
        """Apply everything on its way, and make all ranks equal. Collective."""
        self._end_turn()
        if self.engine.installed:
            self.engine.drain("gradweave.finish()")
            self._finished_at = self.engine.iteration
        else:  # the drain's first agreement: that all ranks are here
            self.control.peers.agree("gradweave.finish()", "", self.control.timeout_s)
        self._controller.finish()
        self._compare("gradweave.finish()", "buffers", self._scope.buffer_shapes(), "give them the same names, shapes and "
                      "dtypes on all ranks, or name them in wrap(exclude=...)")
        self.broadcast_buffers()
        equality.check_equal(self.control, self.names, self._tensors, "finish()")
        if self._stepped_apart:
            self._compare_copies()
        if self.islands is not None:
            self.islands.finish()

    def broadcast_buffers(self) -> None:
        """Give all ranks rank 0's buffers. Collective."""
        self._buffers.broadcast()

    def follow_buffers(self):
        """As broadcast_buffers(), of those that training changes; once for each step. Collective."""
        self._buffers.follow()

    def evaluates(self):
        """The model is about to be evaluated."""
        self.synchronize()
        if self.job.rank == 1 and not self.evaluates_alone and self._buffers.changed:  # rank 0's are right; one says it
            self.evaluates_alone = True
            warnings.warn(OWN_BUFFERS, stacklevel=4)

    def copied(self, copy):
        """`copy` is made of the model."""
        self._copies = [*(each for each in self._copies if each() is not None), weakref.ref(copy)]

    def average(self, module: torch.nn.Module) -> None:
        """Make a copy of the model, or an average of its weights, the mean over all ranks, in place. Where ranks step on their
        own, finish() makes only the model itself equal. Values that are not floating-point become rank 0's. Collective.
        Errors: InvalidInput if ranks give modules of different shapes."""
        tensors = [each.detach() for each in (*module.parameters(), *module.buffers())]
        shapes = digest([[list(each.shape), str(each.dtype)] for each in tensors])
        self._compare("model.gradweave.average()", "modules", shapes, "give it the same module")
        tensors = list(map(sharding.local_of, tensors))
        self.control.average([each for each in tensors if has_mean(each)], "model.gradweave.average()")
        self.control.broadcast([each for each in tensors if not has_mean(each)], BUFFERS)

    def _compare_copies(self):
        """Says if copies of the model are not the same on all ranks, which have stepped on their own."""
        held = [copy for copy in (reference() for reference in self._copies) if copy is not None]
        sums = digest([[_native.checksum(sharding.local_of(parameter)) for parameter in copy.parameters()] for copy in held])
        told = self.job.of_members(self.control.peers.agree("the comparison of copies", sums, self.control.timeout_s))
        if len(set(told)) > 1 and self.job.rank == 0:
            warnings.warn(OWN_COPIES, stacklevel=4)

    def state_dict(self) -> dict[str, RankState]:
        """{"rank0": RankState} (that of this rank): what a checkpoint needs besides model and optimizer. Plan, iteration,
        updates on their way, residuals, anchors, and what was seen of loop and gradients. First applies what the coming
        forward would. Between iterations, on every rank after the same one; for torch.save(), and for
        torch.distributed.checkpoint."""
        self._end_turn()
        rank, ranks = self.job.rank, self.job.size
        if self.plan is None or self._controller.profiling:  # still to be decided
            plan, parts = None, {"remains": self.engine.remains()}
        else:
            plan, parts = self.plan.to_dict(), {
                "workload": self.workload.to_dict(), "layers": self.layers, "engine": self.engine.state(),
                "seen": self._controller.seen, **checkpoint.costs_state(self._controller.costs)}
            if core.demands_of(self.plan)["local_steps"]:
                parts["local"] = checkpoint.local_state(self.names, self.parameters, self.updates)
        if self._share is not None:  # measured under an earlier plan, if not under this one
            parts["share"] = self._share.state()
        key = checkpoint.key_of(rank, self.job.part)
        return {key: RankState(rank, ranks, self.job.name, self.engine.iteration, plan, **parts)}

    def of_ranks(self, ranks: int) -> checkpoint.OfRanks:
        """Give it to torch.distributed.checkpoint's load() in place of `model.gradweave`, for a checkpoint of a job with so
        many ranks."""
        return checkpoint.OfRanks(self, ranks)

    def load_state_dict(self, states: Mapping[str, RankState] | Sequence[Mapping[str, RankState]]) -> None:
        """Go on from what state_dict() returned on this rank; its plan comes into force again. Or from a list of what it
        returned on each rank of the earlier job, in their order. If that had another number of ranks, this job starts where
        finish() would have ended it, and makes its own plan. Call it on every rank, after the model's and the optimizer's
        load_state_dict() and before the first forward. Collective. Errors: InvalidInput."""
        refusal = None
        try:
            states = checkpoint.states_of(states, self.job.rank, self.job.size)
            if self.layers is not None:
                raise InvalidInput("training has begun: load it before the first forward")
            checkpoint.check_names(states[0], self.names)
        except ValueError as error:
            refusal = error
        self._check_alike(states, refusal)
        state, parts = states[0], states[0].parts
        if state.ranks != self.job.size:
            self._fold(states)
            return
        if "local" not in parts:
            equality.check_equal(self.control, self.names, self._tensors, LOAD)
        if self._share is not None and "share" in parts:
            self._share.restore(parts["share"])
        if state.plan is None:
            self.engine.take_over([parts["remains"]])
            return
        if "local" in parts:
            checkpoint.put_local(parts["local"], self.names, self.parameters, self.updates)
        self._know(parts["layers"])
        self._restored = parts["engine"]
        self._controller.go_on(state.plan, parts["workload"], checkpoint.costs_of(parts), parts.get("seen"), state.iteration)

    def _fold(self, states):
        links = [_native.LinkSpec(link["name"], level=link.get("level", "all"))
                 for link in (states[0].plan["links"] if states[0].plan else [])]
        share = self._share and self.control.moment_share(len(states), self._tensors)
        if share and "share" in states[0].parts:
            share.restore(states[0].parts["share"])
            self._share.restore(states[0].parts["share"])
        remains = checkpoint.fold(states, self._scope, links, self.updates, self._moments(len(states), share))
        self.engine.take_over(remains)
        self._folded = True
        self.broadcast_buffers()
        equality.check_equal(self.control, self.names, self._tensors, LOAD)
        self._controller.folded(len(states), self.engine.iteration)

    def _moments(self, ranks, share):
        """What Updates.plan_installed() needs where so many ranks step by parts of the batch."""
        return None if ranks == 1 or share is None else moments.Measured(share)

    def _check_alike(self, states, refusal):
        """All ranks load states of one job and iteration, and none refuses them."""
        own = f"refused ({refusal})"
        if refusal is None:
            own = f"iteration {states[0].iteration} of job {states[0].job} of {states[0].ranks} ranks"
        try:
            self._compare(LOAD, "what is loaded", own, "give every rank what one job has saved after one iteration; "
                          "each time that a job goes on from a checkpoint it is another job")
        except InvalidInput:
            if refusal is None:
                raise
        if refusal is not None:
            raise InvalidInput(f"{LOAD}: {refusal}") from None

    def _compare(self, where, what, own, remedy):
        """All ranks have the same text. Collective. Errors: InvalidInput naming those that differ."""
        given = dict(enumerate(self.control.peers.agree(where, own, self.control.timeout_s)))
        if len(set(given.values())) > 1:
            raise InvalidInput(f"{where}: {difference(what, given)}; {remedy}")

    def before_load(self, what):
        """The model's or the optimizer's load_state_dict() is about to be called."""
        if self._folded and self.layers is None:
            raise InvalidInput(f"the {what}'s load_state_dict() came after {LOAD}, which has already "
                               f"changed the {what} to suit another number of ranks: load model and optimizers first")
        self.synchronize()

    def close(self, error: BaseException | None = None, patience_s: float | None = None) -> None:
        """End the engine's threads, and make model and optimizer what they were before. Call finish() on all ranks first:
        updates on their way are dropped, with a warning. Safe to call twice. Waits for the ops that other ranks may need, at
        most for the timeout. `error`: this rank's own error, which the other ranks are told; ops under way are given up.
        `patience_s`: they are also given up once none has ended for so long. Any other call afterwards raises
        InvalidInput."""
        if self.closed:
            return
        if error is None and patience_s is None and self._is_unfinished():
            warnings.warn(UNFINISHED, stacklevel=2)
        self._let_go(error)
        _end(self._controller, self.job, self.engine, self.control, error is not None, patience_s)
        self.links = []
        # They have the control group, whose threads would else live until Python collects this.
        self.updates = self._share = self._controller = self._commands = None
        self.closed = True

    def _let_go(self, error=None):
        """What close() does first: model and optimizer, and what is outside this process, are without the session then."""
        self.unhook()
        self._scalars.close()
        if error is not None:
            self.job.report(error)
        if self.islands is not None:
            self.islands.close()

    def _is_unfinished(self):
        """Whether finish() would change parameters, and this is the rank that says so."""
        if self.plan is None or self.job.rank != 0:
            return False
        iteration, demands = self.engine.iteration, core.demands_of(self.plan)
        if demands["delays_gradients"] or (demands["local_steps"] and self.job.size > 1):
            return iteration > self._finished_at
        return demands["steps_in_forward"] and iteration > max(self._finished_at, self._synchronized_at)

    def unhook(self):
        """Makes model and optimizer what they were before, but for the engine's hooks on gradients."""
        for handle in self._layer_handles:
            handle.remove()
        self._layer_handles = []
        reading.unwatch(self.model)
        if self._islands is not None:
            self._islands.close()
        self._order.stop()
        self.phase.eager = False
        if self.on_close:
            self.on_close()

    def before_fork(self):
        """The child gets no half of an update: what this rank can finish alone is applied, if this thread may do it."""
        with contextlib.suppress(ValueError, RuntimeError):
            if self.engine.installed and self.engine.forward_layers():
                self.engine.synchronize()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """In this context backward passes accumulate and communicate nothing."""
        before, self._syncs = (self._syncs, self.engine.communicating), False
        self.engine.communicating = False
        try:
            yield
        finally:
            self._syncs, self.engine.communicating = before

    def clip_grad_norm_(self, max_norm, norm_type, error_if_nonfinite, parameters=None, beside=()):
        """gradweave.clip_grad_norm_(), of all parameters or of some; `beside`: the sessions of other models that have some of
        these."""
        sessions = [self, *beside]
        engines = [(each.engine, each.parameters, each._scope.shards) for each in sessions]
        norm = clipping.clip_grad_norm_(engines, self.parameters if parameters is None else parameters, max_norm, norm_type,
                                        error_if_nonfinite)
        for each in sessions:
            if each._controller.profiling:
                each._loop.clipped()
        return norm

    # ---- the step

    @property
    def unscales(self):
        """Whether the engine takes the loss scale out of gradients, and not the scaler."""
        return self.engine.installed and not self.engine.synchronous

    def overflowed(self):
        return self.engine.reduced and self.engine.overflowed

    def stepped_by_another(self, optimizer):
        """An optimizer that wrap() was not given steps parameters of the model."""
        if self.engine.installed and not self.engine.synchronous:
            raise InvalidInput(f"optimizer.step(): this {type(optimizer).__name__} steps parameters of a wrapped "
                               "model, whose gradients the plan in force hands to step() of the optimizer that "
                               "gradweave.wrap() was given: give it all of them, wrap(model, [a, b]), or choose a "
                               "scheme that updates in step(), such as ddp")
        self._loop.saw("other optimizer", type(optimizer).__name__)

    def scaler_was_seen(self):
        """A GradScaler asks one of the optimizers what it can do."""
        if self.settings.scaler is None:
            self._loop.saw("unknown scaler")

    def leave_out_step(self, optimizer):
        """In place of its step(): the loss scale was too large. Updates due from earlier iterations take place."""
        self._loop.skipped()
        if self.updates.leave_out(optimizer):
            self._iteration_ended()

    def step(self, optimizer, closure):
        if self.unscales and hasattr(optimizer, "grad_scale"):
            raise InvalidInput("GradScaler: the plan in force delays gradients, or steps outside optimizer.step(), "
                               "and needs to know the scale: pass scaler= to gradweave.wrap()")
        self._scope.check_frozen()
        result, ended = self.updates.step(optimizer, closure)
        if ended:
            self._iteration_ended()
        return result

    def fill_state(self, optimizer, step):
        """`step`: torch's own, in which this optimizer only makes its state, as fills_state() says. No step of the loop."""
        self.synchronize()
        step(optimizer)
        self.updates.forget(optimizer)

    def skip_step(self) -> None:
        """In place of optimizer.step(): drop the gradient of the last backward, for instance because it is not finite. Every
        rank has to do the same. Updates due from earlier iterations take place."""
        self.updates.end_iteration(skip=True)
        self._iteration_ended()

    # ---- forward and backward

    def before_forward(self):
        """The model is about to be called."""
        self._scope.check_alone(first=not self._called)
        self._called = True
        if torch.is_grad_enabled() and (self.engine.taken_away or self.engine.reduced and self._loop.dropped):
            self.skip_step()  # a batch that was dropped, and then no step
        if self._islands is not None:
            self._islands.forward_begins()
        if not torch.is_grad_enabled():
            return
        if self._islands is not None:
            self.engine.communicating = self._syncs and self._islands.reduces
        graphs.refuse_capture(self._is_capturing, "the forward of a wrapped model")
        if self.engine.communicating:
            self._end_turn()
        if self.engine.communicating and self.model.training and self.settings.broadcast_buffers:
            self.broadcast_buffers()
        self._interruption.thread = threading.get_ident()
        self.engine.forward_begins()

    def after_forward(self, output):
        """A call of the model has ended."""
        if not torch.is_grad_enabled():
            return
        if self.layers is None and self.model.training:
            self._first_forward_ended()
        for tensor in profiling.tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._backward_starts)

    def _backward_starts(self, gradient):
        if self.layers is None:  # trained in eval mode: only now is it certain that this is no evaluation
            self._first_forward_ended()
        if self.engine.steps_in_backward:
            self.updates.freeze_hyperparameters()
        looking = self._controller.profiling and self.engine.communicating
        self.engine.backward_start()
        if looking or (self._commands.comparing and self.engine.communicating):
            # After the engine's own callback, which puts the reduced gradients in place, and which comes as late.
            ended = self._backward_ended
            if self._islands is not None:
                ended = functools.partial(torch.autograd.Variable._execution_engine.queue_callback, ended)
            torch.autograd.Variable._execution_engine.queue_callback(ended)

    def _backward_ended(self):
        # Each output on the way to the loss has queued it, and so does torch.autograd.grad().
        if not self.engine.reduced or self.engine.iteration == self._looked_at:
            return
        self._looked_at = self.engine.iteration
        if self._controller.profiling:
            self._loop.backward_ended(self.engine.accumulates)
        self._commands.backward_ended()

    def _first_forward_ended(self):
        # Rank 0's, where the forward differs between ranks.
        self._know(self.control.from_rank_0(self._order.layers(set(self.names))))
        graphs.refuse_graphed(self.model, self.device)
        if self.settings.plan is not None:
            self.phase.eager = False
        if self.settings.tune and self.phase.seen:
            raise InvalidInput(COMPILED)
        workload = profiling.workload_of(self.model, self.layers, type(self.model).__name__,
                                         dict(zip(self.names, self._tensors)))
        links, inside = ([link.name for link in self.links if link.level == level] for level in ("all", "inside"))
        self._controller.layers_known(workload, links, inside, max((link.shards for link in self.links), default=1))

    def _know(self, layers):
        """layers: {module: names of its tensors}, in forward order."""
        self.layers = layers
        self._order.stop()
        self._modules = dict(self.model.named_modules())
        by_name = dict(zip(self.names, self.parameters))
        self._parameters_of = [[by_name[name] for name in tensors] for tensors in layers.values()]

    def put_in_force(self, plan, workload):
        """Why some rank can't, as all of them are told, or this one; "" once the plan is in force. Collective."""
        refusal = ""
        try:
            refusal = self._refusal(plan, workload)
        except Exception as error:  # whatever it is, the other ranks must learn of it, or they wait for this one
            refusal = _text_of(error)
        try:
            stepped_locally = self.engine.stepped_locally if self.engine.installed else []
            self.engine.install(plan, workload, self._restored, refusal)
            resumes, self._restored = self._restored is not None, None
            if alike := sorted(set(stepped_locally) - set(self.engine.stepped_locally)):
                self.updates.average_states(alike, self.control)
            self.updates.plan_installed(self._moments(self.job.size, self._share))
            self.plan = plan
            if resumes:
                self._scalars.restart()
            else:
                self._finished_at = self.engine.iteration
            self._stepped_apart |= core.demands_of(plan)["local_steps"]
            self._hook_layers()
        except _native.RuntimeFailure:
            raise
        except Exception as error:  # as above
            return _text_of(error)
        return ""

    def _refusal(self, plan, workload):
        """Why this rank's loop can't be served by the plan; "" if it can, or if the plan is no valid one: then the engine says
        what is wrong."""
        if _native.validate(plan, workload):
            return ""
        demands = core.demands_of(plan)
        if not demands["synchronous"]:
            self.updates.look_at_optimizers()
        if self.islands is not None and demands["local_steps"]:
            return LOCAL_IN_ISLAND
        reason = self._loop.refusal(plan)
        return reason and f"the plan doesn't work with this loop: {reason}"

    def _hook_layers(self):
        if self.layers is None:
            return
        layers = {p: number for number in self.engine.forward_layers() for p in self._parameters_of[number]}
        reading.watch(self.model, self._scope.owners, layers, self._layer_is_read)
        if self._islands is not None:
            self._islands.set_layers({place: layers[p] for place, p in enumerate(self.parameters) if p in layers})
        for handle in self._layer_handles:
            handle.remove()
        self._layer_handles = []
        modules = [self._modules[name] for name in self.layers]
        for number in range(len(modules)) if self._records or self._profiles else self.engine.forward_layers():
            # Before other hooks, which may compute with the parameters, as torch.nn.utils.weight_norm's does.
            self._layer_handles.append(modules[number].register_forward_pre_hook(self._at_forward_start(number), prepend=True))
            self._layer_handles.append(modules[number].register_forward_hook(self._at_forward_end(number)))
        if self.phase.seen and not self.phase.eager:
            for number in core.cut_layers(self.plan, self.workload):
                self._layer_handles.append(modules[number].register_forward_pre_hook(Hook(compiling.cut)))
            compiling.forget_graphs()

    def _at_forward_start(self, number):
        return Hook(compiling.opaque(lambda module, inputs: self.engine.forward_start(number)))

    def _at_forward_end(self, number):
        return Hook(compiling.opaque(lambda module, inputs, output: self.engine.forward_end(number)))

    def laid_out(self, values):
        """What is kept of each parameter, or None, as the engine has the parameter."""
        shards = self._scope.shards
        return [shards[place].laid_out(value) if place in shards and value is not None else value
                for place, value in enumerate(values)]

    def profiles(self, on):
        """Every layer's forward is told to the engine from now on; or no longer, once another plan is in force, under which
        the model is compiled if it was."""
        self._profiles = on
        if on:
            self._hook_layers()
        else:
            self.phase.eager = False

    # ---- between iterations

    def _iteration_ended(self):
        self._check_now_and_then()
        if self._share is not None and self.updates.of_whole_batch:
            self._share.iteration_ended()
        self._scalars.iteration_ended()
        self._commands.optimizer_stepped()
        self._controller.iteration_ended()
        if self.islands is not None:
            self.islands.step_ended()

    def _end_turn(self):
        """Of optimizers that are not stepped in every iteration, as with DistributedDataParallel."""
        if self.updates.begun and self.engine.synchronous:
            self._loop.saw("takes turns")
            self.updates.end_iteration()
            self._iteration_ended()

    def _check_now_and_then(self):
        iteration = self.engine.iteration
        if not self.settings.checks or iteration % equality.CHECK_EVERY or core.demands_of(self.plan)["local_steps"]:
            return
        self.engine.synchronize()  # some rank may have done so alone
        equality.check_equal(self.control, self.names, self._tensors, f"iteration {iteration}")


def _end(controller, job, engine, control, failed=False, patience_s=LAST_OPS_S):
    """The rest of close(), without the session."""
    controller.close(failed)
    if not failed:
        job.peers.end()
    engine.close(0.0 if failed else patience_s)
    job.close()
    control.close()


def _text_of(error):
    return str(error) if isinstance(error, InvalidInput) else f"{type(error).__name__}: {error}"


def _no_op(parameter):
    pass
