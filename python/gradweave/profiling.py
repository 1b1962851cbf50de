"""Profiles a model on this machine: the workload file's content, from hooks in ordinary iterations."""

import statistics
import time

import torch
from torch import distributed


class Profiler:
    """Records, while it is open, when each layer's forward starts and when its gradients are complete.

    A layer is a module that owns parameters; where its forward never runs (its owner uses its parameters directly)
    they count to the nearest enclosing module that runs. Layers stand in the order in which they first run.
    Call `iteration_started()` before and `iteration_ended()` after each iteration.
    """

    def __init__(self, model):
        self.model = model
        self._handles, self._iterations, self._now = [], [], None

    def __enter__(self):
        for name, module in self.model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._forward_hook(name)))
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                hook = self._gradient_hook(name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
        return self

    def __exit__(self, *_):
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def iteration_started(self):
        self._now = {"begin": time.perf_counter(), "forward": {}, "ready": {}}

    def backward_started(self):
        self._now["backward"] = time.perf_counter()

    def backward_ended(self):
        self._now["backward_end"] = time.perf_counter()

    def iteration_ended(self):
        self._now["end"] = time.perf_counter()
        self._iterations.append(self._now)
        self._now = None

    def workload(self, name):
        """(workload, rest in microseconds): medians over the recorded iterations; `rest` is what an iteration takes
        besides forward and backward: the optimizer, the data, the loop. Errors: ValueError if nothing was recorded."""
        if not self._iterations:
            raise ValueError("nothing to profile: no iteration was recorded")
        return workload_of(self.model, layers_of(self.model, self._iterations[0]["forward"]), self._iterations, name)

    def _forward_hook(self, name):
        def hook(module, inputs):
            if self._now is not None:
                self._now["forward"].setdefault(name, time.perf_counter())
        return hook

    def _gradient_hook(self, name):
        def hook(parameter):
            if self._now is not None:
                self._now["ready"][name] = time.perf_counter()
        return hook


def communicates(parameter):
    return parameter.requires_grad and parameter.numel() > 0


def layers_of(model, started):
    """{module name: [parameter names]} in forward order. `started`: when each module's forward first began. A parameter
    that several modules own counts to the first of them that runs, whichever it is named after."""
    layers = {name: [] for name in sorted(started, key=started.get)}
    order = {name: number for number, name in enumerate(layers)}
    first = {}  # parameter: the first layer that owns it
    for owner, module in model.named_modules():
        while owner not in layers and owner:
            owner = owner.rpartition(".")[0]
        for parameter in module.parameters(recurse=False):
            if owner in layers and (parameter not in first or order[owner] < order[first[parameter]]):
                first[parameter] = owner
    for name, parameter in model.named_parameters():
        if communicates(parameter) and parameter in first:
            layers[first[parameter]].append(name)
    return {name: tensors for name, tensors in layers.items() if tensors}


def workload_of(model, layers, records, name):
    """(workload, rest in microseconds) from `records`: one dictionary of times in seconds for each iteration, with
    begin, backward, backward_end, end, forward {module: start} and ready {parameter: time}. Without records all times
    are 0."""
    if not layers:
        raise ValueError("nothing to profile: no parameter that requires a gradient is used in the forward")
    durations = [_durations(record, layers) for record in records] or [([0.0] * len(layers), [0.0] * len(layers), 0.0)]
    forward, backward, rest = zip(*durations)
    sizes = dict(model.named_parameters())
    entries = []
    for index, (layer, tensors) in enumerate(layers.items()):
        entries.append({
            "name": layer or type(model).__name__,
            "forward_us": _median_us(times[index] for times in forward),
            "backward_us": _median_us(times[index] for times in backward),
            "tensors": [{"name": tensor, "numel": sizes[tensor].numel(),
                         "dtype": str(sizes[tensor].dtype).removeprefix("torch.")} for tensor in tensors]})
    return {"version": 1, "name": name, "layers": entries}, _median_us(rest)


def profile(job, name, iterations=20, warm_up=5, on_iteration=None):
    """Train `job` for warm_up + iterations iterations and return (workload, rest in microseconds).

    With a process group the times are those of the slowest rank for each layer, and all ranks must call it; the
    ranks train without exchanging anything.
    """
    with Profiler(job.model) as profiler:
        for number in range(warm_up + iterations):
            if number >= warm_up:
                profiler.iteration_started()
            inputs, targets = next(job.batches)
            job.optimizer.zero_grad()
            loss = job.loss(job.model(inputs), targets)
            if number >= warm_up:
                profiler.backward_started()
            loss.backward()
            if number >= warm_up:
                profiler.backward_ended()
            job.optimizer.step()
            if number >= warm_up:
                profiler.iteration_ended()
            if on_iteration:
                on_iteration()
    return of_slowest_rank(*profiler.workload(name))


def of_slowest_rank(workload, rest_us, group=None):
    """The workload with each time the largest of all ranks of `group`, by default the default one. Collective if there
    is one."""
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return workload, rest_us
    layers = workload["layers"]
    times = [layer[key] for layer in layers for key in ("forward_us", "backward_us")] + [rest_us]
    times = torch.tensor(times, dtype=torch.float64)
    distributed.all_reduce(times, op=distributed.ReduceOp.MAX, group=group)
    times = [round(value, 3) for value in times.tolist()]
    for index, layer in enumerate(layers):
        layer["forward_us"], layer["backward_us"] = times[2 * index], times[2 * index + 1]
    return workload, times[-1]


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


def _median_us(seconds):
    return round(1e6 * statistics.median(seconds), 3)
