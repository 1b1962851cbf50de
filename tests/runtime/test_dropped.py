"""Models that are dropped without close(): Python's garbage collector finds them, with their groups and threads."""

import copy
import gc
import operator
import os
import threading
import time
import weakref

import pytest
import torch
from torch import distributed

import ranks
import sharded_models
from models import batch, cluster, make_net, make_optimizer, train, workload


def held_by_process(before=None):
    """Threads and open files, once what is dropped has ended; it waits for no more than there were `before`."""
    for thread in threading.enumerate():
        if thread.name == "gradweave close":
            thread.join()
    until = time.monotonic() + 10
    while True:
        held = [len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")]
        if time.monotonic() > until or before is not None and all(map(operator.le, held, before)):
            return held
        if before is None:
            until = min(until, time.monotonic() + 0.5)  # the last of them end by themselves
        time.sleep(0.05)


def plan_for(scheme):
    from gradweave import core

    return core.make_plan(workload(), cluster(2, 0.6), scheme)


def made(how):
    """(model, its optimizer, a scaler), wrapped."""
    import gradweave

    model = make_net()
    optimizer = make_optimizer("sgd", model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if how == "scaler" else None
    options = {"plan": plan_for(how)} if how in ("ddp", "dear", "delayed_averaging") else {
        "scheme": "auto" if how == "followed" else "dear", "warm_up": 1, "profile_iterations": 1}
    model, optimizer = gradweave.wrap(model, optimizer, timeout=20.0, report=False, scaler=scaler, **options)
    return model, optimizer, scaler


def trained(rank, how, steps=4):
    model, optimizer, scaler = made(how)
    if scaler is None:
        train(model, optimizer, rank, steps)
        return model, optimizer
    for step in range(steps):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        scaler.scale(torch.nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
    return model, optimizer


def dropped(rank, how, finish, before=None):
    """Whether what a dropped model had is gone, and what the process has then."""
    import gradweave

    model, optimizer = trained(rank, how)
    beside = [torch.optim.lr_scheduler.StepLR(optimizer, 2), model.module]
    if finish:
        beside.insert(0, copy.deepcopy(model))
        gradweave.finish(model)
    session = model.gradweave
    references = [weakref.ref(each) for each in (model, optimizer, session, session.engine, session._controller,
                                                 session.control.group, session.links[0].group)]
    del session, model, optimizer
    gc.collect()
    assert references[0]() is not None  # beside has model.module
    del beside[-2:]
    time.sleep(0.3 * rank)  # ranks collect at different times
    gc.collect()
    held = held_by_process(before)
    return [reference() is None for reference in references], held


def dropped_again(rank, how, finish):
    lines = ranks.lines_told()
    first, before = dropped(rank, how, finish)
    again, after = dropped(rank, how, finish, before)
    distributed.barrier()
    return first + again, before, after, lines


@pytest.mark.parametrize("how", ["ddp", "dear", "delayed_averaging", "profiled", "followed", "scaler"])
def test_a_dropped_model_is_freed_with_its_groups_and_threads(how):
    for gone, before, after, lines in ranks.run(dropped_again, 2, how=how, finish=True):
        assert all(gone) and lines == [], (gone, lines)
        assert all(map(operator.le, after, before)), (before, after)


def test_updates_that_are_lost_with_a_dropped_model_are_told_once():
    from gradweave.session import DROPPED

    (gone, before, after, lines), (other, _, _, none) = ranks.run(dropped_again, 2, how="dear", finish=False)
    assert all(gone) and all(other) and all(map(operator.le, after, before))
    assert lines == [DROPPED] * 2 and none == [] and "gradweave.finish(model)" in DROPPED


def ended(rank, how, finish):
    """What the log says at the end of the process."""
    import gradweave
    from gradweave import wrapping

    lines = ranks.lines_told()
    model, optimizer = trained(rank, how)
    if finish:
        gradweave.finish(model)
    wrapping._close_all()
    return lines


@pytest.mark.parametrize("how, finish", [("ddp", False), ("delayed_averaging", True), ("delayed_averaging", False)])
def test_a_process_that_ends_without_finish_says_so_where_something_is_lost(how, finish):
    from gradweave.session import ENDED

    loses = how == "delayed_averaging" and not finish
    assert ranks.run(ended, 2, how=how, finish=finish) == [[ENDED] if loses else [], []]


def dropped_on_one(rank):
    """Rank 0 drops its model; the other one keeps it. Both train another one."""
    import gradweave

    model, optimizer = trained(rank, "dear")
    if rank == 0:
        del model, optimizer
        gc.collect()
    another, optimizer_of_another = trained(rank, "dear", 8)
    gradweave.finish(another)
    values = [parameter.detach().clone() for parameter in another.parameters()]
    another.gradweave.close()
    return values


def test_a_rank_that_never_drops_the_model_disturbs_nobody():
    values, others = ranks.run(dropped_on_one, 2)
    assert all(map(torch.equal, values, others))


def in_a_part(rank, which):
    """Trains by what is left of (model, optimizer), which keeps all."""
    import gradweave

    model, optimizer = trained(rank, "dear")
    found = weakref.ref(model)
    if which == "optimizer":
        del model
    else:
        model = model.module
    gc.collect()
    train(found(), optimizer, rank, 3, first=4)
    model = found()
    gradweave.finish(model)
    values = [parameter.detach().clone() for parameter in model.parameters()]
    model.gradweave.close()
    return values, type(model).__mro__[1].__name__, type(optimizer).__mro__[1].__name__


@pytest.mark.parametrize("which", ["optimizer", "module"])
def test_what_is_left_of_a_wrapped_model_keeps_it(which):
    (values, *kinds), (others, *_) = ranks.run(in_a_part, 2, which=which)
    assert all(map(torch.equal, values, others)) and kinds == ["Module", "Optimizer"]


def dropped_shards(rank):
    def drop():
        model = sharded_models.shard(sharded_models.make_stack(), mesh["inside"])
        model, optimizer = sharded_models.wrapped(model, sharded_models.optimizer_of("sgd", model), "dear")
        sharded_models.train(model, optimizer, rank, 4)
        gradweave.finish(model)
        references = [weakref.ref(each) for each in (model, optimizer, model.gradweave, model.gradweave.engine)]
        del model, optimizer
        gc.collect()
        held = held_by_process(before)
        return [reference() is None for reference in references], held

    import gradweave

    mesh, before = sharded_models.mesh_of(), None
    gone, before = drop()
    again, after = drop()
    return gone + again, before, after


def test_dropped_shards_are_freed():
    for gone, before, after in ranks.run(dropped_shards, 4):
        assert all(gone) and all(map(operator.le, after, before)), (gone, before, after)


@pytest.mark.parametrize("average", ["parameters", "gradients"])
def test_a_dropped_model_leaves_the_islands(meeting, average):
    import gradweave

    given = meeting.given | {"island": "alone", "timeout": 30.0, "report": False, "between": {"average": average}}
    held = None
    for _ in range(2):
        model = make_net()
        model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), **given)
        train(model, optimizer, 0, 3)
        references = [weakref.ref(each) for each in (model, model.gradweave, model.gradweave.islands)]
        del model, optimizer
        gc.collect()
        assert [reference() for reference in references] == [None] * 3
        before, held = held, held_by_process(held)
    assert all(map(operator.le, held, before))


def closed_uncollected(rank, count):
    """What the process has after each of so many trainings that were closed, without Python's collector."""
    import gradweave

    gc.collect()
    gc.disable()
    held, kept = [], []
    for _ in range(count):
        model, optimizer = trained(rank, "dear")
        gradweave.finish(model)
        kept.append((model, optimizer, model.gradweave))
        model.gradweave.close()
        held.append(held_by_process(held[0] if held else None))
    return held


def test_close_frees_groups_and_threads_at_once():
    for first, *others in ranks.run(closed_uncollected, 2, count=3):
        assert all(all(map(operator.le, held, first)) for held in others), (first, others)
