"""What optimizers do, for the Preserver (src/control/gradient_watch.h)."""

import torch


def learning_rates(optimizers, parameters):
    """By parameter; 0 where none of them steps it, or the optimizer has no rate or finds its own."""
    rates = {p: float(group.get("lr") or 0.0)
             for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    return [rates.get(p, 0.0) for p in parameters]


def rule(optimizers):
    """(momentum, dampening, nesterov) of the group with the most momentum; None where it is not known."""
    rules = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if not isinstance(optimizer, torch.optim.SGD):
                return None
            rules.append((float(group["momentum"]), float(group["dampening"]), bool(group["nesterov"])))
    return max(rules)


def moments(optimizers, parameters):
    """(what the optimizer multiplied the learning rate with in its last step, by parameter, the share of it that the gradient
    was). Nothing for optimizers other than SGD: Adam's curvature, divided by second moments that have only begun, tells
    nothing.
    """
    found, share = {}, 0.0
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state, gradient = optimizer.state.get(parameter, {}), parameter.grad
                if gradient is None:
                    continue
                if not isinstance(optimizer, torch.optim.SGD):
                    return [], 0.0
                buffer = state.get("momentum_buffer")
                if buffer is None:
                    found[parameter], share = gradient.clone(), 1.0
                elif group["nesterov"]:
                    found[parameter], share = gradient + group["momentum"] * buffer, 1.0 + group["momentum"]
                else:
                    found[parameter], share = buffer.clone(), 1.0 - group["dampening"]
    return [found.get(p) for p in parameters], share
