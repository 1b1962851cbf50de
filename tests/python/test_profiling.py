"""The profiler finds the layers, their tensors and their times as they really are."""

import time

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradweave import profiling
from gradweave.job import Job


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, forward_s, backward_s):
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Timed(nn.Module):
    """A linear layer that takes a known time in each direction."""

    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.times = forward_s, backward_s

    def forward(self, inputs):
        # In backward the sleep runs before the parameters' gradients, in forward after the layer has started.
        return Slow.apply(self.linear(inputs), *self.times)


def _job(model, width=4):
    def batches():
        while True:
            yield torch.randn(3, width), torch.zeros(3, dtype=torch.long)
    return Job(model, torch.optim.SGD(model.parameters(), lr=0.01), nn.functional.cross_entropy, batches())


def test_times_and_tensors_are_those_of_the_layers():
    model = nn.Sequential(Timed(0.04, 0.12), nn.ReLU(), Timed(0.10, 0.02))
    job = _job(model)
    begin = time.perf_counter()
    workload, rest = profiling.profile(job, "timed", iterations=1, warm_up=1)
    whole_ms = 1e3 * (time.perf_counter() - begin)
    first, second = workload["layers"]
    assert [first["name"], second["name"]] == ["0.linear", "2.linear"]
    assert [tensor["numel"] for tensor in first["tensors"]] == [16, 4]
    assert first["tensors"][0] == {"name": "0.linear.weight", "numel": 16, "dtype": "float32", "shape": [4, 4]}
    # A sleep takes at least its time, and every moment counts once.
    for layer, forward, backward in ((first, 40, 120), (second, 100, 20)):
        assert forward <= layer["forward_us"] / 1e3 and backward <= layer["backward_us"] / 1e3
    counted_us = sum(layer["forward_us"] + layer["backward_us"] for layer in (first, second)) + rest
    assert rest > 0 and 280 <= counted_us / 1e3 <= whole_ms


def test_of_passes_that_accumulate_the_first_forward_and_the_last_backward_count():
    model = nn.Sequential(Timed(0.02, 0.06), nn.ReLU(), Timed(0.05, 0.01))
    workload, _ = profiling.profile(_job(model), "accumulated", iterations=1, warm_up=1, passes=3)
    first, second = [(layer["forward_us"] / 1e3, layer["backward_us"] / 1e3) for layer in workload["layers"]]
    assert 20 <= first[0] < 70 and 60 <= first[1] < 130
    # From its first forward to its last backward: two whole passes of 140 ms, and a forward of its own.
    assert 280 + 50 <= second[0] and 10 <= second[1] < 60


def test_layers_stand_in_the_order_in_which_they_run():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, inputs):
            return self.last(self.first(inputs))

    workload, _ = profiling.profile(_job(Backwards()), "backwards", iterations=2, warm_up=1)
    assert [layer["name"] for layer in workload["layers"]] == ["first", "last"]


def test_a_module_whose_forward_never_runs_counts_to_the_one_around_it():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, inputs):
            return self.attention(inputs, inputs, inputs)[0]

    workload, _ = profiling.profile(_job(Attention()), "attention", iterations=2, warm_up=1)
    tensors = {tensor["name"] for layer in workload["layers"] for tensor in layer["tensors"]}
    assert tensors == {name for name, _ in Attention().named_parameters()}


def test_shared_and_unused_parameters_appear_once_and_frozen_ones_not_at_all():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.unused, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.two = self.one
            self.frozen.requires_grad_(False)

        def forward(self, inputs):
            return self.two(self.frozen(self.one(inputs)))

    workload, _ = profiling.profile(_job(Shared()), "shared", iterations=2, warm_up=1)
    names = [tensor["name"] for layer in workload["layers"] for tensor in layer["tensors"]]
    assert sorted(names) == ["one.bias", "one.weight", "unused.bias", "unused.weight"]


def test_the_profiler_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4))
    profiling.profile(_job(model), "plain", iterations=1, warm_up=1)
    assert not model[0]._forward_pre_hooks
    assert not (model[0].weight._post_accumulate_grad_hooks or {})


def test_layers_that_are_computed_again_in_the_backward_keep_their_places():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))

        def forward(self, inputs):
            inputs = inputs.requires_grad_()
            for part in self.parts:
                inputs = checkpoint(part, inputs, use_reentrant=True)
            return inputs

    workload, _ = profiling.profile(_job(Checkpointed()), "checkpointed", iterations=2, warm_up=1)
    assert [layer["name"] for layer in workload["layers"]] == ["parts.0.0", "parts.0.1", "parts.1.0", "parts.1.1"]
