"""From a module to its layers: execution order, tensors and floating-point operations, on the meta device."""

from dataclasses import dataclass

import torch
from torch import nn

from .language import AttentionCore

# Mean, variance, subtract, scale, shift: one operation each per element.
NORM_FLOPS = 5
SOFTMAX_FLOPS = 5


@dataclass(frozen=True)
class Layer:
    """A module as it runs: its operations, and the tensors of which it is the first user, as (name, numel)."""

    name: str
    forward_flops: int
    backward_flops: int
    tensors: tuple


def forward_flops(module, inputs, output):
    """Operations of one call; a multiplication and an addition count as two."""
    if isinstance(module, nn.Conv2d):
        rows, columns = module.kernel_size
        return 2 * output.numel() * (module.in_channels // module.groups) * rows * columns
    if isinstance(module, nn.Linear):
        return 2 * output.numel() * module.in_features
    if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm, nn.RMSNorm)):
        return NORM_FLOPS * output.numel()
    if isinstance(module, nn.Embedding):
        return output.numel()
    if isinstance(module, AttentionCore):
        query = inputs[0]
        batch, heads, tokens, width = query.shape
        return batch * heads * tokens * tokens * (2 * 2 * width + SOFTMAX_FLOPS)
    return None


def trace(build, input_shape):
    """Layers of build() in the order in which one forward pass runs them.

    input_shape is (B, 3, height, width) for images, (B, T) for tokens. A backward pass costs twice the forward one
    (gradients of the input and of the weight); once where the input needs no gradient. A tensor that several modules
    share belongs to the first that runs. Raises ValueError for a parameter that no counted module uses.
    """
    with torch.device("meta"):
        model = build().eval()
        example = torch.empty(input_shape) if len(input_shape) == 4 else torch.zeros(input_shape, dtype=torch.long)
    names = {id(p): name for name, p in model.named_parameters()}
    owned, layers = set(), []

    def record(name):
        def hook(module, inputs, output):
            flops = forward_flops(module, inputs, output)
            if flops is None:
                return
            tensors = []
            for parameter in module.parameters(recurse=False):
                if id(parameter) not in owned:
                    owned.add(id(parameter))
                    tensors.append((names[id(parameter)], parameter.numel()))
            needs_input_gradient = layers and not isinstance(module, nn.Embedding)
            layers.append(Layer(name, flops, flops * (2 if needs_input_gradient else 1), tuple(tensors)))
        return hook

    for name, module in model.named_modules():
        if not list(module.children()):
            module.register_forward_hook(record(name))
    with torch.no_grad():
        model(example)
    missing = [name for key, name in names.items() if key not in owned]
    if missing:
        raise ValueError(f"no layer uses {missing}")
    return layers


def split_exactly(total, weights):
    """Integers in proportion to the weights whose sum is exactly total: differences of floors of the running sum."""
    whole, running, before, parts = sum(weights), 0, 0, []
    for weight in weights:
        running += weight
        now = total * running // whole
        parts.append(now - before)
        before = now
    return parts


def ddp_buckets(layers, first_bytes=1 << 20, cap_bytes=25 << 20, element_bytes=4):
    """PyTorch's initial buckets: tensors in forward order, a bucket closes once it reaches its cap.

    Returns (forward_flops, backward_flops, numel) per bucket, the first nearest the input. A layer's operations go to
    the bucket of its first tensor; those of a layer without tensors to the last bucket so far.
    """
    def is_full(bucket, is_first):
        return bucket[2] * element_bytes >= (first_bytes if is_first else cap_bytes)

    buckets = [[0, 0, 0]]
    for layer in layers:
        home = None
        for _, numel in layer.tensors:
            if is_full(buckets[-1], len(buckets) == 1):
                buckets.append([0, 0, 0])
            home = home or buckets[-1]
            buckets[-1][2] += numel
        home = home or buckets[-1]
        home[0] += layer.forward_flops
        home[1] += layer.backward_flops
    return [tuple(bucket) for bucket in buckets]
