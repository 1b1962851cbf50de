"""Lost peers, where the host waits for no op: what is under way on the accelerator is ended, and every rank raises."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch

import jobs
from models import cluster, make_optimizer, workload

TIMEOUT_S = 3.0
BUSY_S = 5  # that ranks of a busy machine may lie behind


def trains_until_a_peer_is_lost(rank, scheme):
    import gradweave
    from gradweave import core

    model = jobs.net_on("sim", seed=rank)
    plan = core.make_plan(workload(), cluster(2), scheme)
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=TIMEOUT_S, report=False)
    step = 0
    while True:
        jobs.train(model, optimizer, rank, 1, "sim", first=step)
        torch.accelerator.synchronize()  # the host waits in calls that are not Gradweave's
        step += 1
        if step == 5:
            Path(os.environ["JOB_FOLDER"], f"ready{rank}").touch()


@pytest.mark.parametrize("scheme", ["ddp", "dear", "delayed_averaging"])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_the_survivor_ends_in_time_and_names_the_suspect(scheme, fault):
    job = jobs.start(trains_until_a_peer_is_lost, 2, scheme=scheme)
    try:
        for rank in range(2):
            job.wait_for_file(f"ready{rank}")
        job.processes[1].send_signal(fault)
        begin = time.monotonic()
        assert job.wait(0, 60) == 1, job.log(0)
        assert time.monotonic() - begin < TIMEOUT_S + 2 + BUSY_S
        assert re.search(r"communication on link link0 .*suspect: rank 1 \(no sign of life", job.log(0)), job.log(0)
    finally:
        job.end()
