"""Islands that average gradients in loops as others write them: they end equal, or the loop is refused with the remedy."""

import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ranks
from islander import values_of
from models import batch

STEPS = 8


class Odd(nn.Module):
    """Tied weights, dropout, batch norm, and layers that some forwards do not use."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.norm, self.drop, self.reentrant = nn.BatchNorm1d(64), nn.Dropout(0.2), reentrant
        self.wide, self.back, self.out = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 5)
        self.never, self.back.weight = nn.Linear(64, 5), self.wide.weight
        self.at_times, self.uses = nn.Linear(64, 64), False

    def inner(self, x):
        return self.back(torch.relu(self.wide(x)))

    def forward(self, x):
        x = self.norm(x.flatten(1))
        x = self.inner(x) if self.reentrant is None else checkpoint(self.inner, x, use_reentrant=self.reentrant)
        x = self.drop(x)
        return self.out(self.at_times(x) if self.uses else x)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 5), nn.Linear(64, 5)

    def forward(self, x, which):
        return (self.one if which == 0 else self.two)(x.flatten(1))


def stepped(loop):
    """A loop whose backward and step are ordinary but for what `loop` says."""
    def run(rank, number, wrap):
        torch.manual_seed(number)
        model = Odd({"reentrant": True, "not reentrant": False}.get(loop))
        if loop == "compiled in place":
            model.compile(backend="aot_eager")
        if loop == "compiled before":
            model = torch.compile(model, backend="aot_eager")
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) if loop == "scaled" else None
        called, optimizer = wrap(model, torch.optim.AdamW(model.parameters(), lr=0.003), scaler)
        islands = called.gradweave.islands
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
        if loop == "scheduled":
            islands.carry(schedule)
        if loop == "compiled after":
            called = torch.compile(model, backend="aot_eager")
        place, failed = 0, False
        while islands.steps < STEPS or len(islands.names) < 2:
            x, y = batch(rank, 1000 * number + place)
            place += 1
            if loop == "unused":
                model.uses = (place + number) % 2 == 0
            with torch.no_grad():
                model.eval()
                called(x)
                model.train()
            called(x)  # no backward
            loss = nn.functional.cross_entropy(called(x.requires_grad_(loop == "reentrant")), y)
            if loop == "scaled":
                scaler.scale(loss * (float("inf") if place == 3 and number == 2 else 1)).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
            if loop == "scheduled":
                schedule.step()
            optimizer.zero_grad()
            time.sleep(0.002 if len(islands.names) == 2 else 0.05)
        return model, scaler.get_scale() if scaler else None
    return run


def trained(rank, number, given, loop):
    import gradweave
    from gradweave import lockstep

    lockstep.BUCKET_BYTES = 1000
    wrapped = None

    def wrap(model, optimizer, scaler):
        nonlocal wrapped
        wrapped, optimizer = gradweave.wrap(model, optimizer, **given, island=f"island{number}", timeout=30.0, report=False,
                                            scaler=scaler, between={"average": "gradients"})
        return wrapped, optimizer

    model, more = stepped(loop)(rank, number, wrap)
    gradweave.finish(wrapped)
    islands = wrapped.gradweave.islands
    buffers = [each for each in model.buffers() if each.is_floating_point()]
    found = {"values": values_of(model) + buffers, "more": more, "steps": islands.steps, "with": islands.finished_with}
    wrapped.gradweave.close()
    return found


@pytest.mark.parametrize("loop, size", [
    ("scheduled", 1), ("scaled", 1), ("unused", 2), ("reentrant", 1), ("compiled before", 1),
    *(pytest.param(loop, 1, marks=pytest.mark.slow)
      for loop in ("unused", "not reentrant", "compiled in place", "compiled after"))])
def test_islands_of_odd_loops_end_equal(meeting, loop, size):
    jobs = [ranks.start(trained, size, number=number, given=meeting.given, loop=loop) for number in (1, 2)]
    found = [result for job in jobs for result in job.results()]
    for each in found:
        assert all(torch.equal(a, b) for a, b in zip(found[0]["values"], each["values"], strict=True))
        assert each["more"] == found[0]["more"] and each["steps"] == found[0]["steps"]
        assert sorted(each["with"]) == ["island1", "island2"]
