"""Islands that average gradients make each step together: they are equal after each, whoever comes, goes or dies."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

import ranks
from islander import agreed, made, values_of
from models import batch, make_net, make_optimizer

GRADIENTS = {"average": "gradients"}


def file_of(name):
    return Path(os.environ["JOB_FOLDER"]) / name


def in_small_buckets():
    from gradweave import lockstep

    lockstep.BUCKET_BYTES = 1000


def trained(rank, kind, number, given, until, of_samples=None, pace_s=0.0, passes=1):
    """Trains until the file `until` is there. Returns what it ends with, and which of its batches were in which averages."""
    import gradweave

    in_small_buckets()
    model, optimizer, loss = made(kind, rank, number, given | {"island": f"island{number}", "between": GRADIENTS})
    islands, session = model.gradweave.islands, model.gradweave
    if of_samples:
        islands.samples_per_step = of_samples
    first, batches, place, seen, trains = islands.steps, {}, 0, set(), True

    def landed(average, names):
        if trains:
            seen.add(tuple(names))
            batches[average] = (list(names), place)

    islands.on_land(landed)
    begun = values_of(model)
    while not agreed(Path(until).exists()):
        optimizer.zero_grad()
        for accumulates in range(passes - 1):
            with session.no_sync():
                (loss(10_000 * number + place) / passes).backward()
            place += 1
        (loss(10_000 * number + place) / passes).backward()
        optimizer.step()
        place += 1
        time.sleep(pace_s)
        if len(islands.names) == 2 and sum(len(names) == 2 for names, _ in batches.values()) > 8:
            file_of(f"together{rank}").touch()
    trains = False
    gradweave.finish(model)
    found = {"values": values_of(model), "begun": begun, "first": first, "steps": islands.steps, "batches": batches,
             "seen": sorted(seen), "bytes": islands.bytes_sent, "finished_with": islands.finished_with}
    model.gradweave.close()
    return found


def replayed(rank, seed, batches, weights):
    """What one process comes to that computes all that islands have averaged: {number: [(island, its batch), ...]}."""
    model = make_net(seed)
    optimizer = make_optimizer("adamw", model)
    for _, members in sorted(batches.items()):
        total = sum(weights[island] for island, _ in members)
        means = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]
        for island, place in members:
            optimizer.zero_grad()
            x, y = batch(0, 10_000 * island + place)
            nn.functional.cross_entropy(model(x), y).backward()
            for mean, parameter in zip(means, model.parameters()):
                mean += (weights[island] / total) * parameter.grad.double()
        for mean, parameter in zip(means, model.parameters()):
            parameter.grad = mean.float()
        optimizer.step()
    return values_of(model)


def equal(results):
    return all(torch.equal(a, b) for each in results[1:] for a, b in zip(results[0]["values"], each["values"]))


def started(meeting, until, size=1, kind="plain", numbers=(1, 2), **options):
    return [ranks.start(trained, size, kind=kind, number=number, given=meeting.given, until=until, **options)
            for number in numbers]


def test_islands_come_to_the_bits_of_one_process_that_computes_all_their_batches(meeting, tmp_path):
    end, weights = str(tmp_path / "end"), {1: 3.0, 2: 1.0}
    jobs = [ranks.start(trained, 1, kind="plain", number=number, given=meeting.given, until=end, of_samples=weights[number])
            for number in (1, 2)]
    jobs[1].wait_for_file("together0")
    Path(end).touch()
    islands = [job.results()[0] for job in jobs]
    assert equal(islands)
    assert islands[0]["steps"] == islands[1]["steps"]
    first = min((1, 2), key=lambda number: islands[number - 1]["first"])
    batches = {}
    for number, island in enumerate(islands, 1):
        for average, (names, place) in island["batches"].items():
            batches.setdefault(average, []).append((number, place))
            assert f"island{number}" in names
    assert sum(len(members) == 2 for members in batches.values()) > 8
    [replay] = ranks.run(replayed, 1, seed=first, batches=batches, weights=weights)
    assert all(torch.equal(a, b) for a, b in zip(replay, islands[0]["values"]))


@pytest.mark.parametrize("kind, size", [
    ("plain", 2), ("ddp", 2), ("fsdp2", 2), pytest.param("hsdp", 4, marks=pytest.mark.slow),
    pytest.param("tp", 2, marks=pytest.mark.slow)])
def test_one_that_is_killed_comes_back_and_all_are_equal(meeting, tmp_path, kind, size):
    end = str(tmp_path / "end")
    first, second = started(meeting, end, size, kind)
    second.wait_for_file("together0")
    for process in second.processes:
        process.send_signal(signal.SIGKILL)
    second.end()
    [again] = started(meeting, end, size, kind, numbers=(2,))
    again.wait_for_file("together0")
    Path(end).touch()
    islands = [first.results(), again.results()]
    for rank in range(size):
        assert equal([island[rank] for island in islands])
        assert islands[1][rank]["first"] > 8
        assert ("island1", "island2") in islands[0][rank]["seen"]
        assert sorted(islands[0][rank]["finished_with"]) == ["island1", "island2"]
    if kind in ("plain", "ddp"):
        assert all(equal(island) for island in islands)


def test_one_that_finishes_first_ends_with_what_the_others_come_to(meeting, tmp_path):
    ends = [str(tmp_path / name) for name in ("end1", "end2")]
    jobs = [started(meeting, end, numbers=(number,))[0] for number, end in enumerate(ends, 1)]
    jobs[1].wait_for_file("together0")
    Path(ends[0]).touch()
    time.sleep(0.5)
    Path(ends[1]).touch()
    islands = [job.results()[0] for job in jobs]
    assert equal(islands)
    alone = set(islands[1]["batches"]) - {number for number, (names, _) in islands[0]["batches"].items()}
    assert islands[0]["steps"] == islands[1]["steps"]
    assert not torch.equal(islands[0]["begun"][0], islands[0]["values"][0])
    assert alone  # steps of the other one, which the first has taken


def test_gradients_that_accumulate_are_averaged_once(meeting, tmp_path):
    end = str(tmp_path / "end")
    jobs = started(meeting, end, size=2, kind="ddp", passes=3)
    jobs[1].wait_for_file("together0")
    Path(end).touch()
    islands = [job.results() for job in jobs]
    assert equal([rank for island in islands for rank in island])
    places = sorted(place for _, place in islands[1][0]["batches"].values())
    assert all(place % 3 == 2 for place in places)


def stepping_oddly(rank, given, how):
    import gradweave

    model, optimizer, loss = made("plain", rank, 1, given | {"island": "island1", "between": GRADIENTS})
    try:
        if how == "accumulates":
            for step in range(2):
                loss(step).backward()
        elif how == "no_sync":
            with model.gradweave.no_sync():
                loss(0).backward()
            optimizer.step()
        elif how == "scaler":
            scaler = torch.amp.GradScaler("cpu")
            scaler.scale(loss(0)).backward()
        else:
            model.gradweave.islands.wait()
    except gradweave.InvalidInput as error:
        return str(error)
    finally:
        model.gradweave.close()


@pytest.mark.parametrize("how, said", [("accumulates", "all but the last one under model.gradweave.no_sync()"),
                                       ("no_sync", "step() was called without gradients averaged over all islands"),
                                       ("scaler", "give the scaler to wrap(scaler=)"),
                                       ("wait", "make the same number of steps")])
def test_what_would_part_islands_is_an_error(meeting, how, said):
    assert said in ranks.run(stepping_oddly, 1, given=meeting.given, how=how)[0]


def leaves_a_step_out(rank, number, given):
    """What it is told, once an island has left out a step; "" if it goes on alone, since the other was told first."""
    import gradweave

    model, optimizer, loss = made("plain", rank, number, given | {"island": f"island{number}", "between": GRADIENTS})
    islands, together = model.gradweave.islands, 0
    try:
        while together < 3 or len(islands.names) == 2:
            optimizer.zero_grad()
            loss(islands.steps).backward()
            together += len(islands.names) == 2
            if number == 1 and together == 5:
                continue
            optimizer.step()
        return ""
    except gradweave.RuntimeFailure as error:
        return str(error)
    finally:
        model.gradweave.close()


def test_after_a_step_that_one_leaves_out_islands_do_not_go_on_together(meeting):
    jobs = [ranks.start(leaves_a_step_out, 1, number=number, given=meeting.given) for number in (1, 2)]
    said = "".join(told for job in jobs for told in job.results())
    assert "one of them has left out a step after a backward" in said


def goes_on_late(rank, given, steps):
    model, optimizer, loss = made("plain", rank, 1, given | {"island": "island1", "between": GRADIENTS})
    model.gradweave.load_state_dict({"steps": steps})
    for step in range(3):
        loss(step).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = model.gradweave.islands.steps
    model.gradweave.close()
    return found


def test_ranks_that_sum_gradients_compare_any_count_of_steps(meeting):
    steps = 2**24 // 3  # the sum over ranks has no room in float32
    assert ranks.run(goes_on_late, 3, given=meeting.given, steps=steps) == [steps + 3] * 3


def lands_without_being_read(rank):
    """(placement, value) of gradients that are sums still to be taken, of which no rank has sent anything."""
    from gradweave import lockstep
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = distributed.init_device_mesh("cpu", (2,))
    parameters = [nn.Parameter(DTensor.from_local(torch.zeros(shape), mesh, [Replicate()])) for shape in ((3,), ())]
    bucket = lockstep.Bucket(parameters, (rank,), None, 1, sums=False)
    share = torch.zeros(bucket.share)
    for parameter in parameters:
        parameter.grad = DTensor.from_local(torch.ones(parameter.shape), mesh, [Replicate()])
    bucket.read(share, 0)
    for parameter in parameters:
        parameter.grad = DTensor.from_local(torch.ones(parameter.shape), mesh, [Partial()])
    bucket.write(share)
    return [parameter.grad.full_tensor().tolist() for parameter in parameters]


def test_means_that_land_are_not_summed_again():
    assert ranks.run(lands_without_being_read, 2) == [[[1.0] * 3, 1.0]] * 2


def test_options_that_make_no_sense_are_refused(tmp_path):
    import gradweave

    def wrapped(between, model=None, optimizer=None):
        model = model or nn.Linear(2, 2)
        with pytest.raises(gradweave.InvalidInput) as error:
            gradweave.wrap(model, (optimizer or torch.optim.SGD)(model.parameters(), lr=0.1), islands="127.0.0.1:1",
                           key=str(tmp_path / "key"), between=between)
        return str(error.value)

    assert "average is 'moments'; give parameters or gradients" in wrapped({"average": "moments"})
    assert "leave out compressor" in wrapped(GRADIENTS | {"compressor": "int4"})
    assert "LBFGS" in wrapped(GRADIENTS, optimizer=torch.optim.LBFGS)
    assert "sparse=False" in wrapped(GRADIENTS, nn.Embedding(4, 2, sparse=True))


def overflows(rank, given, set_to_none):
    """Steps are left out until the scale is small enough."""
    import gradweave

    model = nn.Linear(4, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120, backoff_factor=2.0**-30)
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), **given, island="island1",
                                      report=False, scaler=scaler, between=GRADIENTS, timeout=30.0)
    for step in range(6):
        optimizer.zero_grad(set_to_none=set_to_none)
        scaler.scale(model(torch.ones(2, 4)).square().mean() * 1e6).backward()
        scaler.step(optimizer)
        scaler.update()
    steps = model.gradweave.islands.steps
    model.gradweave.close()
    return steps


@pytest.mark.parametrize("set_to_none", [True, False])
def test_steps_that_a_loss_scale_leaves_out_may_zero_gradients_in_place(meeting, set_to_none):
    assert 0 < ranks.run(overflows, 1, given=meeting.given, set_to_none=set_to_none)[0] < 6


def comes_as_the_other_finishes(rank, number, given, begun):
    """The second joins in its first backward, as frameworks' loops do: what it has computed there is of other parameters."""
    import gradweave
    from gradweave.settings import Settings
    from gradweave.wrapping import wrap_alone

    model = make_net(number)
    optimizer = make_optimizer("sgd", model)
    settings = dict(given, island=f"island{number}", report=False, timeout=30.0, between=GRADIENTS)
    model, optimizer = (gradweave.wrap(model, optimizer, **settings) if number == 1
                        else wrap_alone(model, optimizer, Settings(**settings)))
    islands, step = model.gradweave.islands, 0

    def train():
        nonlocal step
        optimizer.zero_grad()
        x, y = batch(rank, step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        step += 1
        time.sleep(0.01)

    while len(islands.names) < 2 if number == 1 else step < 20:
        train()
        if step == 5:
            Path(begun).touch()
    gradweave.finish(model)
    found = {"values": values_of(model), "with": islands.finished_with}
    model.gradweave.close()
    return found


def test_one_that_comes_as_all_others_finish_makes_its_first_step_without_a_gradient(meeting, tmp_path):
    begun = tmp_path / "begun"
    first = ranks.start(comes_as_the_other_finishes, 1, number=1, given=meeting.given, begun=str(begun))
    while not begun.exists():
        time.sleep(0.05)
    second = ranks.start(comes_as_the_other_finishes, 1, number=2, given=meeting.given, begun=str(begun))
    islands = [job.results()[0] for job in (first, second)]
    assert equal(islands)
    assert sorted(islands[1]["with"]) == ["island1", "island2"]
