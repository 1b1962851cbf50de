"""Models whose parameters are sharded inside an island: DTensors, of fully_shard() or of tensor parallelism. The engine has
each rank's shards, the optimizer the DTensors."""

import functools
import json
import math
import sys

import torch

from gradweave import _native
from gradweave.subclasses import weakly


def is_sharded(tensor):
    """Whether it is a DTensor."""
    return hasattr(tensor, "placements")


def is_partial(tensor):
    """Whether ranks have parts of a sum that is still to be taken."""
    return is_sharded(tensor) and any(placement.is_partial() for placement in tensor.placements)


def local_of(tensor):
    """What this rank has of it; itself if it is whole."""
    return getattr(tensor, "_local_tensor", tensor)


def fsdp_groups(model):
    """What fully_shard() has made of the model: FSDPParamGroups, whose parameters are gathered together."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return []
    states = dict.fromkeys(module._get_fsdp_state() for module in model.modules() if isinstance(module, fsdp.FSDPModule))
    return [group for state in states for group in _groups_of(state)]


def _groups_of(state):
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [state._fsdp_param_group] if state._fsdp_param_group else []  # torch 2.11: one at most


def held_by(model, exclude):
    """What this rank tells the others of its shards, {"with": ranks, "part": text}; None if the model is whole. Afterwards the
    model's parameters are shards, where they were gathered."""
    if not isinstance(model, torch.nn.Module):
        return None
    for group in fsdp_groups(model):
        group._to_sharded()
        for each in group.fsdp_params:
            each.reset_sharded_param()  # as its first forward does: what was loaded may lie elsewhere
    sharded = [p for name, p in model.named_parameters() if is_sharded(p) and not is_named(name, exclude)]
    if not sharded:
        return None
    parts = {(tuple(p.device_mesh.mesh.shape), tuple(p.device_mesh.get_coordinate()), str(p.placements)) for p in sharded}
    ranks = {rank for p in sharded for rank in p.device_mesh.mesh.flatten().tolist()}
    return {"with": sorted(ranks), "part": json.dumps(sorted(parts))}


def is_named(name, names):
    """Whether a parameter or its module is among `names`."""
    return any(name == each or name.startswith(each + ".") for each in names)


class Shard:
    """This rank's shard of a parameter. `tensor` is what the engine has of it: as large as the largest shard, which a plan
    for all ranks is made for, and zero beyond this one's elements. get() and set() are the engine's, of the gradient."""

    def __init__(self, parameter):
        self.parameter = parameter
        self.local = local_of(parameter)
        shape = _largest_shape(parameter)
        self._pads = self.local.numel() < math.prod(shape)
        self.tensor = self._with_room(shape) if self._pads else self.local.detach()
        self._padded = self._head = None  # the gradient, and what the parameter has of it

    @property
    def moved(self):
        """Whether the parameter has got other memory."""
        return local_of(self.parameter) is not self.local

    def get(self):
        if self.parameter.grad is None:
            self._padded = self._head = None
            return None
        local = gradient_of(self.parameter)
        if not self._pads:
            return local
        if local is not self._head:
            self.set(self.laid_out(local))
        return self._padded

    def set(self, gradient):
        self._padded = self._head = None
        if gradient is not None and self._pads:
            self._padded, self._head = gradient, self._of_own(gradient)
            gradient = self._head
        self.parameter.grad = None if gradient is None else self.whole(gradient)

    def whole(self, local):
        """The DTensor, in the parameter's shape, of which this rank has `local`."""
        return _dtensor()(local, self.parameter._spec, requires_grad=False)

    def laid_out(self, value):
        """A copy of `value`, of the parameter's shape or of this rank's part of it, as `tensor` is."""
        value = local_of(value)
        if not self._pads:
            return value.clone()
        padded = torch.zeros_like(self.tensor, dtype=value.dtype)
        self._of_own(padded).copy_(value)
        return padded

    def whole_of(self, part):
        """The DTensor of `part`, which is as `tensor` is, flat."""
        laid_out = part.as_strided(self.tensor.size(), self.tensor.stride(), part.storage_offset())
        return self.whole(self._of_own(laid_out) if self._pads else laid_out)

    def _of_own(self, padded):
        return padded.view(-1)[:self.local.numel()].view(self.local.shape)

    def _with_room(self, shape):
        """The shard's memory and the room behind it. FSDP2's has it; another shard is moved."""
        local, size = self.local, math.prod(shape)
        if local.storage_offset() == 0 and local.untyped_storage().nbytes() == size * local.element_size():
            roomy = local.detach().as_strided((size,), (1,))
        else:
            roomy = local.new_zeros(size)
            self.local = roomy[:local.numel()].view(local.shape).copy_(local)
            self.parameter._local_tensor = self.local
        roomy[local.numel():].zero_()
        # A shard of fewer rows is the beginning of a larger one.
        return roomy.view(shape) if tuple(local.shape[1:]) == shape[1:] else roomy


def gradient_of(parameter):
    """What this rank has of its gradient, which lies as the parameter does afterwards."""
    gradient = parameter.grad
    if is_sharded(parameter) and gradient.placements != parameter.placements:  # sums that are still to be taken
        parameter.grad = gradient = gradient.redistribute(placements=parameter.placements)
    return _waited_for(local_of(gradient))


def shards_of(parameters):
    """{place: Shard} of those that are sharded."""
    return {place: Shard(p) for place, p in enumerate(parameters) if is_sharded(p)}


def beside(value, parameter):
    """What an optimizer keeps of a parameter, as its step makes it, from what this rank has of it: a DTensor, where it is one
    value for each element of a shard."""
    if isinstance(value, torch.Tensor) and value.dim() and value.shape == local_of(parameter).shape:
        return placed_as(value, parameter)
    return value


def placed_as(value, parameter):
    """A gradient of `parameter`, from what this rank has of it."""
    return _dtensor()(value, parameter._spec, requires_grad=False) if is_sharded(parameter) else value


class Islands:
    """Where a session's model meets what shards it."""

    def __init__(self, model, shards, parameters):
        self._shards = shards
        place_of = {p: place for place, p in enumerate(parameters)}
        self._groups = fsdp_groups(model)
        self._places = [[place_of[each.sharded_param] for each in group.fsdp_params if each.sharded_param in place_of]
                        for group in self._groups]
        self._versions = [None] * len(self._groups)  # of shards, when they were gathered
        self._handles = []

    def open(self, engine):
        """From now on the engine is told of gradients, and updates parameters before they are gathered."""
        gradient_came = weakly(self._gradient_came)
        for place, shard in self._shards.items():
            self._handles.append(shard.parameter.register_post_accumulate_grad_hook(
                lambda parameter, place=place: gradient_came(place)))
        for number, group in enumerate(self._groups):
            # Whoever gathers, a forward, a prefetch or the user, calls it. An attribute of the object: gone with close().
            group.unshard = functools.partial(self._gather, number, group.unshard)
        self._engine, self._layers = engine, {}

    def close(self):
        for handle in self._handles:
            handle.remove()
        for group in self._groups if self._handles else ():
            del group.unshard
        self._handles = []

    def set_layers(self, layer_of):
        """{place of a parameter: layer in whose forward the plan in force needs it}."""
        self._layers = {number: sorted({layer_of[place] for place in places if place in layer_of})
                        for number, places in enumerate(self._places)}

    @property
    def reduces(self):
        """Whether the coming backward reduces gradients inside the island: set_requires_gradient_sync()."""
        return all(group.reduce_grads and group.all_reduce_grads for group in self._groups)

    def forward_begins(self):
        """Parameters that were updated since they were gathered are gathered again. Errors: InvalidInput."""
        for shard in self._shards.values():
            if shard.moved:
                raise _native.InvalidInput("a sharded parameter has moved in memory since gradweave.wrap(): move or convert "
                                           "the model first, then wrap it")
        for number, group in enumerate(self._groups):
            if group.is_unsharded:
                self._update(number)
                if self._versions[number] not in (None, self._version(number)):
                    group._to_sharded()

    def _gradient_came(self, place):
        self._engine.gradient_came(place)

    def _gather(self, number, gather, async_op=False):
        self._update(number)
        group = self._groups[number]
        if group.device.type != "cpu" and hasattr(group.comm_ctx, "all_gather_copy_in_stream"):
            # FSDP2 lets it wait for updates before the outermost module's forward alone.
            group.comm_ctx.all_gather_copy_in_stream.wait_stream(torch.accelerator.current_stream(group.device))
        gather(async_op)
        self._versions[number] = self._version(number)

    def _update(self, number):
        for layer in self._layers.get(number, ()):
            self._engine.forward_comes(layer)

    def _version(self, number):
        return [self._shards[place].local._version for place in self._places[number]]


def _largest_shape(parameter):
    """Of the shards of all ranks of an island."""
    shape = list(parameter.shape)
    for size, placement in zip(parameter.device_mesh.mesh.shape, parameter.placements):
        if (dim := getattr(placement, "dim", None)) is not None:
            shape[dim] = -(-shape[dim] // size)
    return tuple(shape)


def _waited_for(tensor):
    # Of a collective of torch's that may be under way.
    return tensor.wait() if hasattr(tensor, "elem") else tensor


@functools.cache
def _dtensor():
    from torch.distributed.tensor import DTensor

    return DTensor
