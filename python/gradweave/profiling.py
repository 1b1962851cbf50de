"""Profiles a model on this machine: which layers its forward has, and what each of them takes in ordinary iterations."""

import itertools

import torch
from torch.utils import _pytree

from gradweave import _native, core, ranks
from gradweave._native import InvalidInput
from gradweave.subclasses import Hook


class Hooks:
    """Of a model, between start() and stop()."""

    def __init__(self, model):
        self.model = model
        self._handles = []

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_forward(self, module, call):
        self._handles.append(module.register_forward_pre_hook(Hook(lambda module, inputs: call()), prepend=True))

    def _after_forward(self, call):
        # First of all: what others do at the backward's begin does not count to it.
        self._handles.append(self.model.register_forward_hook(Hook(lambda module, inputs, output: call(output)), prepend=True))


class ForwardOrder(Hooks):
    """Sees in which order modules run in the last forward that is for a backward."""

    def __init__(self, model):
        super().__init__(model)
        self._ran, self._in_forward = {}, False

    def start(self):
        for name, module in self.model.named_modules():
            self._before_forward(module, lambda name=name: self._runs(name))
        self._after_forward(self._ended)

    def layers(self, wanted=None):
        """layers_of() what ran; of the parameters `wanted`, by default all that require a gradient."""
        return layers_of(self.model, list(self._ran), wanted)

    def _runs(self, name):
        if name == "":
            self._in_forward = torch.is_grad_enabled()
            if self._in_forward:
                self._ran = {}
        # Inside the model's forward even without gradients: reentrant checkpointing computes its layers so.
        if self._in_forward:
            self._ran.setdefault(name)

    def _ended(self, output):
        self._in_forward = False


class Profile(Hooks):
    """Times the layers (those of layers_of()) of at most so many iterations of any loop, as an engine times its own
    (src/run/layer_timer.h). On an accelerator times are those of its events, since the host runs ahead."""

    def __init__(self, model, layers, iterations):
        super().__init__(model)
        self._layers = layers
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self._timer = _native.LayerTimer(len(layers), iterations, device)

    def start(self):
        """An iteration begins."""
        timer = self._timer
        timer.begin_iteration()
        self._after_forward(self._forward_ended)
        modules, parameters = dict(self.model.named_modules()), dict(self.model.named_parameters())
        for number, (layer, tensors) in enumerate(self._layers.items()):
            self._before_forward(modules[layer], lambda number=number: timer.layer_started(number))
            for tensor in tensors:
                self._handles.append(parameters[tensor].register_post_accumulate_grad_hook(
                    lambda parameter, number=number: timer.gradient_came(number)))
        # Before the layers' hooks, of which the model itself may have one.
        self._before_forward(self.model, lambda: torch.is_grad_enabled() and timer.forward_begins())

    def iteration_ended(self):
        """It is kept if it had a forward and a backward."""
        self._timer.iteration_ended()

    def workload(self, name, largest=lambda values: values):
        """(core.Workload, rest in microseconds): `rest` is what an iteration takes besides forward and backward: the
        optimizer, the data, the loop. Each time is what `largest` makes of the list of all. Once."""
        forward, backward, rest = self._timer.times()
        times = largest([*forward, *backward, rest])
        layers = len(self._layers)
        timed = workload_of(self.model, self._layers, name).timed(times[:layers], times[layers:2 * layers])
        return timed, round(times[-1] / 1e3, 3)

    def _forward_ended(self, output):
        if torch.is_grad_enabled():
            for tensor in tensors_in(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(self._backward_begins)

    def _backward_begins(self, gradient):
        if self._handles and self._timer.backward_begins():
            torch.autograd.Variable._execution_engine.queue_callback(self._timer.backward_ended)


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


def workload_of(model, layers, name, sizes=None):
    """core.Workload of these layers of the model, as layers_of() has them; its times are 0. `sizes`: {name: tensor}, by
    default the parameters."""
    if not layers:
        raise InvalidInput("nothing to profile: no parameter that requires a gradient is used in the forward")
    sizes = sizes or dict(model.named_parameters())

    def form(tensor):
        shape, dtype = sizes[tensor].shape, sizes[tensor].dtype
        return tensor, list(shape) or [1], str(dtype).removeprefix("torch.")
    return core.Workload.of_layers(name, [(layer or type(model).__name__, [form(tensor) for tensor in tensors])
                                          for layer, tensors in layers.items()])


def profile(job, name, iterations=20, warm_up=5, on_iteration=None, passes=1):
    """Train `job` for warm_up + iterations iterations, at least one to warm up, which shows the layers; return (core.Workload,
    rest in microseconds). Each iteration has as many passes, forward and backward, whose gradients accumulate. Errors:
    InvalidInput if batches run out.

    With a process group the times are those of the slowest rank for each layer, and all ranks must call it; the
    ranks train without exchanging anything.
    """
    def train():
        job.zero_grad()
        batches = list(itertools.islice(job.batches, passes))
        if len(batches) < passes:
            raise InvalidInput(f"the batches ran out: a profile takes {(max(1, warm_up) + iterations) * passes}; give a list "
                               "or a loader, which begins anew, or profile fewer iterations")
        for batch in batches:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise InvalidInput("a batch must be a pair (inputs, targets), for loss(model(inputs), targets): put "
                                   "what differs into the loss or into a model around yours")
            inputs, targets = batch
            job.loss(job.model(inputs), targets).backward()
        job.step()
        if on_iteration:
            on_iteration()

    with ForwardOrder(job.model) as order:
        train()
    for _ in range(1, warm_up):
        train()
    with Profile(job.model, order.layers(), iterations) as found:
        for _ in range(iterations):
            train()
            found.iteration_ended()
    return found.workload(name, ranks.largest)
