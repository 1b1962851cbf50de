"""gradweave.clip_grad_norm_: as torch's, on the gradients that the coming update will use."""

import torch

from gradweave import _native


def clip_grad_norm_(engine, parameters, max_norm, norm_type, error_if_nonfinite):
    if engine.installed and engine.steps_in_backward:
        raise _native.InvalidInput("clip_grad_norm_: the plan in force steps parameters in the backward, before the "
                                   "norm of the whole gradient is known; choose a scheme that steps in "
                                   "optimizer.step() or in the next forward, such as ddp or dear")
    if not engine.installed or not engine.reduced or not engine.steps_in_forward:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
    parts, whole = [], []
    for parameter, own in zip(parameters, engine.coming_gradients()):
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
