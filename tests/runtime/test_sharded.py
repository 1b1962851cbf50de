"""Models whose parameters are sharded inside islands, with averages between them."""

import pytest
import torch
from torch import distributed

import ranks
from models import links_cost
from sharded_models import (OPTIONS, STEPS, averaged, loss_of, make_stack, mesh_of, optimizer_of, shard, shard_blocks, shards,
                            train, unlike, wrapped)


def plainly(rank, mesh, optimizer, steps=STEPS, between=None, **options):
    """The shards that plain FSDP2 ends with, where gradients of shards are averaged between islands."""
    model = shard(make_stack(), mesh["inside"], **options)
    average = averaged(mesh["between"].get_group())
    train(model, optimizer_of(optimizer, model), rank, steps,
          between=lambda model: (average(model), between and between(model)))
    return shards(model)


def by_every_scheme(rank, optimizer):
    """{scheme: (consistency, this rank's shards)} and what plain FSDP2 gives."""
    import gradweave
    from gradweave import core

    links_cost(halves=True)
    mesh, found = mesh_of(), {}
    for row in core.schemes():
        # Of other weights on each island: wrap() makes them the first island's.
        model = shard(make_stack(seed=mesh["between"].get_local_rank()), mesh["inside"])
        model, stepper = wrapped(model, optimizer_of(optimizer, model), row["name"])
        train(model, stepper, rank, STEPS)
        gradweave.finish(model)
        found[row["name"]] = row["consistency"], shards(model)
        model.gradweave.close()
    return found, plainly(rank, mesh, optimizer)


@pytest.mark.parametrize("optimizer", ["sgd", pytest.param("adamw", marks=pytest.mark.slow)])
def test_islands_are_equal_shard_by_shard_and_exact_schemes_have_the_bits_of_fsdp2(optimizer):
    results = ranks.run(by_every_scheme, 4, optimizer=optimizer)
    for rank, (found, plain) in enumerate(results):
        assert len(found) > 15
        for scheme, (consistency, own) in found.items():
            assert unlike(own, results[(rank + 2) % 4][0][scheme][1]) == [], scheme
            if consistency == "exact":
                assert unlike(own, plain) == [], (scheme, rank)


def gathers_ahead(rank, scheme, how):
    """Whether the shards are those of plain FSDP2, where parameters are gathered before their module's forward begins."""
    import gradweave

    def ahead(model):
        if how == "prefetch":
            for module, following in zip([model, *model.blocks], model.blocks):
                module.set_modules_to_forward_prefetch([following])

    links_cost(halves=True)
    mesh, found = mesh_of(), []
    for gradweaves in (False, True):
        model = shard(make_stack(), mesh["inside"], reshard_after_forward=how != "kept")
        ahead(model)
        optimizer = optimizer_of("sgd", model)
        if gradweaves:
            model, optimizer = wrapped(model, optimizer, scheme)
        average = None if gradweaves else averaged(mesh["between"].get_group())
        for step in range(8):
            train(model, optimizer, rank, 1, first=step, between=average)
            if how == "by hand":
                model.blocks[1].unshard()
            elif how == "evaluation":  # after which the outermost module's stay gathered
                with torch.no_grad():
                    model(torch.ones(2, 6))
        if gradweaves:
            gradweave.finish(model)
        model.reshard()
        found.append(shards(model))
    return unlike(*found)


@pytest.mark.parametrize("how", ["prefetch", "by hand", "evaluation", "kept"])
def test_updates_land_before_parameters_are_gathered(how):
    assert ranks.run(gathers_ahead, 4, scheme="dear", how=how) == [[]] * 4


def evaluated_and_finished(rank):
    """What the model gives for one input after finish(), which came after an evaluation."""
    import gradweave

    links_cost()
    model = shard(make_stack(), mesh_of()["inside"])
    model, optimizer = wrapped(model, optimizer_of("sgd", model), "local_sgd", options={"period": 50})
    train(model, optimizer, rank, 5)
    with torch.no_grad():
        before = model(torch.ones(2, 6))
        gradweave.finish(model)
        return before, model(torch.ones(2, 6))


def test_what_was_gathered_before_finish_is_gathered_again():
    results = ranks.run(evaluated_and_finished, 4)
    assert len({tuple(before.flatten().tolist()) for before, _ in results}) == 2  # one for each island
    assert len({tuple(after.flatten().tolist()) for _, after in results}) == 1


def refused(rank, case):
    """The error of wrap()."""
    import gradweave

    mesh = mesh_of()
    pairs = [distributed.new_group(pair) for pair in ([0, 1], [2, 3])]
    model, given = make_stack(), {}
    if case == "all ranks":
        shard(model, distributed.init_device_mesh("cpu", (4,)))
    elif case == "left out":
        shard_blocks(model, mesh["inside"])
    elif case != "some ranks" or rank != 2:
        shard(model, mesh["inside"])
    optimizer = optimizer_of("sgd", model)
    if case == "process_group":
        given = {"process_group": pairs[rank // 2]}
    elif case == "adafactor":
        optimizer = torch.optim.Adafactor(model.parameters())
    elif case == "scaler":
        given = {"scaler": torch.amp.GradScaler("cpu")}
    elif case == "slices":
        given = {"scheme": "covap", "options": {"slices": "on"}}
    try:
        gradweave.wrap(model, optimizer, **given, timeout=30)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("case, says", [
    ("all ranks", "sharded over all 4 ranks, which leaves nothing to average"),
    ("some ranks", "the model is whole on ranks 2"),
    ("process_group", "process_group of rank 0 has the ranks [0, 1], and the same part of the model is held by [0, 2]"),
    ("left out", "parameter 'enter.weight' is whole, while others are sharded by fully_shard()"),
    ("scaler", "with shards, scaler= finds an infinity on some ranks only"),
    ("adafactor", "can't step sharded parameters (a step of Adafactor on DTensors failed"),
    ("slices", "an optimizer that can't step a part of a tensor (SGD steps sharded parameters, each of them whole)")])
def test_what_cant_be_averaged_is_refused_on_every_rank(case, says):
    for text in ranks.run(refused, 4, case=case):
        # The rank whose model is whole sees it where arguments are compared.
        assert says in text or (case == "some ranks" and "parameters differs" in text), text


def clipped(rank, scheme):
    """Whether the shards are those of plain FSDP2 with torch's clipping, and the norms those of whole models."""
    import gradweave

    links_cost(halves=True)
    mesh, norms = mesh_of(), ([], [])

    def by_torch(model):
        norms[0].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).full_tensor().item())

    def by_gradweave(model):
        norms[1].append(gradweave.clip_grad_norm_(model, 0.5).full_tensor().item())

    plain = plainly(rank, mesh, "sgd", between=by_torch)
    model = shard(make_stack(), mesh["inside"])
    model, optimizer = wrapped(model, optimizer_of("sgd", model), scheme)
    train(model, optimizer, rank, STEPS, between=by_gradweave)
    gradweave.finish(model)
    return unlike(shards(model), plain), *norms


@pytest.mark.parametrize("scheme", ["ddp", "dear"])
def test_norms_are_of_the_whole_model(scheme):
    results = ranks.run(clipped, 4, scheme=scheme)
    for differing, by_torch, by_gradweave in results:
        assert differing == [] and by_torch == by_gradweave == results[0][1]
        assert max(by_torch) > 0.5  # else nothing was clipped


def accumulated(rank, how):
    """Whether the shards are those of plain FSDP2 which accumulates over two passes."""
    import contextlib

    import gradweave

    links_cost(halves=True)
    mesh, found = mesh_of(), []
    for gradweaves in (False, True):
        model = shard(make_stack(), mesh["inside"])
        optimizer = optimizer_of("sgd", model)
        if gradweaves:
            model, optimizer = wrapped(model, optimizer, "dear")
        for step in range(STEPS):
            optimizer.zero_grad()
            with model.no_sync() if gradweaves and how == "no_sync" else contextlib.nullcontext():
                if how == "set_requires_gradient_sync":
                    model.set_requires_gradient_sync(False)
                loss_of(model, rank, 2 * step).backward()
            model.set_requires_gradient_sync(True)
            loss_of(model, rank, 2 * step + 1).backward()
            if not gradweaves:
                averaged(mesh["between"].get_group())(model)
            optimizer.step()
        if gradweaves:
            gradweave.finish(model)
        found.append(shards(model))
    return unlike(*found)


@pytest.mark.parametrize("how", ["set_requires_gradient_sync", "no_sync"])
def test_gradients_are_accumulated_as_fsdp2_does(how):
    assert ranks.run(accumulated, 4, how=how) == [[]] * 4


def in_mixed_precision(rank):
    import gradweave
    from torch.distributed.fsdp import MixedPrecisionPolicy

    links_cost(halves=True)
    mesh, policy = mesh_of(), MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(make_stack(), mesh["inside"], mp_policy=policy)
    model, optimizer = wrapped(model, optimizer_of("adamw", model), "dear")
    train(model, optimizer, rank, STEPS)
    gradweave.finish(model)
    return unlike(shards(model), plainly(rank, mesh, "adamw", mp_policy=policy))


def test_policies_of_mixed_precision_stay():
    assert ranks.run(in_mixed_precision, 4) == [[]] * 4


def by_gains(rank, options, moments):
    """The shards, whether they moved, and the plan's hash."""
    import gradweave

    links_cost()
    model = shard(make_stack(), mesh_of()["inside"])
    before = shards(model)
    model, optimizer = wrapped(model, optimizer_of("adamw", model), "delayed_averaging", options=options,
                               moments=moments)
    train(model, optimizer, rank, STEPS)
    gradweave.finish(model)
    after = shards(model)
    held = [name for name, value in after.items() if value.numel() > 0]
    return after, unlike(before, after), held, model.gradweave.plan.to_json()


@pytest.mark.parametrize(("options", "moments"), [
    ({"compressor": "int4"}, "local"), ({"outer_momentum": "0.5"}, "measured"),
    ({"compressor": "int4", "outer_momentum": "0.5", "period": 3}, "measured")])
def test_averages_of_gains_leave_islands_equal(options, moments):
    results = ranks.run(by_gains, 4, options=options, moments=moments)
    assert len({plan for *_, plan in results}) == 1
    for rank, (own, moved, held, _) in enumerate(results):
        assert unlike(own, results[(rank + 2) % 4][0]) == []
        assert moved == held


def killed(rank):
    import os
    import signal
    import time

    links_cost()
    model = shard(make_stack(), mesh_of()["inside"])
    model, optimizer = wrapped(model, optimizer_of("sgd", model), "ddp", timeout=8)
    train(model, optimizer, rank, 5)
    if rank == 3:
        open(os.path.join(os.environ["JOB_FOLDER"], "begun"), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        train(model, optimizer, rank, 2000)
    except RuntimeError as error:
        model.gradweave.close(error)
        torch.save((time.monotonic() - begun, str(error)), os.path.join(os.environ["JOB_FOLDER"], f"raised{rank}"))
        os._exit(0)


def test_a_rank_that_is_killed_ends_all_islands():
    from pathlib import Path

    job = ranks.start(killed, 4)
    for rank in range(3):
        assert job.wait(rank, 60) == 0, job.log(rank)
    for rank in range(3):
        after, text = torch.load(Path(job.folder.name) / f"raised{rank}")
        assert after < 8 + 2, (rank, after, text)
    job.end()


def saved_and_resumed(rank, scheme):
    """Whether a job that goes on from a checkpoint has the shards of one that was not interrupted."""
    import os
    from pathlib import Path

    import gradweave
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    links_cost(halves=True)
    folder = Path(os.environ["JOB_FOLDER"]) / "checkpoint"
    mesh = mesh_of()

    def job(seed):
        model = shard(make_stack(seed), mesh["inside"])
        optimizer = optimizer_of("adamw", model)
        return model, optimizer

    def files(part):  # of one island: under plans that step locally, islands have models of their own
        return folder / f"{part}{mesh['between'].get_local_rank()}"

    model, optimizer = job(0)
    model, optimizer = wrapped(model, optimizer, scheme, options=OPTIONS.get(scheme))
    train(model, optimizer, rank, 7)
    inside = mesh["inside"].get_group()
    checkpoint.save({"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)},
                    checkpoint_id=files("island"), process_group=inside)
    checkpoint.save({"gradweave": model.gradweave}, checkpoint_id=folder / "gradweave")
    train(model, optimizer, rank, 6, first=7)
    gradweave.finish(model)
    uninterrupted = shards(model)
    model.gradweave.close()

    model, optimizer = job(1)
    states = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    checkpoint.load(states, checkpoint_id=files("island"), process_group=inside)
    set_optimizer_state_dict(model, optimizer, states["optimizer"])
    model, optimizer = wrapped(model, optimizer, scheme, options=OPTIONS.get(scheme), broadcast=False)
    model.load_state_dict(states["model"])
    checkpoint.load({"gradweave": model.gradweave}, checkpoint_id=folder / "gradweave")
    train(model, optimizer, rank, 6, first=7)
    gradweave.finish(model)
    return unlike(shards(model), uninterrupted)


@pytest.mark.parametrize("scheme", ["dear", "delayed_averaging"])
def test_a_job_goes_on_from_a_distributed_checkpoint(scheme):
    assert ranks.run(saved_and_resumed, 4, scheme=scheme) == [[]] * 4


def zeroed_in_place(rank, scheme):
    """What differs from plain FSDP2 after a warm-up, and by the same plan from the first step on."""
    import gradweave

    links_cost(halves=True)
    mesh, found, plan = mesh_of(), [], None
    for gradweaves in (True, True, False):
        model = shard(make_stack(width=8), mesh["inside"])
        optimizer = optimizer_of("sgd", model)
        if gradweaves:
            model, optimizer = wrapped(model, optimizer, scheme if plan is None else "auto", plan=plan)
        average = None if gradweaves else averaged(mesh["between"].get_group())
        for step in range(6):
            optimizer.zero_grad(set_to_none=step == 3)
            loss_of(model, rank, step).backward()
            if average is not None:
                average(model)
            optimizer.step()
        if gradweaves:
            gradweave.finish(model)
            plan = model.gradweave.plan
            model.gradweave.close()
        found.append(shards(model))
    return unlike(found[0], found[2]), unlike(found[1], found[2])


@pytest.mark.parametrize("scheme", ["ddp", "dear"])
def test_gradients_may_be_zeroed_in_place(scheme):
    assert ranks.run(zeroed_in_place, 4, scheme=scheme) == [([], [])] * 4


def without_a_root(rank):
    """As by_every_scheme(), where the outermost module is not sharded: each part ends its backward in its own callback."""
    import gradweave
    from torch.distributed.fsdp import fully_shard

    links_cost(halves=True)
    mesh, found = mesh_of(), {}
    for scheme in (None, "ddp", "dear", "local_sgd"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 1))
        for part in (model[0], model[2]):
            fully_shard(part, mesh=mesh["inside"])
        optimizer = optimizer_of("sgd", model)
        if scheme is None:
            train(model, optimizer, rank, STEPS, between=averaged(mesh["between"].get_group()))
        else:
            model, optimizer = wrapped(model, optimizer, scheme)
            train(model, optimizer, rank, STEPS)
            gradweave.finish(model)
        found[scheme] = shards(model)
    return found


def test_gradients_that_come_last_are_waited_for():
    results = ranks.run(without_a_root, 4)
    for rank, found in enumerate(results):
        assert unlike(found["ddp"], found[None]) == unlike(found["dear"], found[None]) == []
        assert unlike(found["local_sgd"], results[(rank + 2) % 4]["local_sgd"]) == []


def in_files(rank, scheme, folder, islands):
    """Train, save and finish; or, with what the job before had in `folder`, go on: (iteration, this rank's shards)."""
    import gradweave
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    links_cost(halves=True)
    mesh = mesh_of(islands)
    model = shard(make_stack(), mesh["inside"])
    optimizer = optimizer_of("adamw", model)
    states = {"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)}
    inside, first = mesh["inside"].get_group(), islands == 2
    if not first:
        checkpoint.load(states, checkpoint_id=f"{folder}/island0", process_group=inside)
        set_optimizer_state_dict(model, optimizer, states["optimizer"])
    model, optimizer = wrapped(model, optimizer, scheme, broadcast=first)
    if first:
        train(model, optimizer, rank, 7)
        if rank < 2:
            checkpoint.save({"model": model.state_dict(), "optimizer": get_optimizer_state_dict(model, optimizer)},
                            checkpoint_id=f"{folder}/island0", process_group=inside)
        checkpoint.save({"gradweave": model.gradweave}, checkpoint_id=f"{folder}/gradweave")
    else:
        model.load_state_dict(states["model"])
        checkpoint.load({"gradweave": model.gradweave.of_ranks(2)}, checkpoint_id=f"{folder}/gradweave")
        begun = shards(model)
        train(model, optimizer, rank, 3, first=7)
    iteration = model.gradweave.engine.iteration
    gradweave.finish(model)
    return iteration, shards(model) if first else begun, shards(model)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["ddp", "local_sgd"])
def test_a_job_of_more_islands_goes_on_where_finish_would_have_ended(scheme, tmp_path):
    before = ranks.run(in_files, 4, scheme=scheme, folder=str(tmp_path), islands=2)
    after = ranks.run(in_files, 6, scheme=scheme, folder=str(tmp_path), islands=3)
    for rank, (iteration, begun, ended) in enumerate(after):
        assert iteration == 10
        assert unlike(begun, before[rank % 2][2]) == []
        assert unlike(ended, after[rank % 2][2]) == []
