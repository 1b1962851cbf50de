"""A job that goes on with another number of ranks starts where finish() would have ended, and owes what was left behind."""

import copy
import random

import pytest
import torch
from torch import nn

import gradweave
import ranks
from models import cluster, make_net, make_optimizer, parameters, train, workload
from test_checkpoint import VARIANTS, begin, but, emulated, ended, load, saved

STEPS = 7
FAST = [("ddp", {}), ("dear", {}), ("covap", {"interval": 3}), ("deft", {"correction": "local"}),
        ("deft", {"merge": "mean", "compressor": "ef_signsgd"}), ("delayed_averaging", {}),
        ("delayed_averaging", {"compressor": "int8", "outer_momentum": 0.5}), ("dreamddp", {})]


def all_cases():
    from gradweave import core

    return [(row["name"], {}) for row in core.schemes()] + VARIANTS


def plans(workers, cases):
    """For a link so slow that everything is on its way at an iteration's end."""
    from gradweave import core

    return [core.make_plan(workload(), cluster(workers, 0.6), scheme, options) for scheme, options in cases]


def remains(model):
    return {name: value for name, value in model.gradweave.engine.remains().items() if name != "iteration"}


def before(rank, plans, kind, moments):
    """Of each plan: what a user saves after `moment` iterations; parameters and what is left behind after finish() there."""
    result = []
    for plan, moment in zip(plans, moments):
        model, optimizer = begin(plan, kind, emulated())
        train(model, optimizer, rank, moment)
        data = saved(model, optimizer)
        gradweave.finish(model)
        result.append((data, parameters(model), remains(model)))
        model.gradweave.close()
    return result


def resume(model, optimizer, files, rank=0):
    """What a user does with the files of all ranks. `rank`: whose model and optimizer are loaded."""
    import io

    states = [torch.load(io.BytesIO(data)) for data in files]
    model.load_state_dict(states[rank]["model"])
    optimizer.load_state_dict(states[rank]["optimizer"])
    model.gradweave.load_state_dict([state["gradweave"] for state in states])


def after(rank, plans, kind, files):
    """Of each plan: parameters and what is left behind where training goes on; parameters when it has ended."""
    result = []
    for plan, of_ranks in zip(plans, files):
        model, optimizer = begin(plan, kind, emulated())
        resume(model, optimizer, of_ranks, rank % len(of_ranks))
        begun, left = parameters(model), remains(model)
        train(model, optimizer, rank, STEPS, first=20)
        result.append((begun, left, model.gradweave.engine.iteration, ended(model)))
    return result


def mean_left(of_ranks):
    names = {name for each in of_ranks for name in each if name.startswith("left.")}
    return {name: sum(each.get(name, torch.zeros(())) for each in of_ranks) / len(of_ranks) for name in names}


def distance(found, expected):
    return max((float((found[name] - value).abs().max()) for name, value in expected.items()), default=0.0)


def owed(values, left, rate):
    """Parameters once what is left behind has been applied by plain SGD."""
    return {name: value - rate * left["left." + name].view_as(value) if "left." + name in left else value
            for name, value in values.items()}


def check(case, moment, old, new, bits):
    """`old`: what before() returned, by rank; `new`: after(). `bits`: nothing is compressed, and sums have one order."""
    said = f"{case} at {moment}"
    (begun, left, iteration, end), *others = new
    assert iteration == moment + STEPS, said
    for other in others:
        assert all(torch.equal(other[0][name], value) for name, value in begun.items()), said
        assert all(torch.equal(other[1][name], value) for name, value in left.items()), said
        assert all(torch.equal(other[3][name], value) for name, value in end.items()), said
    finished, left_then = old[0][1], mean_left([each[2] for each in old])
    assert distance(begun, end) > 0, said
    for name, value in old[0][2].items():
        if name.startswith("momentum."):
            assert name in left, said
    left = {name: value for name, value in left.items() if name.startswith("left.")}
    if bits and "compressor" not in case[1]:
        assert all(torch.equal(begun[name], value) for name, value in finished.items()), (said, distance(begun, finished))
    if "outer_momentum" in case[1] and "compressor" in case[1]:
        assert distance(begun, finished) < 2e-3, (said, distance(begun, finished))  # a second encoding, with three ranks
    else:
        assert distance(owed(begun, left, 0.05), owed(finished, left_then, 0.05)) < 2e-6, (
            said, distance(owed(begun, left, 0.05), owed(finished, left_then, 0.05)))


def compare(n, m, cases, kind="plain", seed=0):
    moments = [random.Random(f"{seed} {number}").randrange(1, 14) for number in range(len(cases))]
    old = ranks.run(before, n, timeout=900, plans=plans(n, cases), kind=kind, moments=moments)
    files = [[old[rank][number][0] for rank in range(n)] for number in range(len(cases))]
    new = ranks.run(after, m, timeout=900, plans=plans(m, cases), kind=kind, files=files)
    for number, (case, moment) in enumerate(zip(cases, moments)):
        check(case, moment, [of_rank[number] for of_rank in old], [of_rank[number] for of_rank in new], n == 2)


def test_another_number_of_ranks():
    compare(2, 3, FAST)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("n", "m"), [(2, 1), (2, 3), (3, 2), (3, 1), (1, 2)])
def test_every_scheme(n, m, seed):
    compare(n, m, all_cases(), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sgd", "adamw", "adamw, measured"])
@pytest.mark.parametrize(("n", "m"), [(2, 1), (2, 3), (3, 2)])
def test_momenta(n, m, kind):
    compare(n, m, [case for case in all_cases() if "compressor" not in case[1]], kind, seed=7)


def goes_on_as_ddp(rank, files):
    """Names that differ from DistributedDataParallel's, which begins where the job with other ranks does."""
    plan, = plans(2, [("dear", {})])
    model, optimizer = begin(plan, "sgd", None)
    resume(model, optimizer, files)
    reference = make_net()
    reference.load_state_dict(model.state_dict())
    plain = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch shares its tensors
    train(nn.parallel.DistributedDataParallel(reference), plain, rank, 6)
    train(model, optimizer, rank, 6)
    found = ended(model)
    return [name for name, value in parameters(reference).items() if not torch.equal(found[name], value)]


def test_goes_on_with_the_bits_of_distributed_data_parallel():
    old = ranks.run(before, 3, plans=plans(3, [("ddp", {})]), kind="sgd", moments=[4])
    assert ranks.run(goes_on_as_ddp, 2, files=[of_rank[0][0] for of_rank in old]) == [[], []]


def test_what_an_optimizer_keeps_on_no_rank_has_no_mean():
    from gradweave import checkpoint

    kept = [{"none": None, "step": torch.tensor(float(rank))} for rank in range(3)]
    assert checkpoint._mean([*kept, {"none": None}]) == {"none": None, "step": torch.tensor(0.75)}


def saved_by_torch(rank, folder):
    import warnings

    from torch.distributed import checkpoint

    plan, = plans(2, [("delayed_averaging", {"compressor": "int4"})])
    model, optimizer = begin(plan, "plain", emulated())
    train(model, optimizer, rank, 5)
    with warnings.catch_warnings(action="ignore"):
        checkpoint.save({"model": model.state_dict(), "gradweave": model.gradweave}, checkpoint_id=folder)
    return ended(model)


def loaded_by_torch(rank, folder, ranks_then):
    import warnings

    from torch.distributed import checkpoint

    plan, = plans(3, [("delayed_averaging", {"compressor": "int4"})])
    model, optimizer = begin(plan, "plain", emulated())
    with warnings.catch_warnings(action="ignore"):
        checkpoint.load({"model": model.state_dict()}, checkpoint_id=folder)
        checkpoint.load({"gradweave": model.gradweave.of_ranks(ranks_then)}, checkpoint_id=folder)
    begun = parameters(model)
    train(model, optimizer, rank, 5)
    ended(model)
    return begun


def test_torchs_checkpoints(tmp_path):
    expected, _ = ranks.run(saved_by_torch, 2, folder=tmp_path / "checkpoint")
    for found in ranks.run(loaded_by_torch, 3, folder=tmp_path / "checkpoint", ranks_then=2):
        assert distance(found, expected) < 1e-6


def states_then(rank):
    """Of a job that has still to decide, what it has left behind included; and of one that runs a plan."""
    model = make_net()
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), links=emulated(), warm_up=5, report=False)
    left = {"iteration": torch.tensor(7), "left.out.bias": torch.full((5,), 1.0 + rank)}
    model.gradweave.engine.take_over([left])
    undecided = model.gradweave.state_dict()
    model.gradweave.close()
    plan, = plans(3, [("deft", {})])
    model, optimizer = begin(plan, "sgd", emulated())
    train(model, optimizer, rank, 5)
    decided = model.gradweave.state_dict()
    train(model, optimizer, rank, 1)
    later = model.gradweave.state_dict()
    model.gradweave.close()
    return undecided, decided, later


def given_to_two(rank, undecided, decided, later):
    said = []
    last = decided[2]["rank2"]
    cases = [decided[:2], [decided[0], decided[2], decided[1]], [*decided[:2], decided[1]], [*decided[:2], later[2]],
             [*decided[:2], {"rank2": but(last, job="another")}], decided[0], [*decided[:2], None]]
    for states in cases:
        model = make_net()
        model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), links=emulated(), report=False)
        try:
            model.gradweave.load_state_dict(states)
        except ValueError as error:
            said.append(str(error))
        model.gradweave.close()
    for states in (undecided, [decided, later][rank]):
        model = make_net()
        model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), links=emulated(), report=False)
        try:
            model.gradweave.load_state_dict(states)
            left = remains(model)["left.out.bias"], model.gradweave.engine.iteration
            model.load_state_dict(make_net().state_dict())
        except ValueError as error:
            said.append(str(error))
        model.gradweave.close()
    return said, left


def test_what_does_not_fit_is_refused():
    undecided, decided, later = map(list, zip(*ranks.run(states_then, 3)))
    for said, left in ranks.run(given_to_two, 2, undecided=undecided, decided=decided, later=later):
        missing, order, twice, iteration, job, alone, none, after_load, differ = said
        assert "without rank 2" in missing and "states of all" in missing
        assert "in the order of ranks" in order
        assert "rank 1 is given twice" in twice
        assert "that of rank 2 of iteration 6" in iteration and "rank 0 is of iteration 5" in iteration
        assert "rank 0 and rank 2 are of different jobs" in job
        assert "of rank 0 of 3, without ranks 1 2" in alone
        assert "a list of all" in none
        assert "load model and optimizers first" in after_load
        assert "iteration 5" in differ and "iteration 6" in differ and "what one job has saved" in differ
        assert torch.equal(left[0], torch.full((5,), 2.0)) and left[1] == 7
