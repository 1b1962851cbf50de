"""A rank that is lost, stopped or ended where ranks meet outside the engine's ops: every wait ends with a verdict, in time."""

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

import ranks
from models import batch, make_net, make_optimizer, train

TIMEOUT_S = 3.0
BUSY = 4  # seconds that ranks of a busy machine may lie behind

PLACES = {"groups": "groups.JobRanks.control_group", "broadcast": "agreement.Control.broadcast",
          "probe": "commands.Commands.measure", "profiles": "commands.Commands.look_at_optimizers"}


def strike(place, happens):
    """In place of what is at `place`, `happens` is called."""
    module, *path = place.split(".")
    holder = importlib.import_module(f"gradweave.{module}")
    for name in path[:-1]:
        holder = getattr(holder, name)
    setattr(holder, path[-1], happens)


def ends(rank, place, how):
    import gradweave

    def stop(*arguments, **named):
        Path(os.environ["JOB_FOLDER"], "struck").touch()
        os.kill(os.getpid(), signal.SIGSTOP)

    def fail(*arguments, **named):
        raise KeyError("of rank 1 alone")

    if rank == 1:
        strike(PLACES[place], stop if how == "stop" else fail)
    model = make_net()
    begin = time.monotonic()
    try:
        with gradweave.wrap(model, make_optimizer("sgd", model), "wfbp", warm_up=1, profile_iterations=2,
                            timeout=TIMEOUT_S if how == "stop" else 60) as (model, optimizer):
            for step in range(8):
                begin = time.monotonic()
                train(model, optimizer, rank, 1, first=step)
    except (RuntimeError, KeyError) as error:
        print(f"WAITED {time.monotonic() - begin:.2f} {error}", flush=True)
        if how == "raise":  # lives on
            Path(os.environ["JOB_FOLDER"], f"ended{rank}").touch()
            while len(list(Path(os.environ["JOB_FOLDER"]).glob("ended*"))) < 3:
                time.sleep(0.05)
        os._exit(1)


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_that_stops_in_a_collective_of_the_control_is_named_in_time(place):
    job = ranks.start(ends, 3, place=place, how="stop")
    try:
        job.wait_for_file("struck")
        for rank in (0, 2):
            assert job.wait(rank, 40) == 1, job.log(rank)
            line = [text for text in job.log(rank).splitlines() if text.startswith("WAITED")][0]
            assert "suspect: rank 1 (no sign of life" in line, line
            assert float(line.split()[1]) < TIMEOUT_S + 2 + BUSY, line
    finally:
        job.end()


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_that_raises_there_and_lives_on_is_heard_of_at_once(place):
    job = ranks.start(ends, 3, place=place, how="raise")
    try:
        for rank in range(3):
            assert job.wait(rank, 60) == 1, job.log(rank)
        for rank in (0, 2):
            line = [text for text in job.log(rank).splitlines() if text.startswith("WAITED")][0]
            assert "rank 1 ended with KeyError: 'of rank 1 alone'" in line, line
            assert float(line.split()[1]) < 15, line  # a quarter of the timeout
    finally:
        job.end()


def own_job(rank, port):
    """The default group anew, over a store that no rank hosts."""
    distributed.destroy_process_group()
    store = distributed.TCPStore("127.0.0.1", port, is_master=False)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)


def goes_on_without_the_store(rank, port, comes_back):
    import gradweave

    own_job(rank, port)
    folder = Path(os.environ["JOB_FOLDER"])
    model = make_net()
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), "wfbp", links=[gradweave.EmulatedLink(50, 0.01)],
                                      warm_up=1, profile_iterations=1)
    train(model, optimizer, rank, 6)
    (folder / f"trained{rank}").touch()
    while not (folder / "on").exists():
        time.sleep(0.05)
    train(model, optimizer, rank, 4, first=6)
    try:
        gradweave.finish(model)
    except RuntimeError as error:
        print(f"ERROR {error}", flush=True)
        os._exit(1)
    model.gradweave.close()
    print("FINISHED", flush=True)
    os._exit(0)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_store_that_is_lost_is_warned_of_and_reached_again_or_named(comes_back):
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = store.port
    job = ranks.start(goes_on_without_the_store, 2, port=port, comes_back=comes_back)
    try:
        for rank in range(2):
            job.wait_for_file(f"trained{rank}")
        del store
        time.sleep(0.2)
        if comes_back:
            store = distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        (Path(job.folder.name) / "on").touch()
        for rank in range(2):
            status, log = job.wait(rank, 60), job.log(rank)
            assert f"rank {rank} has lost its connection to the store at 127.0.0.1:{port}" in log, log
            if comes_back:
                assert status == 0 and "FINISHED" in log and f"reaches the store at 127.0.0.1:{port}" in log, log
            else:
                assert status == 1 and f"suspect: the store at 127.0.0.1:{port}" in log, log
    finally:
        job.end()


def pauses(rank, pause_s):
    import gradweave

    model = make_net()
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), "wfbp", links=[gradweave.EmulatedLink(50, 0.01)],
                                      warm_up=1, profile_iterations=1, timeout=60)
    for step in range(3):
        if rank == 1 and step == 1:  # before the change of plan
            Path(os.environ["JOB_FOLDER"], "pausing").touch()
            time.sleep(1)
        train(model, optimizer, rank, 1, first=step)
    gradweave.finish(model)
    return "finished"


@pytest.mark.slow
def test_a_pause_that_is_shorter_than_the_timeout_is_survived():
    job = ranks.start(pauses, 2, pause_s=18)
    try:
        job.wait_for_file("pausing")
        job.processes[1].send_signal(signal.SIGSTOP)
        time.sleep(18)
        job.processes[1].send_signal(signal.SIGCONT)
        assert job.results() == ["finished", "finished"]
    finally:
        job.end()
