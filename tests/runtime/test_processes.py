"""What else a rank's process does: it forks, has other threads, several models, groups of its own."""

import os
import signal
import sys
import threading
import time

import pytest
import torch
from torch import distributed, nn

import ranks
from models import batch, cluster, make_net, make_optimizer, train, workload

SOON_S = 20  # on a busy machine; a rank that hangs does so for minutes


def wrapped(scheme, seed=0, **arguments):
    import gradweave
    from gradweave import core

    model = make_net(seed=seed)
    plan = core.make_plan(workload(), cluster(distributed.get_world_size()), scheme)
    return gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, **arguments)


def parameters_of(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def in_fork(does, leave=sys.exit):
    """What `does` returned in a forked process, which ends by `leave`. Fails if it does not end soon."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(does()).encode())
        except Exception as error:
            os.write(writer, repr(error).encode())
        leave(0)
    os.close(writer)
    deadline = time.monotonic() + SOON_S
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("the child hangs")
        time.sleep(0.02)
    return os.read(reader, 10_000).decode()


def forks(rank):
    return {scheme: forks_under(rank, scheme) for scheme in ("ddp", "dear")}


def forks_under(rank, scheme):
    import gradweave

    model, optimizer = wrapped(scheme)
    session = model.gradweave
    train(model, optimizer, rank, 3)

    def child():
        total = float(parameters_of(model).double().sum())
        x, y = batch(rank, 3)
        nn.functional.cross_entropy(model(x), y).backward()  # in the plain model, which a child may train for itself
        optimizer.step()
        told = []
        for call in (lambda: gradweave.finish(model), lambda: session.finish()):
            try:
                call()
            except ValueError as error:
                told.append("forked from" in str(error))
        return f"{total!r} {told}"

    said = in_fork(child)
    expected = float(parameters_of(model).double().sum())
    train(model, optimizer, rank, 2, first=3)
    gradweave.finish(model)
    return said, f"{expected!r} [True, True]"


def test_a_forked_process_has_the_plain_model_and_ends():
    for found in ranks.start(forks, 2, fresh=True).results():
        for scheme, (said, expected) in found.items():
            assert said == expected, scheme


def forks_an_island(rank, given, between):
    import gradweave

    model = make_net()
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), **given, between=between, timeout=30, report=False)

    def loss_of(step):
        x, y = batch(rank, step)
        return nn.functional.cross_entropy(model(x), y)

    def child():
        loss.backward()
        optimizer.step()
        loss_of(1).backward()
        optimizer.step()
        return "trained"

    loss = loss_of(0)  # a forward before the fork
    said = in_fork(child, os._exit)
    loss.backward()
    optimizer.step()
    steps = model.gradweave.islands.steps
    model.gradweave.close()
    return said, steps


@pytest.mark.parametrize("between", [{"period": 1}, {"average": "gradients"}])
def test_a_process_that_is_forked_from_an_island_trains_for_itself(meeting, between):
    assert ranks.start(forks_an_island, 1, fresh=True, given=meeting.given, between=between).results() == [("trained", 1)]


def loads_in_workers(rank):
    import gradweave

    model, optimizer = wrapped("dear")
    data = torch.utils.data.TensorDataset(*(torch.cat(parts) for parts in zip(*(batch(rank, i) for i in range(4)))))
    for _ in range(2):
        loader = torch.utils.data.DataLoader(data, batch_size=len(data) // 4, num_workers=2,
                                             multiprocessing_context="fork")
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    gradweave.finish(model)
    return parameters_of(model)


def test_loaders_that_fork_their_workers_go_on_working():
    first, second = ranks.run(loads_in_workers, 2, timeout=120)
    assert torch.equal(first, second)


def evaluates_in_another_thread(rank, scheme):
    import gradweave

    model, optimizer = wrapped(scheme)
    train(model, optimizer, rank, 2)
    told = []

    def other(call):
        def run():
            try:
                with torch.no_grad():
                    call()
                told.append("works")
            except ValueError as error:
                told.append(str(error))
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    for call in (lambda: model(batch(rank, 0)[0]), model.state_dict, lambda: list(model.parameters()), model.eval):
        other(call)
        model.train()
        train(model, optimizer, rank, 1, first=2)
    gradweave.finish(model)
    return told, parameters_of(model)


@pytest.mark.parametrize("scheme", ["ddp", "dear"])
def test_a_second_thread_works_or_is_told_what_to_do_and_training_goes_on(scheme):
    (told, first), (_, second) = ranks.run(evaluates_in_another_thread, 2, scheme=scheme)
    assert torch.equal(first, second)
    for text in told:
        assert text == "works" if scheme == "ddp" else "thread other than" in text and "copy.deepcopy(model)" in text, told


def one_of_two_models_ends(rank):
    a, a_optimizer = wrapped("ddp", timeout=60)
    b, b_optimizer = wrapped("ddp", seed=1, timeout=60)
    train(a, a_optimizer, rank, 1)
    if rank == 1:
        a.gradweave.close(ValueError("a bad batch"))
        distributed.distributed_c10d._get_default_store().wait(["told0", "told2"])
        return ""
    begin = time.monotonic()
    try:
        train(b, b_optimizer, rank, 1)
    except RuntimeError as error:
        distributed.distributed_c10d._get_default_store().set(f"told{rank}", "")
        return str(error) if time.monotonic() - begin < SOON_S else "late"
    return "trained"


def test_a_process_with_two_models_has_one_verdict():
    first, _, third = ranks.run(one_of_two_models_ends, 3)
    for text in (first, third):
        assert "rank 1 ended with ValueError: a bad batch" in text, text


def one_of_two_models_waits(rank):
    """Rank 1 comes to nothing; rank 0 waits for it in one model, and so rank 2 for rank 0 in the other."""
    a, a_optimizer = wrapped("ddp", timeout=4)
    b, b_optimizer = wrapped("ddp", seed=1, timeout=3)
    store = distributed.distributed_c10d._get_default_store()
    for first in range(2):
        for model, optimizer in ((a, a_optimizer), (b, b_optimizer)):
            train(model, optimizer, rank, 1, first=first)
    if rank == 1:
        store.wait(["told0", "told2"])
        return ""
    try:
        for model, optimizer in ((a, a_optimizer), (b, b_optimizer))[:: 1 if rank == 0 else -1]:
            train(model, optimizer, rank, 1, first=2)
    except RuntimeError as error:
        store.set(f"told{rank}", "")
        return str(error)
    return "trained"


def test_the_rank_that_is_behind_in_all_models_is_suspected():
    first, _, third = ranks.run(one_of_two_models_waits, 3)
    for text in (first, third):
        assert "suspect: rank 1 (alive" in text, text


def fails_in_finish(rank):
    import gradweave

    begin = time.monotonic()
    try:
        with wrapped("ddp", timeout=60) as (model, optimizer):
            train(model, optimizer, rank, 2)
            if rank == 1:
                model.gradweave.broadcast_buffers = lambda: 1 / 0
            begin = time.monotonic()
    except (RuntimeError, ZeroDivisionError) as error:
        return str(error) if time.monotonic() - begin < SOON_S else "late", model in gradweave.wrapping.sessions
    return "finished"


def test_an_error_in_finish_at_the_end_of_the_block_is_told():
    first, second, third = ranks.run(fails_in_finish, 3)
    assert second == ("division by zero", False)
    for text, still_wrapped in (first, third):
        assert "rank 1 ended with ZeroDivisionError" in text and not still_wrapped, text


def two_groups(rank, common):
    import gradweave

    pairs = [distributed.new_group(pair) for pair in ([0, 1], [2, 3])]
    model = make_net()
    if rank == 3:  # slower than the others
        model.wide.register_forward_pre_hook(lambda module, inputs: time.sleep(0.01))
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), "dear", warm_up=1, profile_iterations=2,
                                      process_group=pairs[rank // 2],
                                      plan_group=distributed.group.WORLD if common else None, timeout=60)
    train(model, optimizer, rank, 5)
    gradweave.finish(model)
    session = model.gradweave
    known = session.plan, session.workload, session.cluster
    trained = parameters_of(model)
    if not common:
        return known, trained, ""
    distributed.barrier()  # the end of rank 3 would reach a `finish()` of the other group
    if rank == 3:
        session.close(ValueError("a bad batch"))
        distributed.distributed_c10d._get_default_store().wait([f"told{r}" for r in range(3)])
        return known, trained, ""
    try:
        train(model, optimizer, rank, 1)
        gradweave.finish(model)
    except RuntimeError as error:
        distributed.distributed_c10d._get_default_store().set(f"told{rank}", "")
        return known, trained, str(error)


def test_groups_of_a_job_have_one_plan_and_one_end_on_request():
    found = ranks.run(two_groups, 4, common=True)
    assert len({known for known, _, _ in found}) == 1
    for _, _, text in found[:3]:
        assert "rank 3 ended with ValueError: a bad batch" in text, text
    parameters = [each for _, each, _ in found]
    assert torch.equal(parameters[0], parameters[1]) and torch.equal(parameters[2], parameters[3])
    assert not torch.equal(parameters[0], parameters[2])  # other batches


def test_each_group_plans_for_itself_otherwise():
    first, _, third, _ = ranks.run(two_groups, 4, common=False)
    assert first[0] != third[0]


def wraps_again_and_again(rank):
    import gradweave

    distributed.set_debug_level(distributed.DebugLevel.DETAIL)  # torch's checks stand around Gloo: another backend
    if rank == 0:
        distributed.new_group([0], use_local_synchronization=True)
    group = distributed.new_group([0, 1], backend="gloo")
    for _ in range(3):
        model, optimizer = wrapped("ddp", process_group=group)
        assert not gradweave._native.is_gloo(group, torch.device("cpu"))
        train(model, optimizer, rank, 2)
        gradweave.finish(model)
        model.gradweave.close()
    return parameters_of(model)


def test_groups_of_other_backends_have_names_of_their_own():
    first, second = ranks.run(wraps_again_and_again, 2)
    assert torch.equal(first, second)
