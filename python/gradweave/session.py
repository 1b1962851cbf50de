"""One wrapped training job on one rank: from the first forward to the last step."""

import contextlib
import json
import os
import warnings
import weakref
from typing import Any, Iterator, Mapping, Sequence

import torch

from gradweave import (
    _native, checkpoint, clipping, compiling, core, decision, equality, preserving, profiling, reading, scaling, tuning)
from gradweave.agreement import Control, difference, digest
from gradweave.checkpoint import RankState
from gradweave.closing import refusing_once_closed
from gradweave.following import Follower
from gradweave.loop import TRAITS, Loop
from gradweave.reporting import Report
from gradweave.scalars import Scalars
from gradweave.scope import Scope
from gradweave.settings import Plan, plan_of
from gradweave.subclasses import Hook
from gradweave.updating import Updates


BUFFERS = "the broadcast of buffers"
OWN_BUFFERS = ("gradweave: each rank evaluates with running statistics of its own batches: call gradweave.finish(model) on "
               "all ranks before model.eval() to evaluate with rank 0's, as DistributedDataParallel does")
OWN_COPIES = ("gradweave.finish(): copies of the model, as averages of its weights have them, are not the same on all ranks, "
              "which have stepped on their own; model.gradweave.average(copy), called on all ranks, makes one the mean of all")
CHANGE = "the change of plan"
LOAD = "model.gradweave.load_state_dict()"


@refusing_once_closed
class Session:
    """What `model.gradweave` is.

    plan: in force now, None before the first iteration. workload, cluster: what it was made for. prediction: what simulate()
    says of it there. All in the form of the files; None where nothing is known.
    """

    plan: dict[str, Any] | None
    workload: dict[str, Any] | None
    cluster: dict[str, Any] | None
    prediction: dict[str, Any] | None

    def __init__(self, model, optimizers, settings, job, links):
        self.model, self.settings, self.links = model, settings, links
        self.plan, self.workload, self.cluster, self.prediction = None, None, None, None
        self.on_close = None
        self.closed = False
        self._coming = settings.given_plan  # in force from the first forward on
        self._recorder = profiling.Recorder(model)  # None once nothing is to be recorded
        self._layers, self._iterations, self._called, self._folded = None, 0, False, False
        self._layer_handles = []
        self._every_layer = self._only_gradients = False
        self._scope = Scope(model, settings.exclude)
        self.names, self.parameters = self._scope.names, self._scope.parameters
        self._loop = Loop(self.parameters)
        if settings.scales:
            self._loop.saw("scales")
        self.updates = Updates(optimizers, self.parameters, self._scope.excluded, self._loop,
                               starts_synchronous=self._coming is None)
        self._report = Report(settings.report and job.decides)
        self._scalars = Scalars(self._to_tell)
        device = self.parameters[0].device
        self.job, self.control = job, Control(job, device)
        for link in self.links:
            link.open(job, device, settings.checks)
        if settings.broadcast:
            self.control.broadcast(self._scope.to_broadcast())
        self._buffer_marks, self.evaluates_alone = self._scope.buffer_marks(), False
        self._copies, self._stepped_apart = [], False  # of the model, and whether ranks have stepped on their own
        for parameter in self.parameters:
            # Leaves a Python hook dictionary behind, which later Python hooks join instead of replacing ours.
            parameter.register_post_accumulate_grad_hook(_no_op).remove()
        self.engine = _native.Engine(self.names, self.parameters, [link.spec() for link in self.links], self.control.group,
                                     job.peers, job.size, settings.timeout, settings.checks,
                                     settings.find_unused_parameters, self.updates.step_subset)
        self.updates.engine = self.engine
        if settings.scales:
            self.engine.set_unscaler(lambda: scaling.inverse_scale(settings.scaler))
        compared = preserving.iterations(settings, job.size)
        self._preserver = None
        if compared:
            self._preserver = preserving.Preserver(self.engine, self.names, self.parameters, optimizers, job.size)
        self._follower = Follower(settings.follows, settings, self.control, self.engine, self._loop, device, self._preserver)
        self._tuning = tuning.Tuning(settings.tune, self.control)
        self._warm_up = max(settings.warm_up, compared)
        self.phase = compiling.Phase()
        self._recorder.start()

    # ---- what users ask

    @property
    def counters(self) -> dict[str, int]:
        """{"iterations", "updates", "ops", "bytes", "exposed_ns", "waits", "buffer_bytes"} since the start."""
        return self.engine.counters

    @property
    def emulated(self) -> bool:
        return any(link.emulated for link in self.links)

    def record_timeline(self, on: bool = True) -> None:
        """Record compute, ops and waits from now on, or stop."""
        self.engine.set_timeline(on)
        self._every_layer = on
        self._hook_layers()

    def timeline(self) -> dict[str, Any]:
        """What was recorded since the last call, in the form of a timeline file."""
        return json.loads(self.engine.take_timeline())

    @property
    def tuning(self) -> dict[str, Any] | None:
        """What wrap(tune=) has tried: {"trials": [{"options", "measured_us": [...]}, ...], the start first, "best": its place,
        "ended", "seconds" since the start came into force}. The same on all ranks; None before the first is measured."""
        return self._tuning.report

    def report(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any] | None:
        """What the plan in force really takes beside what was predicted: {"predicted", "measured", "ccr", "links",
        "differences", "op", "stragglers", "text": all of it for people}. Of the last iterations, from what the ops and the
        layers took anyway. None before enough iterations, on an accelerator, and for a plan that was given. Collective,
        between iterations.

        With a `path` rank 0 writes it as the page of `gradweave report` too, whole or not at all: the plan in force beside the
        other schemes, and what timeline() would return of rank 0, which it takes. The other ranks go on meanwhile. Errors, on
        rank 0: InvalidInput for a path that can't be written, or before anything is known."""
        found = self._follower.report()
        if path is not None and self.job.decides:
            self._write_page(path, found)
        return found

    def log_to(self, target: str | os.PathLike[str] | Any, every: int = 50) -> None:
        """Tell every so many iterations, on rank 0, what they took in the mean: iteration_ms, exposed_ms (waits for
        communication), ops and bytes sent, updates, waits; and the scheme in force, its predicted_ms and buffer_bytes.
        `target`: a path, to whose file JSON lines are appended, or a torch.utils.tensorboard.SummaryWriter (or what else has
        its add_scalar()). Errors, on rank 0: InvalidInput for what can't be written to."""
        if self.job.rank == 0:
            try:
                self._scalars.add(target, every)
            except ValueError as error:
                raise _native.InvalidInput(str(error)) from None

    def _to_tell(self):
        sums = dict(self.engine.counters)
        facts = {"scheme": core.chosen(self.plan or {}).get("scheme") or "", "buffer_bytes": sums.pop("buffer_bytes")}
        if self.prediction is not None:
            facts["predicted_ms"] = self.prediction["iteration_us"] / 1e3
        return sums, facts

    def _write_page(self, path, found):
        timeline = self.timeline()
        if self.cluster is None and not timeline["spans"]:
            raise _native.InvalidInput("model.gradweave.report(): nothing is known of the links and nothing was recorded: "
                                       "call it once a plan is in force, or record_timeline() before")
        name = f"{core.chosen(self.plan).get('scheme') or 'plan'} in force"
        given = {} if self.cluster is None else {
            "workload": self.workload, "cluster": self.cluster, "plans": {name: self.plan}}
        # Of the same name: the page compares it with the plan.
        core.write_report(path, timelines=[timeline | {"name": name}] if timeline["spans"] else [],
                          measured=found["text"].splitlines() if found else [], **given)

    def install(self, plan: Plan) -> None:
        """Put another plan in force at this iteration: drains the one before. Collective; every rank gives the same."""
        plan = plan_of(plan)
        if self.workload is None:
            self._coming = plan
            return
        self._stop_recording()
        self._tuning.end()
        self._follower.end()
        self.engine.drain(CHANGE)
        self._install(plan)
        self._plan_installed()

    def synchronize(self) -> None:
        """Wait for, and apply, what this rank can finish alone."""
        if self.engine.installed:
            self.engine.synchronize()

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
        if self.engine.installed:
            self.engine.drain("gradweave.finish()")
        else:  # the drain's first agreement: that all ranks are here
            self.control.peers.agree("gradweave.finish()", "", self.control.timeout_s)
        self._follower.end()
        self.broadcast_buffers()
        equality.check_equal(self.control, self.names, self.parameters, "finish()")
        if self._stepped_apart:
            self._compare_copies()

    @property
    def buffers_changed(self):
        """Whether a buffer has changed here since all ranks had rank 0's."""
        return self._scope.buffer_marks() != self._buffer_marks

    def broadcast_buffers(self) -> None:
        """Rank 0's. Collective."""
        self.control.broadcast(self._scope.buffers(), BUFFERS)
        self._buffer_marks = self._scope.buffer_marks()

    def evaluates(self):
        """The model is about to be evaluated."""
        self.synchronize()
        if self.job.rank == 1 and not self.evaluates_alone and self.buffers_changed:  # rank 0's are right; one says it
            self.evaluates_alone = True
            warnings.warn(OWN_BUFFERS, stacklevel=4)

    def copied(self, copy):
        """`copy` is made of the model."""
        self._copies = [*(each for each in self._copies if each() is not None), weakref.ref(copy)]

    def average(self, module: torch.nn.Module) -> None:
        """Make a copy of the model, or an average of its weights, the mean of all ranks' in place: where ranks step on their
        own, finish() makes only the model itself equal. What is no floating point becomes rank 0's. Collective. Errors:
        InvalidInput if ranks give modules of different shapes."""
        tensors = [each.detach() for each in (*module.parameters(), *module.buffers())]
        shapes = digest([[list(each.shape), str(each.dtype)] for each in tensors])
        self._compare("model.gradweave.average()", "modules", shapes, "give it the same module")
        floats = [each for each in tensors if each.is_floating_point() or each.is_complex()]
        self.control.average(floats, "model.gradweave.average()")
        self.control.broadcast([each for each in tensors if not each.is_floating_point() and not each.is_complex()], BUFFERS)

    def _compare_copies(self):
        """Says if copies of the model are not the same on all ranks, which have stepped on their own."""
        held = [copy for copy in (reference() for reference in self._copies) if copy is not None]
        sums = digest([[_native.checksum(parameter) for parameter in copy.parameters()] for copy in held])
        told = self.control.peers.agree("the comparison of copies", sums, self.control.timeout_s)
        if len(set(told)) > 1 and self.job.rank == 0:
            warnings.warn(OWN_COPIES, stacklevel=4)

    def state_dict(self) -> dict[str, RankState]:
        """{"rank0": RankState} (that of this rank): what it has for a checkpoint besides model and optimizer. Plan, iteration,
        what is on its way, what was left behind, anchors. First applies what the coming forward would. Between iterations, on
        every rank after the same one; for torch.save(), and for torch.distributed.checkpoint."""
        rank, ranks = self.job.rank, self.job.size
        if self.plan is None or self._recorder is not None:  # still to be decided
            plan, parts = None, {"remains": self.engine.remains()}
        else:
            plan, parts = self.plan, {"workload": self.workload, "cluster": self.cluster, "prediction": self.prediction,
                                      "layers": self._layers, "engine": self.engine.state()}
            if core.demands_of(plan)["local_steps"]:
                parts["local"] = checkpoint.local_state(self.names, self.parameters, self.updates)
        return {checkpoint.key_of(rank): RankState(rank, ranks, self.job.name, self.engine.iteration, plan, **parts)}

    def of_ranks(self, ranks: int) -> checkpoint.OfRanks:
        """In place of `model.gradweave` in what torch.distributed.checkpoint loads: a checkpoint of a job of so many ranks."""
        return checkpoint.OfRanks(self, ranks)

    def load_state_dict(self, states: Mapping[str, RankState] | Sequence[Mapping[str, RankState]]) -> None:
        """Go on from what state_dict() returned on this rank; its plan comes into force again. Or from a list of what it
        returned on each rank of the job before, in their order: where that had another number of ranks, what they had of
        their own is folded in, and this one makes its own plan. After the model's and the optimizer's load_state_dict(),
        before the first forward, on every rank. Collective. Errors: InvalidInput."""
        refusal = None
        try:
            states = checkpoint.states_of(states, self.job.rank, self.job.size)
            if self._layers is not None:
                raise ValueError("training has begun: load it before the first forward")
        except ValueError as error:
            refusal = error
        self._check_alike(states, refusal)
        state, parts = states[0], states[0].parts
        if state.ranks != self.job.size:
            self._fold(states)
            return
        if "local" not in parts:
            equality.check_equal(self.control, self.names, self.parameters, LOAD)
        self.job.name = state.job
        if state.plan is None:
            self.engine.take_over([parts["remains"]])
            return
        if "local" in parts:
            checkpoint.put_local(parts["local"], self.names, self.parameters, self.updates)
        self._know(parts["layers"])
        self.workload, self.cluster, self.prediction = parts["workload"], parts["cluster"], parts["prediction"]
        self._stop_recording()
        self._install(state.plan, parts["engine"])
        self._plan_installed()
        self._report.resumed(self.plan["scheme"], self.engine.iteration)

    def _fold(self, states):
        links = [_native.LinkSpec(link["name"]) for link in states[0].plan["links"]] if states[0].plan else []
        remains = checkpoint.fold(states, self.names, self.parameters, links, self.updates,
                                  self.settings.moments == "whole_batch")
        self.engine.take_over(remains)
        self._folded = True
        self.broadcast_buffers()
        equality.check_equal(self.control, self.names, self.parameters, LOAD)
        self._report.folded(len(states), self.job.size, self.engine.iteration)

    def _check_alike(self, states, refusal):
        """All ranks load states of one job and iteration, and none refuses them."""
        own = f"refused ({refusal})"
        if refusal is None:
            own = f"iteration {states[0].iteration} of job {states[0].job} of {states[0].ranks} ranks"
        try:
            self._compare(LOAD, "what is loaded", own, "give every rank what one job has saved after one iteration")
        except _native.InvalidInput:
            if refusal is None:
                raise
        if refusal is not None:
            raise _native.InvalidInput(f"{LOAD}: {refusal}") from None

    def _compare(self, where, what, own, remedy):
        """All ranks have the same text. Collective. Errors: InvalidInput naming those that differ."""
        given = dict(enumerate(self.control.peers.agree(where, own, self.control.timeout_s)))
        if len(set(given.values())) > 1:
            raise _native.InvalidInput(f"{where}: {difference(what, given)}; {remedy}")

    def before_load(self, what):
        """The model's or the optimizer's load_state_dict() is about to be called."""
        if self._folded and self._layers is None:
            raise _native.InvalidInput(f"the {what}'s load_state_dict() after {LOAD}, which has folded what ranks had of "
                                       f"their own into the {what}: load model and optimizers first")
        self.synchronize()

    def close(self, error: BaseException | None = None, patience_s: float | None = None) -> None:
        """End the engine's threads and make model and optimizer what they were before. Safe to call twice. `error`:
        this rank's own, which the other ranks are told; ops under way are given up. `patience_s`: so are they once none
        has ended for so long. All else that is asked of it afterwards is InvalidInput."""
        if self.closed:
            return
        if error is None:
            self._report.ended()
        self.unhook()
        self._follower.close()
        self._scalars.close()
        if error is None:
            self.job.peers.end()
        else:
            self.job.report(error)
        self.engine.close(patience_s if error is None else 0.0)
        self.job.close()
        self.control.close()
        self.links = []
        self.closed = True

    def unhook(self):
        """Makes model and optimizer what they were before, but for the engine's hooks on gradients."""
        for handle in self._layer_handles:
            handle.remove()
        self._layer_handles = []
        reading.unwatch(self.model)
        self._stop_recording()
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
        before, self.engine.communicating = self.engine.communicating, False
        try:
            yield
        finally:
            self.engine.communicating = before

    def clip_grad_norm_(self, max_norm, norm_type, error_if_nonfinite, parameters=None):
        """gradweave.clip_grad_norm_(), of all parameters or of some."""
        norm = clipping.clip_grad_norm_(self.engine, self.parameters, max_norm, norm_type, error_if_nonfinite, parameters)
        if self._recorder is not None:
            self._loop.clipped()
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
            raise _native.InvalidInput(f"optimizer.step(): this {type(optimizer).__name__} steps parameters of a wrapped "
                                       "model, whose gradients the plan in force hands to step() of the optimizer that "
                                       "gradweave.wrap() was given: give it all of them, wrap(model, [a, b]), or choose a "
                                       "scheme that updates in step(), such as ddp")
        self._loop.saw("other optimizer", type(optimizer).__name__)

    def scaler_was_seen(self):
        """A GradScaler asks one of the optimizers what it can do."""
        if self.settings.scaler is None:
            self._loop.saw("unknown scaler")

    def step_was_left_out(self):
        """By the loss scale, which was too large."""
        self._loop.skipped()

    def step(self, optimizer, closure):
        if self.unscales and hasattr(optimizer, "grad_scale"):
            raise _native.InvalidInput("GradScaler: the plan in force delays gradients, or steps outside optimizer.step(), "
                                       "and needs to know the scale: pass scaler= to gradweave.wrap()")
        self._scope.check_frozen()
        result, ended = self.updates.step(optimizer, closure)
        if ended:
            self._iteration_ended()
        return result

    def skip_step(self) -> None:
        """In place of optimizer.step(): drops the gradient of the last backward, as a guard against NaN does. Every rank
        has to do the same. Updates that the plan has due from iterations before take place."""
        self.updates.end_iteration(skip=True)
        self._iteration_ended()

    # ---- forward and backward

    def before_forward(self):
        """The model is about to be called."""
        self._scope.check_alone(first=not self._called)
        self._called = True
        if torch.is_grad_enabled() and self.engine.taken_away:  # a batch that was dropped, and then no step
            self.skip_step()
        if not (torch.is_grad_enabled() and self.engine.communicating):
            return
        if self.updates.begun and self.engine.synchronous:
            # Optimizers that are not stepped in every iteration, as with DistributedDataParallel.
            self._loop.saw("takes turns")
            self.updates.end_iteration()
            self._iteration_ended()
        self.engine.forward_begins()
        if self.model.training and self.settings.broadcast_buffers:
            self.broadcast_buffers()

    def after_forward(self, output):
        """A call of the model has ended."""
        if not torch.is_grad_enabled():
            return
        if self._layers is None and self.model.training:
            self._first_forward_ended()
        for tensor in profiling.tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._backward_starts)

    def _backward_starts(self, gradient):
        if self._layers is None:  # trained in eval mode: only now is it certain that this is no evaluation
            self._first_forward_ended()
        if self.engine.steps_in_backward:
            self.updates.freeze_hyperparameters()
        recording = self._recorder is not None and self.engine.communicating
        if recording:
            self._loop.backward_started(self.engine.reduced)
        self.engine.backward_start()
        looked_at = self._preserver is not None and self._preserver.looks and self.engine.communicating
        if recording or looked_at:  # after the engine's own callback, which puts the reduced gradients in place
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self):
        looked_at = self._preserver is not None and self._preserver.looks
        if self._recorder is None:
            if looked_at:
                self._preserver.backward_ended_again()
        elif self.engine.reduced:
            self._loop.backward_ended()
            if looked_at:
                self._preserver.backward_ended()

    def _first_forward_ended(self):
        # Rank 0's, where the forward differs between ranks.
        self._know(self.control.from_rank_0(self._recorder.layers(set(self.names))))
        self._recorder.stop()
        self.workload, _ = profiling.workload_of(self.model, self._layers, [], type(self.model).__name__)
        if self._coming is not None:
            self._stop_recording()
            self._install(self._coming)
            return
        if self.settings.tune and self.phase.seen:
            raise _native.InvalidInput(tuning.COMPILED)
        links = [link.name for link in self.links]
        demands = decision.expected_demands(self.settings.scheme, self.settings.options, self.workload, links,
                                            self.control.size)
        if demands is not None:
            if demands["partial_steps"] or demands["makes_momentum"]:
                self.updates.look_at_optimizers()
            self._loop.bind(self.settings.scheme, demands)
        self._install(decision.starter(self.workload, links, self.control.size))

    def _know(self, layers):
        """layers: {module: names of its tensors}, in forward order."""
        self._layers = layers
        self._modules = dict(self.model.named_modules())
        by_name = dict(zip(self.names, self.parameters))
        self._parameters_of = [[by_name[name] for name in tensors] for tensors in layers.values()]

    def _install(self, plan, state=None):
        """`state`: the engine's, of a checkpoint."""
        given, workload = core.Plan(plan), core.Workload(self.workload)
        if not _native.validate(given, workload):  # else the engine says what is wrong
            demands = core.demands_of(given)
            if not demands["synchronous"]:
                self.updates.look_at_optimizers()
            if reason := self._loop.refusal(demands):
                raise _native.InvalidInput(f"the plan can't serve this loop: {reason}")
        stepped_locally = self.engine.stepped_locally if self.engine.installed else []
        self.engine.install(given, workload, state)
        if alike := sorted(set(stepped_locally) - set(self.engine.stepped_locally)):
            self.updates.average_states(alike, self.control)
        self.updates.plan_installed(self.job.size if self.settings.moments == "whole_batch" else 1)
        self.plan = plan if isinstance(plan, dict) else plan.to_dict()
        self._stepped_apart |= core.demands_of(given)["local_steps"]
        self._hook_layers()

    def _hook_layers(self):
        if self._layers is None:
            return
        layers = {p: number for number in self.engine.forward_layers() for p in self._parameters_of[number]}
        reading.watch(self.model, layers, self._layer_is_read)
        for handle in self._layer_handles:
            handle.remove()
        self._layer_handles = []
        modules = [self._modules[name] for name in self._layers]
        for number in range(len(modules)) if self._every_layer else self.engine.forward_layers():
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

    def _stop_recording(self):
        if self._recorder is not None:
            self._recorder.stop()
            self._recorder, self.phase.eager = None, False

    # ---- profiling, then the plan

    def _iteration_ended(self):
        self._check_now_and_then()
        self._report.iteration_ended()
        self._scalars.iteration_ended()
        if self._recorder is None:
            if self._tuning.under_way:
                if self._tuning.iteration_ended():
                    self._try_next()
            # A plan that cuts a compiled model elsewhere would have it compiled again.
            elif not self.phase.seen:
                if self._follower.iteration_ended():
                    self._follow()
                elif self._preserver is not None and (objection := self._preserver.iteration_ended_again(self.control)):
                    self._obey(objection)
            return
        self._iterations += 1
        profiled = self._iterations - self._warm_up
        if self._preserver is not None and profiled <= 0:
            self._preserver.iteration_ended()
        if profiled == 0:
            if self._preserver is not None:
                self._preserver.stop(self.control)
            self._recorder.start()
        elif profiled > 0:
            self._recorder.end_iteration()
            if profiled == self.settings.profile_iterations:
                self._switch()
                return
        self._recorder.begin_iteration()

    def _check_now_and_then(self):
        iteration = self.engine.iteration
        if not self.settings.checks or iteration % equality.CHECK_EVERY or core.demands_of(self.plan)["local_steps"]:
            return
        self.engine.synchronize()  # some rank may have done so alone
        equality.check_equal(self.control, self.names, self.parameters, f"iteration {iteration}")

    def _switch(self):
        """Rank 0 decides on everybody's profile and on what everybody's loop does; all ranks switch here, at the same
        iteration."""
        iterations = self._recorder.iterations
        self._stop_recording()
        self.engine.drain(CHANGE)  # first of all, since it agrees that all ranks are here
        workload, _ = profiling.workload_of(self.model, self._layers, iterations, type(self.model).__name__)
        workload = profiling.of_slowest(workload, lambda times: self.control.largest(times, "the exchange of profiles"))
        self.updates.look_at_optimizers()
        seen = self.control.largest([float(self._loop.seen(name)) for name in TRAITS], "the exchange of what loops do")
        self._loop.adopt([name for name, some in zip(TRAITS, seen) if some])
        device = self.parameters[0].device
        rates = decision.rates(self.settings.scheme, self.settings.options, workload, self.control.size, device)
        cluster = decision.cluster_of(self.links, self.control, device, rates)
        decided = self._decide(workload, cluster)
        if "error" in decided:
            raise _native.InvalidInput(decided["error"])
        self._report.switched(decided, self._adopt(decided))
        if self.settings.tune:
            self._follower.plan_installed(self.plan, self.workload, None)  # nothing to look at before the last trial
            self._tuning.begin(self.plan, self.workload, self.cluster)

    def _try_next(self):
        """The plan in force has been measured."""
        self.engine.drain(CHANGE)
        tried = self._tuning.next()
        while self._first_that_goes([tried, {"plan": self.plan}]) is not tried:
            tried = self._tuning.next(failed=True)
        self.prediction = tried["prediction"]
        if not self._tuning.under_way:
            self._plan_installed()
            self._report.tuned(tried, self.tuning)

    def _follow(self):
        """Rank 0 has a better plan for what was measured."""
        self.engine.drain(CHANGE)
        decided = self._follower.proposal()
        self._report.followed(self._adopt(decided, of_this_run=True), decided["candidates"][-1])

    def _obey(self, objection):
        """The Preserver objects to the plan in force: `auto` takes another one."""
        if self.settings.scheme != "auto":
            self._report.objected(objection)
            return
        self._follower.end()
        self.engine.drain(CHANGE)
        decided = self._decide(self.workload, self.cluster)
        if "error" in decided:
            raise _native.InvalidInput(f"{objection}; there is no other plan: {decided['error']}")
        self._report.obeyed(objection, self._adopt(decided))

    def _decide(self, workload, cluster):
        """Rank 0's decision, on all ranks."""
        decided = None
        if self.control.decides:
            decided = decision.decide(workload, cluster, self.settings, self._loop, self.parameters[0].device,
                                      self._preserver)
        return self.control.from_rank_0(decided)

    def _adopt(self, decided, of_this_run=False):
        """Puts the best of the candidates into force that all ranks can; returns it."""
        self.workload, self.cluster = decided["workload"], decided["cluster"]
        chosen = self._first_that_goes(decided["candidates"])
        self.prediction = chosen["prediction"]
        self._plan_installed(of_this_run)
        return chosen

    def _plan_installed(self, of_this_run=False):
        self._follower.plan_installed(self.plan, self.workload, self.cluster, of_this_run)
        if self._preserver is not None:
            self._preserver.plan_installed(self.plan, self.workload)

    def _first_that_goes(self, candidates):
        """Puts the best candidate into force that every rank can; returns it."""
        for number, candidate in enumerate(candidates):
            refusal = None
            try:
                self._install(candidate["plan"])
            except _native.InvalidInput as error:
                refusal = error
            failed, = self.control.largest([float(refusal is not None)], "the change of plan")
            if not failed:
                return candidate
            if number + 1 == len(candidates):
                raise refusal or _native.InvalidInput("another rank can't put the plan into force")
            if refusal:
                self._report.refused(candidate, refusal)


def _no_op(parameter):
    pass
