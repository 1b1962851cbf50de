"""Averages of what parameters have gained live on the host: the processor's bits, no report, and a host that waits for
messages alone."""

import copy

import pytest
import torch
from torch import distributed, nn

import jobs
from models import batch, cluster, make_net, of_gains, workload

OUTER = {"momentum": 0.9, "learning_rate": 0.7}
PARTS = {"delayed_averaging": {"period": 2}, "local_sgd": {"period": 2}, "dreamddp": {"period": 3},
         "partial_sgd": {"period": 3}}
CODECS = ("int8", "int4", "int2", "ef_signsgd", "top_k")


def plan_of(scheme, compressor, outer, dtype="float32"):
    """The scheme's plan; its averages are of what was gained."""
    from gradweave import core

    load = workload()
    for tensor in (tensor for layer in load["layers"] for tensor in layer["tensors"]):
        tensor["dtype"] = dtype
    plan = core.make_plan(load, cluster(distributed.get_world_size(), 0.6), scheme, PARTS[scheme])
    return of_gains(plan, compressor, outer)


class Loop:
    """A training job on `device` that can be saved, and go on from there."""

    def __init__(self, rank, device, plan, dtype, **wrapped):
        self.rank, self.device, self.plan, self.dtype, self.wrapped = rank, device, plan, dtype, wrapped
        self.step = 0
        self.wrap()

    def wrap(self):
        import gradweave

        model = make_net(self.rank).to(self.device, self.dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, foreach=False)
        self.model, self.optimizer = gradweave.wrap(model, optimizer, plan=self.plan, timeout=60, report=False,
                                                    **self.wrapped)

    def train(self, steps):
        for self.step in range(self.step + 1, self.step + 1 + steps):
            x, y = batch(self.rank, self.step)
            x, y = x.to(self.device, self.dtype), y.to(self.device)
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()

    def resume(self):
        """Goes on from what it has, by way of a checkpoint."""
        states = [copy.deepcopy(each.state_dict()) for each in (self.model, self.optimizer, self.model.gradweave)]
        self.model.gradweave.close()
        self.wrap()
        for each, state in zip((self.model, self.optimizer, self.model.gradweave), states, strict=True):
            each.load_state_dict(state)

    def finish(self):
        import gradweave

        gradweave.finish(self.model)
        return {name: value.clone() for name, value in jobs.values(self.model).items()}


def differing(one, other):
    return [name for name in one if not torch.equal(one[name], other[name])]


def as_on_the_processor(rank, cases, dtype=torch.float32):
    """The cases whose bits differ, or that were reported."""
    from accelerator import native

    wrong = {}
    for scheme, compressor, outer in cases:
        ended = []
        for device in ("cpu", "sim"):
            loop = Loop(rank, device, plan_of(scheme, compressor, outer, str(dtype).split(".")[1]), dtype)
            ends = []
            for steps in (1, 6):
                loop.train(steps)
                ends.append(loop.finish())
            loop.model.gradweave.close()
            ended.append(ends)
        found = [differing(*pair) for pair in zip(*ended, strict=True)]
        if (reports := native.take_reports()) or any(found):
            wrong[scheme, compressor] = found, reports[:2]
    return wrong


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_averages_of_gains_have_the_processors_bits(ranks):
    cases = [(scheme, codec, None) for scheme in PARTS for codec in CODECS]
    cases += [(scheme, codec, OUTER) for scheme in PARTS for codec in (None, "int4", "top_k")]
    assert jobs.run(as_on_the_processor, ranks, cases=cases) == [{}] * ranks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_averages_of_parameters_of_16_bits_have_the_processors_bits(dtype):
    cases = [("delayed_averaging", "int4", None), ("local_sgd", "top_k", OUTER), ("dreamddp", None, OUTER)]
    assert jobs.run(as_on_the_processor, 3, cases=cases, dtype=dtype) == [{}] * 3


def resumed(rank, cases):
    """The cases in which a job that went on from a checkpoint has other bits than one on the processor that did not stop."""
    from accelerator import native

    wrong = {}
    for scheme, compressor, outer in cases:
        plan = plan_of(scheme, compressor, outer)
        whole = Loop(rank, "cpu", plan, torch.float32)
        whole.train(9)
        expected = whole.finish()
        whole.model.gradweave.close()
        loop = Loop(rank, "sim", plan, torch.float32, check=True)
        for _ in range(3):
            loop.train(2)
            loop.resume()
        loop.train(3)
        found = differing(loop.finish(), expected)
        loop.model.gradweave.close()
        if (reports := native.take_reports()) or found:
            wrong[scheme, compressor] = found, reports[:2]
    return wrong


@pytest.mark.parametrize("ranks", [2, 3])
def test_checkpoints_go_on_where_they_were(ranks):
    cases = [("delayed_averaging", "int4", OUTER), ("delayed_averaging", "top_k", None), ("dreamddp", "int8", None)]
    assert jobs.run(resumed, ranks, cases=cases) == [{}] * ranks


def host_waits(rank):
    """How often the host waited for the accelerator in six iterations, and how many messages there were."""
    from accelerator import native

    loop = Loop(rank, "sim", plan_of("local_sgd", "int4", OUTER), torch.float32)
    data = [[each.to("sim") for each in batch(rank, step)] for step in range(10)]

    def train(steps):
        for x, y in data[:steps]:
            loop.optimizer.zero_grad()
            nn.functional.cross_entropy(loop.model(x), y).backward()
            loop.optimizer.step()

    train(4)
    waits, ops = native.host_waits(), loop.model.gradweave.counters["ops"]
    train(6)
    return native.host_waits() - waits, loop.model.gradweave.counters["ops"] - ops


def test_the_host_waits_once_for_each_message():
    for waits, messages in jobs.run(host_waits, 2):
        assert waits == messages > 0


def changed_by_the_loop(rank):
    """What is reported of a loop that changes parameters after step(), once it has asked to."""
    from accelerator import native

    loop = Loop(rank, "sim", plan_of("delayed_averaging", "int4", None), torch.float32)
    for _ in range(6):
        loop.train(1)
        loop.model.gradweave.synchronize()
        with torch.no_grad():
            for parameter in loop.model.parameters():
                parameter.clamp_(-1, 1)
    loop.finish()
    return native.take_reports()


def test_the_loop_may_change_parameters_once_it_has_synchronized():
    assert jobs.run(changed_by_the_loop, 2) == [[], []]
