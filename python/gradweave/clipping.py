"""gradweave.clip_grad_norm_: as torch's, on the gradients that the coming update will use."""

import torch

from gradweave import _native
from gradweave.sharding import is_sharded, local_of


def clip_grad_norm_(engines, chosen, max_norm, norm_type, error_if_nonfinite):
    """`engines`: [(engine, parameters in its order, {place: shard} of those that are sharded)] of the models that are clipped
    together; `chosen`: the parameters to clip, in the order of the norm."""
    if any(engine.installed and engine.steps_in_backward for engine, _, _ in engines):
        raise _native.InvalidInput("clip_grad_norm_: the plan in force steps parameters in the backward, before the "
                                   "norm of the whole gradient is known; choose a scheme that steps in "
                                   "optimizer.step() or in the next forward, such as ddp or dear")
    coming, shard_of = {}, {}
    for engine, parameters, shards in engines:
        if engine.installed and engine.reduced and engine.partial_steps:
            coming |= zip(parameters, engine.coming_gradients())
            shard_of |= {shard.parameter: shard for shard in shards.values()}
    if not coming:
        return torch.nn.utils.clip_grad_norm_(chosen, max_norm, norm_type, error_if_nonfinite)
    parts, whole = [], []
    for parameter in chosen:
        own = coming.get(parameter)
        if own is None and parameter.grad is not None:  # left to others
            own = [local_of(parameter.grad)]
            whole.append(parameter.grad)
        elif own:
            flat = own[0] if len(own) == 1 else torch.cat(own)
            if parameter in shard_of:
                flat = shard_of[parameter].whole_of(flat)
            elif flat.numel() == parameter.numel():
                # In the parameter's shape: a norm of one dimension is summed in another order.
                flat = flat.as_strided(parameter.size(), parameter.stride(), flat.storage_offset())
            whole.append(flat)
        parts.extend(own or ())
    norm = torch.nn.utils.get_total_norm(whole, norm_type, error_if_nonfinite)
    # As torch.nn.utils.clip_grads_with_norm_ does, which asks for parameters.
    known = norm.full_tensor() if is_sharded(norm) else norm
    torch._foreach_mul_(parts, torch.clamp(max_norm / (known + 1e-6), max=1.0))
    return norm
