"""Profiles a model on this machine: the workload file's content, from hooks in ordinary iterations."""

import time

import torch
from torch.utils import _pytree

from gradweave import core, ranks
from gradweave.subclasses import Hook


class Recorder:
    """Records, between start() and stop(), when each layer's forward starts and when its gradients are complete.

    A layer is a module that owns parameters; where its forward never runs (its owner uses its parameters directly)
    they count to the nearest enclosing module that runs. Layers stand in the order in which they first run. Of an
    iteration with several backward passes, whose gradients are accumulated, the first forward and the last backward are told
    layer by layer, since only these can overlap with communication; what lies between counts to the last layer's forward. On
    an accelerator the times are those of its events, since the host runs ahead.
    """

    def __init__(self, model):
        self.model, self.iterations = model, []
        self._clock = _clock_of(model)
        self._handles, self._pass, self._begin, self._in_forward = [], None, None, False
        self._awaits_backward = False  # since the last forward

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        for name, module in self.model.named_modules():
            self._handles.append(module.register_forward_pre_hook(Hook(self._at_forward(name)), prepend=True))
        # First of all: what others do at the backward's begin and end does not count to it.
        self._handles.append(self.model.register_forward_hook(Hook(self._after_forward), prepend=True))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._at_gradient(name)))

    def stop(self):
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def begin_iteration(self):
        self._pass, self._begin = None, self._clock.now()

    def end_iteration(self):
        """Keeps the iteration if it had a backward."""
        end, last = self._clock.now(), self._pass
        if self._begin is not None and last is not None and "backward_end" in last:
            self.iterations.append(self._clock.resolved({**last, "begin": self._begin, "end": end}))
        self._begin = None

    def layers(self, wanted=None):
        """layers_of() the last forward; of the parameters `wanted`, by default all that require a gradient."""
        return layers_of(self.model, list(self._pass["forward"]) if self._pass else [], wanted)

    def _at_forward(self, name):
        def hook(module, inputs):
            if module is self.model:
                self._in_forward = torch.is_grad_enabled()
                if self._in_forward:
                    if self._pass is None or "backward" not in self._pass:
                        self._pass = {"forward": {}, "ready": {}}
                    self._awaits_backward = True
            # Inside the model's forward even without gradients: reentrant checkpointing computes its layers so.
            if self._in_forward:
                self._pass["forward"].setdefault(name, self._clock.now())
        return hook

    def _after_forward(self, module, inputs, output):
        self._in_forward = False
        if torch.is_grad_enabled():
            for tensor in tensors_in(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(self._at_backward)

    def _at_backward(self, gradient):
        current = self._pass
        if self._handles and current is not None and self._awaits_backward:
            self._awaits_backward = False
            current["backward"] = self._clock.now()
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: current.__setitem__("backward_end", self._clock.now()))

    def _at_gradient(self, name):
        def hook(parameter):
            if self._pass is not None:
                self._pass["ready"][name] = self._clock.now()
        return hook


class _HostClock:
    now = staticmethod(time.perf_counter)

    @staticmethod
    def resolved(record):
        return record


class _DeviceClock:
    """Moments of the device's current stream."""

    def __init__(self, device):
        self.device = device

    def now(self):
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def resolved(self, record):
        """The record in seconds after its begin."""
        torch.accelerator.synchronize(self.device)
        begin = record["begin"]

        def seconds(moment):
            if isinstance(moment, dict):
                return {name: seconds(inner) for name, inner in moment.items()}
            return begin.elapsed_time(moment) / 1e3
        return seconds(record)


def _clock_of(model):
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return _HostClock() if device.type == "cpu" else _DeviceClock(device)


def communicates(parameter):
    return parameter.requires_grad and parameter.numel() > 0


def tensors_in(output):
    """The tensors of a model's output, whatever holds them."""
    leaves = _pytree.tree_leaves(output)
    found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if found:
        return found
    return [value for leaf in leaves if hasattr(leaf, "__dict__") for value in vars(leaf).values()
            if isinstance(value, torch.Tensor)]


def layers_of(model, ran, wanted=None):
    """{module name: [parameter names]} in forward order. `ran`: the modules whose forward ran, in that order. A parameter
    that several modules own counts to the first of them that runs, whichever it is named after. `wanted`: names of
    parameters, which may be frozen for a while; by default of all that require a gradient."""
    layers = {name: [] for name in ran}
    order = {name: number for number, name in enumerate(layers)}
    first = {}  # parameter: the first layer that owns it
    for owner, module in model.named_modules():
        while owner not in layers and owner:
            owner = owner.rpartition(".")[0]
        for parameter in module.parameters(recurse=False):
            if owner in layers and (parameter not in first or order[owner] < order[first[parameter]]):
                first[parameter] = owner
    for name, parameter in model.named_parameters():
        if parameter in first and (communicates(parameter) if wanted is None else name in wanted):
            layers[first[parameter]].append(name)
    return {name: tensors for name, tensors in layers.items() if tensors}


def workload_of(model, layers, records, name):
    """(workload, rest in microseconds) from `records`: one dictionary of times in seconds for each iteration, with
    begin, backward, backward_end, end, forward {module: start} and ready {parameter: time}; `rest` is what an iteration
    takes besides forward and backward: the optimizer, the data, the loop. Without records all times are 0."""
    if not layers:
        raise ValueError("nothing to profile: no parameter that requires a gradient is used in the forward")
    durations = [_durations(record, layers) for record in records] or [([0.0] * len(layers), [0.0] * len(layers), 0.0)]
    *typical, rest = (round(1e6 * seconds, 3) for seconds in core.typical_row(
        [*forward, *backward, rest] for forward, backward, rest in durations))
    forward, backward = typical[:len(layers)], typical[len(layers):]
    sizes = dict(model.named_parameters())
    entries = []
    for index, (layer, tensors) in enumerate(layers.items()):
        entries.append({
            "name": layer or type(model).__name__,
            "forward_us": forward[index],
            "backward_us": backward[index],
            "tensors": [{"name": tensor, "numel": sizes[tensor].numel(),
                         "dtype": str(sizes[tensor].dtype).removeprefix("torch.")} for tensor in tensors]})
    return {"version": 1, "name": name, "layers": entries}, rest


def profile(job, name, iterations=20, warm_up=5, on_iteration=None):
    """Train `job` for warm_up + iterations iterations and return (workload, rest in microseconds).

    With a process group the times are those of the slowest rank for each layer, and all ranks must call it; the
    ranks train without exchanging anything.
    """
    with Recorder(job.model) as recorder:
        for number in range(warm_up + iterations):
            if number >= warm_up:
                recorder.begin_iteration()
            inputs, targets = next(job.batches)
            job.optimizer.zero_grad()
            job.loss(job.model(inputs), targets).backward()
            job.optimizer.step()
            recorder.end_iteration()
            if on_iteration:
                on_iteration()
    workload, rest_us = workload_of(job.model, recorder.layers(), recorder.iterations, name)
    return of_slowest(workload, ranks.largest), ranks.largest([rest_us])[0]


def of_slowest(workload, largest):
    """The workload with each time the largest of all ranks, as `largest` finds them for a list of numbers."""
    keys = ("forward_us", "backward_us")
    times = iter(largest([layer[key] for layer in workload["layers"] for key in keys]))
    return {**workload, "layers": [{**layer, **{key: round(next(times), 3) for key in keys}} for layer in workload["layers"]]}


def _durations(record, layers):
    """(forward seconds, backward seconds, rest) of one iteration; both lists in forward order of the layers.

    What runs between two layers counts to the first of them, as does the loss to the last.
    """
    starts = [record["forward"].get(name, record["backward"]) for name in layers]
    starts[0] = min(starts[0], *record["forward"].values())
    ends = starts[1:] + [record["backward"]]
    forward = [max(0.0, end - start) for start, end in zip(starts, ends)]
    backward, before = [], record["backward"]
    for tensors in reversed(layers.values()):
        ready = max([before] + [record["ready"][name] for name in tensors if name in record["ready"]])
        backward.append(ready - before)
        before = ready
    backward[-1] += record["backward_end"] - before
    rest = record["end"] - record["begin"] - sum(forward) - sum(backward)
    return forward, backward[::-1], rest
