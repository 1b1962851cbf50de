"""Lost peers and plans that differ: every rank ends soon, with a message that says what, when and who."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

import ranks
from models import batch, cluster, make_net, make_optimizer, train, two_levels, workload

TIMEOUT_S = 3.0
BUSY = 3  # seconds that ranks of a busy machine may lie behind


def trains_until_a_peer_is_lost(rank, scheme, levels=1):
    import gradweave
    from gradweave import core

    model = make_net()
    workers = distributed.get_world_size()
    plan = core.make_plan(workload(), two_levels(workers, 2) if levels == 2 else cluster(workers), scheme)
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=TIMEOUT_S)
    step = 0
    try:
        while True:
            begin = time.monotonic()
            train(model, optimizer, rank, 1, first=step)
            step += 1
            if step == 5:
                Path(os.environ["JOB_FOLDER"], f"ready{rank}").touch()
    except RuntimeError as error:
        print(f"STEP {step} WAITED {time.monotonic() - begin:.2f} ERROR {error}", flush=True)
        raise


@pytest.mark.parametrize("fault, lost, scheme, levels", [
    (signal.SIGKILL, 1, "ddp", 1), (signal.SIGSTOP, 1, "ddp", 1), (signal.SIGSTOP, 3, "delayed_averaging", 1),
    (signal.SIGKILL, 0, "ddp", 1), (signal.SIGSTOP, 0, "ddp", 1), (signal.SIGKILL, 3, "us_byte", 2),
    pytest.param(signal.SIGSTOP, 1, "dear", 2, marks=pytest.mark.slow)])
def test_every_survivor_ends_in_time_and_names_op_iteration_and_suspect(fault, lost, scheme, levels):
    job = ranks.start(trains_until_a_peer_is_lost, 4, scheme=scheme, levels=levels)
    survivors = [rank for rank in range(4) if rank != lost]
    try:
        for rank in range(4):
            job.wait_for_file(f"ready{rank}")
        job.processes[lost].send_signal(fault)
        begin = time.monotonic()
        for rank in survivors:
            assert job.wait(rank, 30) == 1, job.log(rank)
        assert time.monotonic() - begin < TIMEOUT_S + 2 + BUSY + 3  # and an iteration and a process' end
        for rank in survivors:
            line = [text for text in job.log(rank).splitlines() if text.startswith("STEP")][0]
            assert float(line.split()[3]) < TIMEOUT_S + 2 + BUSY, line
            assert re.search("op '(all_reduce|average|reduce_scatter|all_gather) ", line) and "(iteration " in line, line
            # The store is on rank 0: who is lost with it can't be told, only that it is.
            store = r"the store at 127.0.0.1:\d+, which rank 0 hosts by default \("
            suspect = rf"rank {lost} \(no sign of life" if lost else store
            assert re.search(f"suspect: {suspect}", line), (rank, line)
    finally:
        job.end()


def exits_with_ops_under_way(rank, peer_stops):
    import gradweave
    from gradweave import core

    model = make_net()
    plan = core.make_plan(workload(), cluster(2), "p3")  # sends after step(), for the next forward
    links = None if peer_stops else [gradweave.EmulatedLink(60e6, 0)]
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, links=links, timeout=120)
    if peer_stops:
        train(model, optimizer, rank, 1)
    x, y = batch(rank, 1)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    if rank == 1 and peer_stops:
        os.kill(os.getpid(), signal.SIGSTOP)
    loss.backward()
    optimizer.step()
    Path(os.environ["JOB_FOLDER"], f"ready{rank}").touch()
    sys.exit(5)


@pytest.mark.parametrize("peer_stops", [True, False])
def test_an_exit_with_an_error_waits_neither_for_a_stopped_peer_nor_for_a_slow_link(peer_stops):
    job = ranks.start(exits_with_ops_under_way, 2, fresh=True, peer_stops=peer_stops)
    try:
        job.wait_for_file("ready0")
        for rank in [0] if peer_stops else [0, 1]:
            assert job.wait(rank, 40) == 5, job.log(rank)  # 5 s, on a busy machine
    finally:
        job.end()


def test_an_interpreter_ends_by_itself_after_a_lost_peer():
    # What still waits in a backend must not hold it.
    job = ranks.start(trains_until_a_peer_is_lost, 2, fresh=True, scheme="ddp")
    try:
        for rank in range(2):
            job.wait_for_file(f"ready{rank}")
        job.processes[1].send_signal(signal.SIGSTOP)
        assert job.wait(0, 30) == 1 and "suspect: rank 1 (no sign of life" in job.log(0), job.log(0)
    finally:
        job.end()


def differing_plans(rank):
    import gradweave
    from gradweave import core

    model = make_net()
    plan = core.make_plan(workload(), cluster(3), "wfbp" if rank == 2 else "ddp")
    try:
        gradweave.wrap(model, make_optimizer("sgd", model), plan=plan)
    except ValueError as error:
        return str(error)
    return "accepted"


def test_a_plan_that_differs_on_one_rank_is_refused_by_name():
    for message in ranks.run(differing_plans, 3):
        assert "rank 2 differs from ranks 0 1 in plan" in message


def comes_late(rank):
    import gradweave
    from gradweave import core

    model = make_net()
    plan = core.make_plan(workload(), cluster(2), "ddp")
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=TIMEOUT_S)
    store = distributed.distributed_c10d._get_default_store()
    try:
        if rank == 1:
            store.wait(["given up"])
        train(model, optimizer, rank, 1)
    except RuntimeError as error:
        store.set("given up", "")
        return str(error)
    return "accepted"


def test_a_rank_that_does_not_come_to_an_agreement_is_suspected():
    first, second = ranks.run(comes_late, 2)
    waited = re.match(r"rank 0 reports: the agreement on a plan failed after ([\d.]+) s; suspect: rank 1 "
                      r"\(alive, before the backward of iteration 0\)", first)
    assert waited and TIMEOUT_S - 0.1 <= float(waited[1]) < TIMEOUT_S + 1.5, first
    assert second == first


def uneven(rank, scheme):
    import gradweave
    from gradweave import core

    model = make_net()
    plan = core.make_plan(workload(), cluster(3), scheme)
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=60)
    begin = time.monotonic()
    try:
        train(model, optimizer, rank, 9 if rank == 1 else 10)
        gradweave.finish(model)
    except RuntimeError as error:
        return time.monotonic() - begin, str(error)
    return "finished"


@pytest.mark.parametrize("scheme", ["ddp", "us_byte", "partial_sgd", "delayed_averaging"])
def test_ranks_with_uneven_batches_learn_who_is_where(scheme):
    for waited, message in ranks.run(uneven, 3, scheme=scheme):
        assert waited < 30, waited  # half of the timeout, on a busy machine
        assert "rank 1: in gradweave.finish() after 9 iterations" in message, message
        assert "Give all ranks the same number of batches" in message, message


def raises_alone(rank, where):
    import gradweave
    from gradweave import core

    model = make_net()
    plan = core.make_plan(workload(), cluster(3), "ddp")
    try:
        with gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=60) as (model, optimizer):
            train(model, optimizer, rank, 3)
            if rank == 1:
                raise KeyError("a batch")
            begin = time.monotonic()
            train(model, optimizer, rank, 1, first=3) if where == "op" else gradweave.finish(model)
    except (RuntimeError, KeyError) as error:
        return 0 if rank == 1 else time.monotonic() - begin, str(error)
    return "finished"


@pytest.mark.parametrize("where", ["op", "finish"])
def test_an_error_of_one_rank_is_told_to_the_others(where):
    (first, text), (_, own), (last, other) = ranks.run(raises_alone, 3, where=where)
    assert own == "'a batch'"
    assert text == other and "rank 1 ended with KeyError: 'a batch' (before the backward of iteration 3)" in text
    assert max(first, last) < 10  # 2 s, on a busy machine


def checked(rank):
    import gradweave
    from gradweave import core

    model = make_net()
    plan = core.make_plan(workload(), cluster(2), "ddp")
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, check=True)
    train(model, optimizer, rank, 3)
    gradweave.finish(model)
    return model.gradweave.counters["ops"]


def test_the_check_of_every_op_passes_where_plans_agree():
    assert all(ops > 0 for ops in ranks.run(checked, 2))


def other_model(rank):
    import gradweave

    model = torch.nn.Linear(4, 4 + rank)
    try:
        gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    except ValueError as error:
        return str(error)
    return "accepted"


def test_different_models_are_refused():
    for message in ranks.run(other_model, 2):
        assert "rank 1 differs from rank 0 in parameters" in message
