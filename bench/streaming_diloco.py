"""Streaming DiLoCo, written plainly, to compare with: a reference, not a product.

    A. Douillard et al., Streaming DiLoCo with overlapping communication, 2025 (arXiv 2501.18512)

The parameters are cut into fragments. Every `period` local steps each fragment has its turn, evenly spread: what the fragment
has lost since its anchor (the outer gradient, anchor - parameter) is averaged over the ranks while `overlap` local steps go
on; then the outer optimizer, SGD with Nesterov momentum, moves the anchor by it, and the parameters become
mixing * parameter + (1 - mixing) * anchor (the paper's Eq. 3, alpha).

Deviations: fragments are equal slices of all parameters, not strided layers. `four_bits` rounds messages as the
paper's E3M0 does, by a scale for each 256 values, but sends them as float32: for accuracies, not for times.
"""

import torch
from torch import distributed

GROUP, EXPONENTS = 256, 7  # values that share a scale; powers of two of a magnitude, which may be 0 too


def rounded(message):
    """`message` in 4 bits: of each value its sign and the power of two, of the largest in its group, whose logarithm is
    nearest."""
    groups = torch.nn.functional.pad(message, (0, -message.numel() % GROUP)).view(-1, GROUP)
    scale = groups.abs().amax(1, keepdim=True).clamp_min(torch.finfo(message.dtype).tiny)
    exponent = (groups.abs() / scale).log2().round()
    values = torch.where(exponent > -EXPONENTS, groups.sign() * scale * exponent.exp2(), torch.zeros_like(groups))
    return values.flatten()[:message.numel()]


class Fragment:
    """The values from `first` to `last` of all parameters, one after another."""

    def __init__(self, parameters, first, last, four_bits):
        self.four_bits, self.parts, before = four_bits, [], 0
        for parameter in parameters:
            cut = slice(max(first - before, 0), min(last - before, parameter.numel()))
            if cut.start < cut.stop:
                self.parts.append((parameter, cut))
            before += parameter.numel()
        self.anchor = self._flat()
        self.momentum = torch.zeros_like(self.anchor)
        self.message, self.work = None, None

    def _flat(self):
        return torch.cat([parameter.detach().view(-1)[cut] for parameter, cut in self.parts])

    def _write(self, flat):
        for (parameter, cut), values in zip(self.parts, flat.split([cut.stop - cut.start for _, cut in self.parts])):
            parameter.data.view(-1)[cut].copy_(values)

    def send(self):
        self.message = self.anchor - self._flat()
        if self.four_bits:
            self.message = rounded(self.message)
        self.work = distributed.all_reduce(self.message, async_op=True)

    def land(self, learning_rate, momentum, mixing):
        self.work.wait()
        gradient = self.message / distributed.get_world_size()
        self.momentum.mul_(momentum).add_(gradient)
        self.anchor -= learning_rate * (gradient + momentum * self.momentum)
        self._write(mixing * self._flat() + (1 - mixing) * self.anchor)
        self.message = self.work = None

    def average(self):
        """All ranks equal: the mean of their parameters, which is the new anchor."""
        self.anchor = self._flat()
        distributed.all_reduce(self.anchor)
        self.anchor /= distributed.get_world_size()
        self._write(self.anchor)


class StreamingDiLoCo:
    """In place of the local optimizer, in the same loop. Ranks must begin with equal parameters."""

    def __init__(self, parameters, optimizer, period, fragments=4, overlap=1, learning_rate=0.7, momentum=0.9, mixing=0.5,
                 four_bits=False):
        if not 1 <= overlap <= period or fragments > period:
            raise ValueError(f"StreamingDiLoCo: overlap {overlap} and {fragments} fragments have to fit into {period} steps")
        self.optimizer, self.period, self.overlap = optimizer, period, overlap
        self.outer = learning_rate, momentum, mixing
        parameters = list(parameters)
        total = sum(parameter.numel() for parameter in parameters)
        ends = [total * number // fragments for number in range(fragments + 1)]
        self.fragments = [Fragment(parameters, first, last, four_bits) for first, last in zip(ends, ends[1:]) if first < last]
        self.steps = 0

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.optimizer.step()
        self.steps += 1
        for number, fragment in enumerate(self.fragments):
            turn = self.steps + number * self.period // len(self.fragments)
            if fragment.work and turn % self.period == self.overlap % self.period:
                fragment.land(*self.outer)
            if turn % self.period == 0:
                fragment.send()

    def finish(self):
        """Lands what is on its way and makes all ranks equal. Collective."""
        for fragment in self.fragments:
            if fragment.work:
                fragment.land(*self.outer)
            fragment.average()
