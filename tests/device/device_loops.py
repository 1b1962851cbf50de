"""Loops under a plan, each with something that users do: as FEATURES[name](rank, device, scheme, optimizer)."""

import copy

import torch
from torch import distributed, nn

import jobs
from models import batch, cluster, make_optimizer, two_levels, workload

STEPS = 6


class Loop:
    """Trains `steps` iterations; subclasses do more."""

    options, links, concurrency, wrapped, steps = {}, 1, 1, {}, STEPS

    def __init__(self, rank, device, scheme, optimizer):
        from gradweave import core

        self.rank, self.device, self.kind = rank, device, optimizer
        self.plan = core.make_plan(workload(), self.cluster(), scheme, self.options)
        for link in self.plan["links"]:
            if link["concurrency"]:  # 0: unlimited
                link["concurrency"] = max(link["concurrency"], self.concurrency)
        self.groups = [distributed.new_group() for _ in range(self.links)] if self.links > 1 else None

    def cluster(self):
        return cluster(distributed.get_world_size(), 0.6, self.links)

    def wrap(self):
        import gradweave

        model = jobs.net_on(self.device, seed=self.rank)
        optimizer = make_optimizer(self.kind, model)
        self.model, self.optimizer = gradweave.wrap(model, optimizer, plan=self.plan, links=self.groups,
                                                    timeout=30, report=False, **{"moments": "local"} | self.wrapped)

    def loss(self, step):
        x, y = (each.to(self.device) for each in batch(self.rank, step))
        return nn.functional.cross_entropy(self.model(x), y)

    def backward(self, step):
        self.loss(step).backward()

    def step(self, step):
        self.optimizer.zero_grad()
        self.backward(step)
        self.optimizer.step()

    def run(self):
        """What was trained: {name: value}."""
        import gradweave

        self.wrap()
        for step in range(self.steps):
            self.step(step)
        gradweave.finish(self.model)
        found = jobs.values(self.model)
        self.model.gradweave.close()
        return found


class Levels(Loop):
    """Over links inside nodes of two ranks, and between them."""

    def cluster(self):
        return two_levels(distributed.get_world_size(), 2)


class Unfinished(Loop):
    """Closed with ops under way."""

    def run(self):
        self.wrap()
        for step in range(STEPS):
            self.step(step)
        self.model.gradweave.close()


class TwoStreams(Loop):
    """One layer runs on a stream of its own, forward and backward."""

    def wrap(self):
        super().wrap()
        if torch.device(self.device).type == "cpu":
            return
        layer, side = self.model.wide, torch.Stream(device=self.device)
        forward = layer.forward

        def beside(x):
            main = torch.accelerator.current_stream()
            side.wait_stream(main)
            x.record_stream(side)
            with side:
                out = forward(x)
            main.wait_stream(side)
            out.record_stream(main)
            return out

        layer.forward = beside


class Clipped(Loop):
    def backward(self, step):
        import gradweave

        super().backward(step)
        gradweave.clip_grad_norm_(self.model, 0.5)


class Accumulated(Loop):
    def backward(self, step):
        with self.model.no_sync():
            self.loss(100 + step).backward()
        super().backward(step)


class Scaled(Loop):
    """With a loss scale, and an overflow in iteration 2."""

    def wrap(self):
        self.scaler = torch.amp.GradScaler(self.device, growth_interval=2)
        self.wrapped = {"scaler": self.scaler}
        super().wrap()

    def step(self, step):
        self.optimizer.zero_grad()
        loss = self.loss(step) * (float("inf") if step == 2 else 1)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Resumed(Loop):
    """Writes checkpoints between iterations, and goes on from one."""

    def step(self, step):
        super().step(step)
        state = self.model.gradweave.state_dict()
        if step == 3:
            model, optimizer = (copy.deepcopy(each.state_dict()) for each in (self.model, self.optimizer))
            self.model.gradweave.close()
            self.wrap()
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
            self.model.gradweave.load_state_dict(state)


class Replanned(Loop):
    """Another plan comes into force on the way."""

    def step(self, step):
        super().step(step)
        self.change(step)

    def change(self, step):
        from gradweave import core

        if step == 2:
            others = cluster(distributed.get_world_size(), 0.3)
            self.model.gradweave.install(core.make_plan(workload(), others, "ddp", self.options))


class ScaledReplanned(Scaled, Replanned):
    """A plan comes into force where a message has just been left out."""

    def step(self, step):
        Scaled.step(self, step)
        self.change(step)


class Buffers(Loop):
    wrapped = {"broadcast_buffers": True}


class Checked(Loop):
    wrapped = {"check": True}


class TwoLinks(Loop):
    links = 2


class Concurrent(Loop):
    concurrency = 2


class Emulated(Loop):
    """On a link that ends its ops late: threads launch them."""

    concurrency = 3

    def __init__(self, rank, device, scheme, optimizer):
        import gradweave

        super().__init__(rank, device, scheme, optimizer)
        self.groups = [gradweave.EmulatedLink(10, 0.0001)]


class EmulatedWhole(Emulated):
    """Under dear: all gradients are one message, whose halves two threads launch one after the other."""

    options = {"buffer_bytes": 10**9}


class EmulatedScaled(Emulated, Scaled):
    pass


class OwnCollectives(Loop):
    """The loop's own collectives beside the plan's."""

    def step(self, step):
        sum_ = torch.full((3,), float(step), device=self.device)
        work = distributed.all_reduce(sum_, async_op=True)
        super().step(step)
        work.wait()
        distributed.all_reduce(sum_)


def compressed(kind, base):
    return type(f"{base.__name__}{kind}", (base,), {"options": {"compressor": kind}})


FEATURES = {"plain": Loop, "clipped": Clipped, "accumulated": Accumulated, "scaled": Scaled, "resumed": Resumed,
            "replanned": Replanned, "buffers": Buffers, "checked": Checked, "two links": TwoLinks, "concurrent": Concurrent,
            "own": OwnCollectives, "two streams": TwoStreams, "emulated": Emulated}
FEATURES |= {kind: compressed(kind, Loop) for kind in ("fp16", "bf16", "top_k", "random_k", "ok_top_k", "ef_signsgd")}
FEATURES |= {f"{name} {kind}": compressed(kind, base) for kind in ("top_k", "ef_signsgd")
             for name, base in (("emulated", Emulated), ("resumed", Resumed), ("replanned", Replanned), ("scaled", Scaled),
                                ("scaled replanned", ScaledReplanned), ("emulated scaled", EmulatedScaled))}
# Under dear alone; leaving nothing to compare; with four ranks.
UNLIKE = {"emulated whole": EmulatedWhole, "unfinished": Unfinished, "levels": Levels}
