"""One wrapped training job on one rank: from the first forward to the last step."""

import contextlib
import datetime
import hashlib
import json
import os
import time

import torch
from torch import distributed
from torch.utils import _pytree

from gradweave import _native, channels, classes, core, probe, profiling, ranks, scaling, stepping

STARTER = "sequential"  # runs while the job is profiled: no op disturbs the backward that is measured
BROADCAST_BYTES = 250 << 20


class Session:
    """What `model.gradweave` is: `plan`, `workload`, `cluster`, `prediction`, `counters`, `timeline()`."""

    def __init__(self, model, optimizer, kind, *, scheme, plan, links, options, timeout, find_unused_parameters, warm_up,
                 profile_iterations, broadcast, broadcast_buffers, scaler, check):
        self.model, self.optimizer, self.scheme, self.options = model, optimizer, scheme, dict(options or {})
        self.plan, self.workload, self.cluster, self.prediction = None, None, None, None
        self.rank, self.world_size, self.on_close = ranks.rank(), ranks.world_size(), None
        self._given = None if plan is None else _loaded(plan)
        self._warm_up, self._profile_iterations = warm_up, profile_iterations
        self._layers, self._starts, self._records, self._record = None, {}, None, None
        self._finished_iterations, self._handles, self._layer_handles = 0, [], []
        self._closure_stepped = self._stepped_parts = self._every_layer = False
        self.engine = None
        named = [(name, p) for name, p in model.named_parameters() if profiling.communicates(p)]
        if not named:
            raise ValueError("gradweave.wrap: the model has no parameter that requires a gradient")
        self.parameters = [p for _, p in named]
        self.names = [name for name, _ in named]
        self._frozen = [p for p in model.parameters() if not p.requires_grad]
        self.stepper = stepping.Stepper(optimizer, kind, self.parameters)
        self.timeout = timeout
        self.scaler, self._broadcast_buffers = scaler, broadcast_buffers and self.world_size > 1
        self._control = self._control_group(timeout)
        self._check_same_model()
        if self._given is None:
            self.channels = channels.open_channels(links, timeout)
            self._check_scheme()
        else:
            self.channels = channels.renamed(channels.open_channels(links, timeout),
                                             [link["name"] for link in self._given["links"]])
        if broadcast and self.world_size > 1:
            self._broadcast(self.model.parameters())
            self._broadcast(self.model.buffers())
        for parameter in self.parameters:
            # Leaves a Python hook dictionary behind, which later Python hooks join instead of replacing ours.
            parameter.register_post_accumulate_grad_hook(_no_op).remove()
        check = bool(int(os.environ.get("GRADWEAVE_CHECK", "0"))) if check is None else check
        self.engine = _native.Engine(self.names, self.parameters, [c.spec() for c in self.channels], self._control,
                                     self._own_store(), self.rank, self.world_size, timeout, check, find_unused_parameters, self._step_subset)
        if scaler is not None and scaler.is_enabled():
            self.engine.set_unscaler(lambda: scaling.inverse_scale(scaler))
        self._watch_first_forward()

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
        plan = _loaded(plan)
        if self.workload is None:
            self._given = plan
            return
        self.engine.drain()
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
            self.engine.drain()
            self._run_hooks("_optimizer_step_post_hooks", self._stepped_parts)
        if self.world_size > 1:
            with self._together("the broadcast of buffers"):
                self._broadcast(self.model.buffers())

    def close(self, abandon=False):
        """End the engine's threads and make model and optimizer what they were before. Safe to call twice. `abandon`:
        do not wait for ops under way."""
        for handle in self._handles + self._layer_handles:
            handle.remove()
        self._handles, self._layer_handles = [], []
        self.engine.close(abandon)
        self._control, self.channels = None, []
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
        engine = self.engine
        if engine.installed and engine.steps_in_backward:
            raise _native.InvalidInput("clip_grad_norm_: the plan in force steps parameters in the backward, before the "
                                       "norm of the whole gradient is known; choose a scheme that steps in "
                                       "optimizer.step() or in the next forward, such as ddp or dear")
        if not engine.installed or not engine.reduced or not engine.steps_in_forward:
            return torch.nn.utils.clip_grad_norm_(self.parameters, max_norm, norm_type, error_if_nonfinite)
        parts, whole = [], []
        for parameter, own in zip(self.parameters, engine.coming_gradients()):
            if own:
                parts.append(own)
                flat = own[0] if len(own) == 1 else torch.cat(own)
                # In the parameter's shape: a norm of one dimension is summed in another order.
                whole.append(flat.as_strided(parameter.size(), parameter.stride(), flat.storage_offset()))
        norm = torch.nn.utils.get_total_norm(whole, norm_type, error_if_nonfinite)
        # As torch.nn.utils.clip_grads_with_norm_ does, which asks for parameters.
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        torch._foreach_mul_([part for of_one in parts for part in of_one], factor)
        return norm

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

    # ---- forward

    def _watch_first_forward(self):
        for name, module in self.model.named_modules():
            self._layer_handles.append(module.register_forward_pre_hook(self._start_recorder(name)))
        self._handles.append(self.model.register_forward_hook(classes.Hook(self._after_forward)))
        if self._broadcast_buffers:
            self._handles.append(self.model.register_forward_pre_hook(classes.Hook(self._before_forward)))

    def _before_forward(self, module, inputs):
        if module.training and torch.is_grad_enabled() and self.engine.communicating:
            with self._together("the broadcast of buffers"):
                self._broadcast(module.buffers())

    def _start_recorder(self, name):
        def hook(module, inputs):
            if not torch.is_grad_enabled():
                return
            if module is self.model:
                self._starts = {}  # the last forward before a backward counts
            self._starts.setdefault(name, time.monotonic())
        return classes.Hook(hook)

    def _after_forward(self, module, inputs, output):
        if not torch.is_grad_enabled():
            return
        if self._layers is None and module.training:
            self._first_forward_ended()
        for tensor in _tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._backward_starts)

    def _backward_starts(self, gradient):
        if self._layers is None:  # trained in eval mode: only now is it certain that this is no evaluation
            self._first_forward_ended()
        if self._records is not None and self.engine.communicating and (
                self._record is None or self._record["forward"] is not self._starts):
            self._record = {"backward": time.monotonic(), "forward": self._starts}
        if self.engine.steps_in_backward:
            self.stepper.freeze_hyperparameters()
        self.engine.backward_start()

    def _first_forward_ended(self):
        # Rank 0's, where the forward differs between ranks.
        self._layers = self._from_rank_0(profiling.layers_of(self.model, self._starts))
        self._modules = dict(self.model.named_modules())
        for handle in self._layer_handles:
            handle.remove()
        self._layer_handles = []
        self.workload, _ = profiling.workload_of(self.model, self._layers, [], type(self.model).__name__)
        if self._given is not None:
            self._install(self._given)
            return
        dummy = [{"name": c.name, "startup_us": 1, "us_per_byte": 0.001, "concurrency": 1} for c in self.channels]
        self._install(core.make_plan(self.workload, probe.cluster_of(dummy, self.world_size, ""), STARTER))

    def _install(self, plan):
        self.engine.install(json.dumps(plan), json.dumps(self.workload))
        self.stepper.forget()
        self.plan = plan
        if self.scaler is not None and self.scaler.is_enabled() and self.engine.steps_in_backward:
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
        return classes.Hook(lambda module, inputs: self.engine.forward_start(number))

    def _at_forward_end(self, number):
        return classes.Hook(lambda module, inputs, output: self.engine.forward_end(number))

    # ---- profiling, then the plan

    def _iteration_ended(self):
        if self._given is not None or self._layers is None:
            return
        self._finished_iterations += 1
        if self._finished_iterations == self._warm_up:
            self._records = []
            for name, module in self.model.named_modules():
                self._layer_handles.append(module.register_forward_pre_hook(self._start_recorder(name)))
        elif self._records is not None:
            self._keep_record()
            if self._finished_iterations == self._warm_up + self._profile_iterations:
                self._switch()
                return
        self._starts, self._record = {}, None
        self._began = time.monotonic()

    def _keep_record(self):
        if self._record is None:
            return
        self._record["ready"] = dict(zip(self.names, (ns / 1e9 for ns in self.engine.ready_ns)))
        self._record["backward_end"] = self.engine.backward_end_ns / 1e9
        self._record["begin"], self._record["end"] = self._began, time.monotonic()
        self._records.append(self._record)

    def _switch(self):
        """Rank 0 decides on everybody's profile; all ranks switch here, at the same iteration."""
        workload, _ = profiling.workload_of(self.model, self._layers, self._records, type(self.model).__name__)
        with self._together("the exchange of profiles"):
            self.workload, _ = profiling.of_slowest_rank(workload, 0.0, self._control)
        self._records = self._record = None
        links = []
        for channel in self.channels:
            if channel.emulated:
                link = {"name": channel.name, "startup_us": channel.cost[0], "us_per_byte": channel.cost[1], "concurrency": 1}
            elif self.world_size == 1:
                link = {"name": channel.name, "startup_us": 1, "us_per_byte": 0, "concurrency": 1}
            else:
                with self._together(f"the probe of link {channel.name}"):
                    measured = probe.measure(channel.group, seconds=2.0, device=self.parameters[0].device)
                    link, _ = probe.describe_link(channel.name, measured)
            links.append(link)
        self.cluster = probe.cluster_of(links, self.world_size, f"{self.world_size} workers")
        plan = self._decided()
        self._given = plan
        self.engine.drain()
        self._install(plan)

    def _decided(self):
        answer = None
        if self.rank == 0:
            try:
                plan = core.make_plan(self.workload, self.cluster, self.scheme, self.options)
                answer = {"plan": plan, "workload": self.workload, "cluster": self.cluster,
                          "prediction": core.simulate(plan, self.workload, self.cluster)}
            except Exception as error:  # every rank must learn of it, or the others wait for ever
                answer = {"error": str(error)}
        answer = self._from_rank_0(answer)
        if "error" in answer:
            raise _native.InvalidInput(answer["error"])
        self.workload, self.cluster, self.prediction = answer["workload"], answer["cluster"], answer["prediction"]
        return answer["plan"]

    def _from_rank_0(self, value):
        if self.world_size == 1:
            return value
        text = json.dumps(value).encode() if self.rank == 0 else b""
        size = torch.tensor([len(text)])
        with self._together("the agreement on a plan"):
            distributed.broadcast(size, 0, group=self._control)
            box = torch.frombuffer(bytearray(text), dtype=torch.uint8) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
            distributed.broadcast(box, 0, group=self._control)
        return json.loads(bytes(box.tolist()))

    @contextlib.contextmanager
    def _together(self, what):
        """A collective outside the engine: when it fails, the error says what failed and whom to suspect."""
        begin = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            if self.engine is None or isinstance(error, _native.RuntimeFailure):
                raise
            self.engine.fail(what, time.monotonic() - begin, str(error))

    # ---- agreement at the start

    def _own_store(self):
        """The default store under a prefix that no other session has, alike on all ranks."""
        if self.world_size == 1:
            return None
        token = self._from_rank_0(os.urandom(8).hex())
        return distributed.PrefixStore(f"gradweave/{token}", distributed.distributed_c10d._get_default_store())

    def _control_group(self, timeout):
        if self.world_size == 1:
            return None
        return distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout))

    def _check_scheme(self):
        options = {row["name"]: [option["name"] for option in row["options"]] for row in core.schemes()}
        if self.scheme not in options:
            raise _native.InvalidInput(f"unknown scheme '{self.scheme}'; use one of {', '.join(options)}")
        for name in self.options:
            if name not in options[self.scheme]:
                raise _native.InvalidInput(f"scheme '{self.scheme}' has no option '{name}'; it has "
                                           f"{', '.join(options[self.scheme]) or 'none'}")

    def _check_same_model(self):
        """Ranks with different models would crash in the first collective, which says nothing about the reason."""
        if self.world_size == 1:
            return
        text = "\n".join(f"{n} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for n, p in self.model.named_parameters())
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        mine = torch.tensor([digest])
        everybodys = [torch.zeros_like(mine) for _ in range(self.world_size)]
        distributed.all_gather(everybodys, mine, group=self._control)
        differ = [str(r) for r, value in enumerate(everybodys) if value.item() != everybodys[0].item()]
        if differ:
            raise _native.InvalidInput(f"rank {', '.join(differ)} has other parameters (names, shapes, dtypes or "
                                       "which of them are frozen) than rank 0; "
                                       "build the same model on every rank")

    def _broadcast(self, tensors):
        """From rank 0, in as few messages as DistributedDataParallel."""
        tensors = [tensor.detach() for tensor in tensors]
        if tensors:
            distributed._broadcast_coalesced(distributed.group.WORLD, tensors, BROADCAST_BYTES, 0)


def _loaded(plan):
    if isinstance(plan, dict):
        return plan
    text = str(plan)
    if not text.lstrip().startswith("{"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    return json.loads(text)


def _tensors_in(output):
    leaves = _pytree.tree_leaves(output)
    found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if found:
        return found
    return [value for leaf in leaves if hasattr(leaf, "__dict__") for value in vars(leaf).values()
            if isinstance(value, torch.Tensor)]


def _no_op(parameter):
    pass
