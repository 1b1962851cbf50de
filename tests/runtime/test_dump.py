"""What each rank leaves when training can't go on: whole files that say which rank left the common path where."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from torch import distributed

import ranks
from models import batch, cluster, make_net, make_optimizer, train, workload

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("GRADWEAVE_COMMAND", ROOT / "build" / "gradweave"))
TIMEOUT_S = 3.0


def command(*arguments, code=0):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert code is None or done.returncode == code, done.stderr + done.stdout
    return done.stdout


def diff(a, b, code=0):
    return json.loads(command("diff", a, b, "--json", code=code))


def wrapped(scheme, folder, **more):
    import gradweave
    from gradweave import core

    model = make_net()
    plan = core.make_plan(workload(), cluster(distributed.get_world_size()), scheme)
    return gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=TIMEOUT_S, dump=folder, **more)


def trains_on(rank, scheme, folder, raises_in=None, lives_on=False):
    """Until it fails. Rank 1 raises in that iteration, in the forward or the backward."""
    from torch import nn

    with wrapped(scheme, folder) as (model, optimizer):
        for step in range(100_000):
            if step == 6:
                Path(os.environ["JOB_FOLDER"], f"ready{rank}").touch()
            if raises_in and rank == 1 and step == 7:
                fail = ValueError("this rank's own")

                def hook(*_):
                    raise fail
                (model.wide.register_forward_pre_hook if raises_in == "forward" else
                 model.wide.register_full_backward_pre_hook)(hook)
            x, y = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def left_by(job, folder, survivors, codes=(1,)):
    for rank in survivors:
        assert job.wait(rank, 60) in codes, job.log(rank)
    files = sorted(path.name for path in Path(folder).iterdir())
    assert files == [f"rank-{rank}.json" for rank in survivors]  # no half of one beside them
    for name in files:
        command("report", "--timeline", Path(folder, name), "-o", Path(folder, "page.html"))
    return [Path(folder, name) for name in files]


@pytest.mark.parametrize("scheme", ["ddp", "dear"])
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_survivors_of_a_lost_rank_show_the_op_that_held_them_up(fault, scheme, tmp_path):
    folder = tmp_path / "dump"
    job = ranks.start(trains_on, 3, scheme=scheme, folder=str(folder))
    try:
        for rank in range(3):
            job.wait_for_file(f"ready{rank}")
        job.processes[2].send_signal(fault)
        a, b = left_by(job, folder, [0, 1])
    finally:
        job.end()
    found = diff(a, b, code=None)
    stops = [json.loads(path.read_text())["stop"] for path in (a, b)]
    assert [stop["rank"] for stop in stops] == [0, 1]
    verdict, = {stop["verdict"] for stop in stops}
    assert "suspect: rank 2 (no sign of life" in verdict
    heard, = [stop["heard"] for stop in stops if stop["heard"]]  # of the rank that judges
    assert 2 in [other["rank"] for other in heard]
    assert all(other["doing"] and other["ago_us"] >= 0 for other in heard)
    place = found["both_in"] or found["parts"]
    # The lost rank may have sent its part to one of them, which then waits in the next iteration.
    named = [f"(iteration {place['iteration'] + later}, " in verdict for later in (0, 1)]
    assert place["what"].split(" on ")[1] == "link0" and any(named)
    assert f"op '{place['what'].split(' on ')[0]}'" in verdict


@pytest.mark.parametrize("raises_in", ["forward", "backward"])
def test_a_rank_that_raised_is_where_the_others_did_not_find_it(raises_in, tmp_path):
    folder = tmp_path / "dump"
    job = ranks.start(trains_on, 2, scheme="wfbp", folder=str(folder), raises_in=raises_in)
    try:
        other, raised = left_by(job, folder, [0, 1])
    finally:
        job.end()
    for path in (other, raised):
        assert "rank 1 ended with ValueError: this rank's own" in json.loads(path.read_text())["stop"]["verdict"]
    found = diff(other, raised, code=1)
    assert found["parts"]["iteration"] == 7
    assert found["parts"]["a"] in ("began and did not end", "ended") and found["parts"]["b"] == "did not begin"
    # The last layer's gradients are sent first; in the backward those of the layers behind `wide` have left.
    expected = "all_reduce out." if raises_in == "forward" else "all_reduce wide."
    assert found["parts"]["what"].startswith(expected), found
    assert ("iteration 6" if raises_in == "forward" else "backward again of iteration 7") in found["b"]["last"], found
    text = command("diff", other, raised, code=1)
    assert "they differ from iteration 7 on: " + expected in text and "b: did not begin" in text


def takes_more_batches(rank, folder):
    with wrapped("ddp", folder) as (model, optimizer):
        train(model, optimizer, rank, 9 if rank == 0 else 6)


def test_ranks_that_issue_different_ops_part_at_the_first_of_them(tmp_path):
    folder = tmp_path / "dump"
    job = ranks.start(takes_more_batches, 2, folder=str(folder))
    try:
        more, fewer = left_by(job, folder, [0, 1])
    finally:
        job.end()
    found = diff(more, fewer, code=1)
    assert found["parts"]["iteration"] == 6 and found["parts"]["b"] == "did not begin", found
    assert found["b"]["doing"] == "in gradweave.finish() after 6 iterations"


def meets_too_early(rank, folder):
    model, optimizer = wrapped("ddp", folder)
    train(model, optimizer, rank, 3)
    if rank == 0:
        model.gradweave.install(model.gradweave.plan)
    train(model, optimizer, rank, 3)


def test_a_change_of_plan_that_one_rank_alone_makes_is_shown(tmp_path):
    folder = tmp_path / "dump"
    job = ranks.start(meets_too_early, 2, folder=str(folder))
    try:
        changing, training = left_by(job, folder, [0, 1])
    finally:
        job.end()
    found = diff(changing, training, code=1)
    assert found["a"]["doing"] == "in the change of plan after 3 iterations"
    assert found["parts"]["iteration"] == 3 and found["parts"]["a"] == "did not begin"


def trains_twice(rank, folder):
    for path in (folder, None):  # what a first job left there is not mistaken for the second one's
        Path(folder).mkdir(exist_ok=True)
        Path(folder, f"rank-{rank}.json").write_text("{}")
        with wrapped("ddp", path) as (model, optimizer):
            train(model, optimizer, rank, 2)
        assert not path or not Path(folder, f"rank-{rank}.json").exists()
    try:
        wrapped("ddp", Path(folder, f"rank-{rank}.json", "below"))
    except ValueError as error:
        return str(error)


def test_a_job_that_ends_well_leaves_nothing_and_a_folder_that_cannot_be_is_refused(tmp_path):
    for message in ranks.run(trains_twice, 2, folder=str(tmp_path / "dump")):
        assert "Not a directory" in message and "below" in message and "dump=" in message


PROGRAM = ROOT / "build/examples/cpp/train"


@pytest.mark.skipif(not PROGRAM.exists(), reason="cmake --build build --target example_train")
def test_programs_in_cpp_leave_them_too(tmp_path):
    from gradweave.lab.hosts import free_port

    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                   "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    started = [subprocess.Popen([PROGRAM, "--scheme", "ddp", "--dump", tmp_path / "dump", "--iterations", str(count)],
                                env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
               for rank, count in enumerate((30, 25))]
    errors = [process.communicate(timeout=170)[1] for process in started]
    assert [process.returncode for process in started] == [1, 1], errors
    found = diff(tmp_path / "dump/rank-0.json", tmp_path / "dump/rank-1.json", code=1)
    assert found["parts"]["iteration"] == 25 and found["parts"]["b"] == "did not begin"
    assert found["b"]["doing"] == "in Session::finish() after 25 iterations"
