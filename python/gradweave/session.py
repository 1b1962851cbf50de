"""One wrapped training job on one rank: from the first forward to the last step."""

import contextlib
import json
import traceback

import torch

from gradweave import _native, channels, clipping, decision, profiling, scaling, stepping
from gradweave.agreement import Control
from gradweave.settings import plan_of
from gradweave.subclasses import Hook


BUFFERS = "the broadcast of buffers"
CHANGE = "the change of plan"


class Session:
    """What `model.gradweave` is: `plan`, `workload`, `cluster`, `prediction`, `counters`, `timeline()`."""

    def __init__(self, model, optimizer, kind, settings):
        self.model, self.optimizer, self.settings = model, optimizer, settings
        self.plan, self.workload, self.cluster, self.prediction = None, None, None, None
        self.engine = self.on_close = None
        self._coming = None if settings.plan is None else plan_of(settings.plan)  # in force from the first forward on
        self._recorder = profiling.Recorder(model)  # None once nothing is to be recorded
        self._layers, self._iterations = None, 0
        self._handles, self._layer_handles = [], []
        self._closure_stepped = self._stepped_parts = self._every_layer = False
        named = [(name, p) for name, p in model.named_parameters() if profiling.communicates(p)]
        if not named:
            raise ValueError("gradweave.wrap: the model has no parameter that requires a gradient")
        self.names, self.parameters = map(list, zip(*named))
        self._frozen = [p for p in model.parameters() if not p.requires_grad]
        self.stepper = stepping.Stepper(optimizer, kind, self.parameters)
        self.control = Control(settings.timeout)
        self.control.check_same_model(model)
        self.channels = channels.open_channels(settings.links, settings.timeout)
        if self._coming is None:
            decision.check_scheme(settings.scheme, settings.options)
        else:
            self.channels = channels.renamed(self.channels, [link["name"] for link in self._coming["links"]])
        if settings.broadcast:
            self.control.broadcast(model.parameters())
            self.control.broadcast(model.buffers())
        for parameter in self.parameters:
            # Leaves a Python hook dictionary behind, which later Python hooks join instead of replacing ours.
            parameter.register_post_accumulate_grad_hook(_no_op).remove()
        self.engine = _native.Engine(self.names, self.parameters, [c.spec() for c in self.channels], self.control.group,
                                     self.control.peers, self.control.rank, self.control.size, settings.timeout,
                                     settings.checks, settings.find_unused_parameters, self._step_subset)
        self.control.fail = self.engine.fail
        if settings.scales:
            self.engine.set_unscaler(lambda: scaling.inverse_scale(settings.scaler))
        self._recorder.start()
        self._handles.append(model.register_forward_hook(Hook(self._after_forward)))
        if settings.broadcast_buffers and self.control.size > 1:
            self._handles.append(model.register_forward_pre_hook(Hook(self._broadcast_buffers)))

    # ---- what users ask

    @property
    def counters(self):
        """{"iterations", "updates", "ops", "bytes", "exposed_ns", "waits", "buffer_bytes"} since the start."""
        return self.engine.counters

    @property
    def emulated(self):
        return any(channel.emulated for channel in self.channels)

    def record_timeline(self, on=True):
        """Record compute, ops and waits from now on, or stop."""
        self.engine.set_timeline(on)
        self._every_layer = on
        self._hook_layers()

    def timeline(self):
        """What was recorded since the last call, in the form of a timeline file."""
        return json.loads(self.engine.take_timeline())

    def install(self, plan):
        """Put another plan in force at this iteration: drains the one before. Collective; every rank gives the same."""
        plan = plan_of(plan)
        if self.workload is None:
            self._coming = plan
            return
        self._recorder = None
        self.engine.drain(CHANGE)
        self._install(plan)

    def synchronize(self):
        """Wait for, and apply, what this rank can finish alone."""
        if self.engine.installed:
            self.engine.synchronize()

    def apply_outstanding(self):
        """Before parameters are looked at between iterations: apply what a plan that steps parts has on its way."""
        if self.engine.installed and not self.engine.reduced and self.engine.partial_steps:
            self.engine.synchronize()

    def finish(self):
        """Apply everything on its way, and make all ranks equal. Collective."""
        if self.engine.installed:
            self._stepped_parts = False
            self.engine.drain("gradweave.finish()")
            self._run_hooks("_optimizer_step_post_hooks", self._stepped_parts)
        self.control.broadcast(self.model.buffers(), BUFFERS)

    def close(self, error=None):
        """End the engine's threads and make model and optimizer what they were before. Safe to call twice. `error`:
        this rank's own, which the other ranks are told; ops under way are given up."""
        for handle in self._handles + self._layer_handles:
            handle.remove()
        self._handles, self._layer_handles = [], []
        if self._recorder is not None:
            self._recorder.stop()
        if error is None:
            self.control.peers.end()
        else:
            self.control.peers.report("".join(traceback.format_exception_only(error)).splitlines()[0])
        self.engine.close(abandon=error is not None)
        self.control.peers.close()
        self.control.close()
        self.channels = []
        if self.on_close:
            self.on_close()

    @contextlib.contextmanager
    def no_sync(self):
        """In this context backward passes accumulate and communicate nothing."""
        before, self.engine.communicating = self.engine.communicating, False
        try:
            yield
        finally:
            self.engine.communicating = before

    def clip_grad_norm_(self, max_norm, norm_type, error_if_nonfinite):
        """gradweave.clip_grad_norm_()."""
        return clipping.clip_grad_norm_(self.engine, self.parameters, max_norm, norm_type, error_if_nonfinite)

    # ---- the step

    @property
    def unscales(self):
        """Whether the engine takes the loss scale out of gradients, and not the scaler."""
        return self.engine.installed and not self.engine.synchronous

    def overflowed(self):
        return self.engine.reduced and self.engine.overflowed

    def step(self, closure):
        if hasattr(self.optimizer, "grad_scale") and self.unscales:
            raise _native.InvalidInput("GradScaler: the plan in force delays gradients, or steps outside optimizer.step(), "
                                       "and needs to know the scale: pass scaler= to gradweave.wrap()")
        if any(parameter.requires_grad for parameter in self._frozen):
            raise _native.InvalidInput("optimizer.step(): a parameter requires a gradient now that was frozen in "
                                       "gradweave.wrap(); call model.gradweave.close() and wrap again")
        if not self.engine.reduced and closure is None:
            if self.engine.installed and not self.engine.synchronous and any(p.grad is not None for p in self.parameters):
                raise _native.InvalidInput("optimizer.step(): no backward was communicated since the last one, and the plan in "
                                           "force has no use for a gradient of this rank alone; put one backward() outside "
                                           "no_sync() before each step()")
            return self.stepper.step_all()
        result = None
        if closure is not None:
            if self.engine.installed and not self.engine.synchronous:
                raise _native.InvalidInput("optimizer.step(closure): the plan in force delays updates; "
                                           "call backward() and step() without a closure")
            result = self.stepper.step_all(closure)
            self._closure_stepped = True
        try:
            if self.engine.reduced:
                if self.engine.steps_in_backward and (name := self.stepper.changed()):
                    raise _native.InvalidInput(f"optimizer.step(): '{name}' was changed after backward() began, but the plan in "
                                               "force has stepped there; change it before backward() or after step()")
                if self.engine.steps_in_forward:
                    self.stepper.freeze_hyperparameters()
                self._stepped_parts = False
                self.engine.end_iteration()
                self._run_hooks("_optimizer_step_post_hooks", self._stepped_parts)
        finally:
            self._closure_stepped = False
        self._iteration_ended()
        return result

    def _step_subset(self, subset):
        """The engine's call: every parameter of the subset has its gradient in place."""
        if self._closure_stepped:
            return
        if subset == 0 and not self.engine.partial_steps:
            self.stepper.step_all()
            return
        self._run_hooks("_optimizer_step_pre_hooks", not self._stepped_parts)
        self._stepped_parts = True
        self.stepper.step_subset(subset, self.engine.subset(subset))

    def _run_hooks(self, name, wanted):
        # Twins have none: the user's hooks run once around an update, however many parts it has.
        if wanted:
            for hook in list(getattr(self.optimizer, name, {}).values()):
                hook(self.optimizer, (), {})

    # ---- forward and backward

    def _broadcast_buffers(self, module, inputs):
        if module.training and torch.is_grad_enabled() and self.engine.communicating:
            self.control.broadcast(module.buffers(), BUFFERS)

    def _after_forward(self, module, inputs, output):
        if not torch.is_grad_enabled():
            return
        if self._layers is None and module.training:
            self._first_forward_ended()
        for tensor in profiling.tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._backward_starts)

    def _backward_starts(self, gradient):
        if self._layers is None:  # trained in eval mode: only now is it certain that this is no evaluation
            self._first_forward_ended()
        if self.engine.steps_in_backward:
            self.stepper.freeze_hyperparameters()
        self.engine.backward_start()

    def _first_forward_ended(self):
        # Rank 0's, where the forward differs between ranks.
        self._layers = self.control.from_rank_0(self._recorder.layers())
        self._recorder.stop()
        self._modules = dict(self.model.named_modules())
        self.workload, _ = profiling.workload_of(self.model, self._layers, [], type(self.model).__name__)
        if self._coming is None:
            self._install(decision.starter(self.workload, [c.name for c in self.channels], self.control.size))
        else:
            self._recorder = None
            self._install(self._coming)

    def _install(self, plan):
        self.engine.install(json.dumps(plan), json.dumps(self.workload))
        self.stepper.forget()
        self.plan = plan
        if self.settings.scales and self.engine.steps_in_backward:
            raise _native.InvalidInput("GradScaler: the plan steps parameters in the backward, before all gradients are "
                                       "known to be finite; use bfloat16, which needs no scaler, or another scheme")
        if self.engine.partial_steps:
            known = set(map(id, self.parameters))
            if any(profiling.communicates(p) and id(p) not in known for group in self.optimizer.param_groups for p in group["params"]):
                raise _native.InvalidInput("the plan steps parameters one part at a time, but the optimizer has parameters that "
                                           "are not the model's; give them to an optimizer of their own")
            reason = stepping.prove_partial_steps(self.optimizer, self.stepper.kind, self.parameters)
            if reason:
                raise _native.InvalidInput(f"the plan steps parameters one part at a time, but {reason}; use a scheme that "
                                           "updates in step(), such as sequential, wfbp, ddp or horovod")
        self._hook_layers()

    def _hook_layers(self):
        if self._layers is None:
            return
        for handle in self._layer_handles:
            handle.remove()
        self._layer_handles = []
        needed = range(len(self._layers)) if self._every_layer else self.engine.forward_layers()
        for number in needed:
            module = self._modules[list(self._layers)[number]]
            # Before other hooks, which may compute with the parameters, as torch.nn.utils.weight_norm's does.
            self._layer_handles.append(module.register_forward_pre_hook(self._at_forward_start(number), prepend=True))
            self._layer_handles.append(module.register_forward_hook(self._at_forward_end(number)))

    def _at_forward_start(self, number):
        return Hook(lambda module, inputs: self.engine.forward_start(number))

    def _at_forward_end(self, number):
        return Hook(lambda module, inputs, output: self.engine.forward_end(number))

    # ---- profiling, then the plan

    def _iteration_ended(self):
        if self._recorder is None:
            return
        self._iterations += 1
        profiled = self._iterations - self.settings.warm_up
        if profiled == 0:
            self._recorder.start()
        elif profiled > 0:
            self._recorder.end_iteration()
            if profiled == self.settings.profile_iterations:
                self._switch()
                return
        self._recorder.begin_iteration()

    def _switch(self):
        """Rank 0 decides on everybody's profile; all ranks switch here, at the same iteration."""
        recorder, self._recorder = self._recorder, None
        recorder.stop()
        workload, _ = profiling.workload_of(self.model, self._layers, recorder.iterations, type(self.model).__name__)
        with self.control.together("the exchange of profiles"):
            workload, _ = profiling.of_slowest_rank(workload, 0.0, self.control.group)
        cluster = decision.cluster_of(self.channels, self.control, self.parameters[0].device)
        decided = decision.decide(workload, cluster, self.settings) if self.control.rank == 0 else None
        decided = self.control.from_rank_0(decided)
        if "error" in decided:
            raise _native.InvalidInput(decided["error"])
        self.workload, self.cluster, self.prediction = decided["workload"], decided["cluster"], decided["prediction"]
        self.engine.drain(CHANGE)
        self._install(decided["plan"])


def _no_op(parameter):
    pass
