"""On an accelerator layers take what its stream takes, whatever the host does meanwhile: in a profile and in a wrapped job."""

import time

import torch
from torch import nn

import jobs
from gradweave import profiling
from gradweave.job import Job


class Spend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs, forward_us, backward_us):
        from accelerator import native

        ctx.backward_us = backward_us
        time.sleep(0.001)
        native.spend_us(forward_us)
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        from accelerator import native

        native.spend_us(ctx.backward_us)
        return gradient, None, None


class Timed(nn.Module):
    def __init__(self, forward_us, backward_us):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.times = forward_us, backward_us

    def forward(self, inputs):
        return Spend.apply(self.linear(inputs), *self.times)


def net():
    return nn.Sequential(Timed(40, 120), nn.ReLU(), Timed(100, 20)).to("sim")


def batches():
    while True:
        yield torch.ones(3, 4, device="sim"), torch.zeros(3, 4, device="sim")


def times_of(workload):
    return [(layer["name"], layer["forward_us"], layer["backward_us"]) for layer in workload["layers"]]


def profiled(rank):
    from accelerator import native

    model = net()
    job = Job(model, torch.optim.SGD(model.parameters(), 0.1), nn.functional.mse_loss, batches())
    workload, rest_us = profiling.profile(job, "timed", 3, 1, lambda: native.spend_us(7))
    return times_of(workload), rest_us, native.take_reports()


def wrapped(rank):
    import gradweave
    from accelerator import native

    model = net()
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1), "ddp", warm_up=1, profile_iterations=3,
                                      report=False)
    data = batches()
    for _ in range(6):
        x, y = next(data)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        native.spend_us(7)
    found = times_of(model.gradweave.workload)
    gradweave.finish(model)
    model.gradweave.close()
    return found, native.take_reports()


TIMES = [("0.linear", 40, 120), ("2.linear", 100, 20)]


def test_a_profile_has_the_accelerators_times():
    assert jobs.run(profiled, 1) == [(TIMES, 7, [])]


def test_a_wrapped_job_is_profiled_by_the_accelerators_times():
    assert jobs.run(wrapped, 1) == [(TIMES, [])]
