"""Averages of what parameters have gained live on the host: the processor's bits, no report, and a host that waits for messages
alone."""

import copy

import pytest
import torch
from torch import distributed, nn

import jobs
from models import batch, cluster, make_net, make_optimizer, workload

OUTER = {"momentum": 0.9, "learning_rate": 0.7}
PARTS = {"delayed_averaging": {"period": 2}, "local_sgd": {"period": 2}, "dreamddp": {"period": 3}, "partial_sgd": {"period": 3}}
CODECS = ("int8", "int4", "ef_signsgd", "top_k", "random_k", "dgc", "power_sgd", "ok_top_k", "fp16", "bf16", None)


def plan_of(scheme, compressor, outer, dtype="float32"):
    """The scheme's plan; its averages are of what was gained."""
    from gradweave import core

    load = workload()
    for tensor in (tensor for layer in load["layers"] for tensor in layer["tensors"]):
        tensor["dtype"] = dtype
    plan = core.make_plan(load, cluster(distributed.get_world_size(), 0.6), scheme, PARTS[scheme])
    for iteration in plan["period"] + plan.get("prologue", []):
        for op in iteration["ops"]:
            if compressor:
                op |= {"collective": "compressed", "compression": {"name": compressor}}
        for apply in iteration["applies"]:
            if apply["source"] == "averaged_parameter":
                apply["mode"] = "correct"
    if outer:
        plan["outer"] = outer
    return plan


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
        self.model, self.optimizer = gradweave.wrap(model, optimizer, plan=self.plan, timeout=60, report=False, **self.wrapped)

    def train(self, steps):
        for self.step in range(self.step + 1, self.step + 1 + steps):
            x, y = batch(self.rank, self.step)
            x, y = x.to(self.device, self.dtype), y.to(self.device)
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()

    def resume(self, device=None):
        """Goes on from what it has, by way of a checkpoint, on another device if one is given."""
        states = [copy.deepcopy(each.state_dict()) for each in (self.model, self.optimizer)]
        engine = self.model.gradweave.state_dict()
        self.model.gradweave.close()
        self.device = device or self.device
        self.wrap()
        self.model.load_state_dict(states[0])
        self.optimizer.load_state_dict(states[1])
        self.model.gradweave.load_state_dict(engine)

    def finish(self):
        import gradweave

        gradweave.finish(self.model)
        return jobs.values(self.model)


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


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("scheme", PARTS)
def test_averages_of_gains_have_the_processors_bits(scheme, ranks):
    cases = [(scheme, codec, None) for codec in CODECS if codec] + [(scheme, codec, OUTER) for codec in (None, "int4", "top_k")]
    assert jobs.run(as_on_the_processor, ranks, cases=cases) == [{}] * ranks
