"""A job that goes on from its checkpoint has the bits of one that was never interrupted: every scheme, at any iteration."""

import copy
import io
import random

import pytest
import torch

import gradweave
import ranks
from models import batch, cluster, make_net, make_optimizer, parameters, train, workload

STEPS = 14
# Besides every scheme as it comes.
VARIANTS = [
    ("ddp", {"compressor": "int4"}), ("ddp", {"compressor": "dgc", "compressor_density": 0.05, "compressor_momentum": 0}),
    ("ddp", {"compressor": "ok_top_k", "compressor_density": 0.05}), ("ddp", {"compressor": "power_sgd"}),
    ("us_byte", {"compressor": "top_k"}), ("dear", {"compressor": "int8"}),
    ("deft", {"merge": "mean", "compressor": "ef_signsgd"}), ("deft", {"correction": "local"}), ("covap", {"interval": 3}),
    ("delayed_averaging", {"compressor": "int4"}),
    ("delayed_averaging", {"compressor": "top_k", "compressor_density": 0.2}),
    ("delayed_averaging", {"compressor": "int8", "outer_momentum": 0.5}), ("local_sgd", {"period": 3, "compressor": "int4"}),
    ("partial_sgd", {"compressor": "ef_signsgd"}), ("dreamddp", {"outer_momentum": 0.5}),
]


TWO_STAGES = [case for case in VARIANTS if case[1].get("compressor") in ("int4", "int8")]


def plans(workers, cases=None):
    """Of every scheme and variant, or of some, on a link so slow that everything is on its way at an iteration's end."""
    from gradweave import core

    cases = cases or [(row["name"], {}) for row in core.schemes()] + VARIANTS
    return [core.make_plan(workload(), cluster(workers, 0.6), scheme, options) for scheme, options in cases]


def begin(plan, kind, links):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05) if kind == "plain" else make_optimizer(kind, model)
    return gradweave.wrap(model, optimizer, plan=plan, links=links,
                          moments="local" if kind == "adamw, local" else "measured")


def emulated():
    """Slower than the loop, so that ops are under way when a checkpoint is taken."""
    return [gradweave.EmulatedLink(200, 0.05, name="link0")]


def saved(model, optimizer):
    """What a user writes to a file."""
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "gradweave": model.gradweave.state_dict()}, file)
    return file.getvalue()


def load(model, optimizer, data):
    state = torch.load(io.BytesIO(data))  # with weights_only, torch's default
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    model.gradweave.load_state_dict(state["gradweave"])


def ended(model):
    gradweave.finish(model)
    result = parameters(model)
    model.gradweave.close()
    return result


def interrupted(rank, plans, kind, moments, never_saved=False):
    """[(scheme, options, moment) whose bits differ from those of a job that saves and trains on; `never_saved`: from those of
    one that doesn't even save]."""
    wrong = []
    for plan, moment in zip(plans, moments):
        model, optimizer = begin(plan, kind, emulated())
        train(model, optimizer, rank, moment)
        data = saved(model, optimizer)
        train(model, optimizer, rank, STEPS - moment, first=moment)
        expected = ended(model)
        if never_saved:
            model, optimizer = begin(plan, kind, emulated())
            train(model, optimizer, rank, STEPS)
            expected = ended(model)

        model, optimizer = begin(plan, kind, emulated())
        load(model, optimizer, data)
        assert model.gradweave.engine.iteration == moment
        train(model, optimizer, rank, STEPS - moment, first=moment)
        found = ended(model)
        if any(not torch.equal(found[name], value) for name, value in expected.items()):
            wrong.append((plan["scheme"], plan["options"], moment))
    return wrong


@pytest.mark.parametrize(("workers", "kind", "cases"), [
    (2, "sgd", None), (3, "adamw", TWO_STAGES),
    (2, "adamw", [("delayed_averaging", {}), ("dreamddp", {}), ("deft", {"correction": "local"})])])
def test_every_scheme_goes_on_with_the_same_bits(workers, kind, cases):
    made = plans(workers, cases)
    moments = [random.Random(number).randrange(1, STEPS) for number in range(len(made))]
    assert ranks.run(interrupted, workers, plans=made, kind=kind, moments=moments) == [[]] * workers


def under_another_plan(rank, scheme, options, kind):
    """Parameters that have other bits where a job stops and goes on under `ddp`, between two plans of `scheme`."""
    from gradweave import core

    first, second = (core.make_plan(workload(), cluster(2, 0.6), *each) for each in ((scheme, options), ("ddp", {})))
    model, optimizer = begin(first, kind, emulated())
    train(model, optimizer, rank, 12)
    model.gradweave.install(second)
    train(model, optimizer, rank, 3, first=12)
    data, results = saved(model, optimizer), []
    for resumed in (False, True):
        if resumed:
            model, optimizer = begin(second, kind, emulated())
            load(model, optimizer, data)
        train(model, optimizer, rank, 3, first=15)
        model.gradweave.install(first)
        train(model, optimizer, rank, 12, first=18)
        results.append(ended(model))
    return [name for name, value in results[0].items() if not torch.equal(results[1][name], value)]


@pytest.mark.parametrize(("options", "kind"), [({"outer_momentum": 0.5}, "sgd"), ({}, "adamw")])
def test_what_outlives_a_plan_is_saved_under_the_next(options, kind):
    assert ranks.run(under_another_plan, 2, scheme="delayed_averaging", options=options, kind=kind) == [[], []]


def goes_on_with_other_moments(rank, before, after):
    from gradweave import core

    plan = core.make_plan(workload(), cluster(2, 0.6), "delayed_averaging", {})
    model, optimizer = begin(plan, before, emulated())
    train(model, optimizer, rank, 10)
    data = saved(model, optimizer)
    ended(model)
    model, optimizer = begin(plan, after, emulated())
    load(model, optimizer, data)
    train(model, optimizer, rank, 10, first=10)
    return ended(model)


@pytest.mark.parametrize(("before", "after"), [("adamw", "adamw, local"), ("adamw, local", "adamw")])
def test_a_job_may_go_on_with_other_moments(before, after):
    first, second = ranks.run(goes_on_with_other_moments, 2, before=before, after=after)
    assert all(torch.equal(second[name], value) and value.isfinite().all() for name, value in first.items())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_any_moment(seed, workers):
    made = plans(workers)
    moments = [random.Random(f"{seed} {number}").randrange(1, STEPS) for number in range(len(made))]
    kind = "sgd" if seed % 2 else "adamw"
    assert ranks.run(interrupted, workers, timeout=900, plans=made, kind=kind, moments=moments,
                     never_saved=True) == [[]] * workers


def by_torchs_checkpoint(rank, folder):
    import warnings

    from gradweave import core
    from torch.distributed import checkpoint

    plan = core.make_plan(workload(), cluster(2, 0.6), "delayed_averaging", {"compressor": "int4"})

    def everything(model, optimizer):
        return {"model": {f"{rank}.{name}": value for name, value in model.state_dict().items()}, "gradweave": model.gradweave}

    model, optimizer = begin(plan, "plain", emulated())
    train(model, optimizer, rank, 5)
    with warnings.catch_warnings(action="ignore"):
        checkpoint.save(everything(model, optimizer), checkpoint_id=folder)
    train(model, optimizer, rank, 4, first=5)
    expected = ended(model)
    model, optimizer = begin(plan, "plain", emulated())
    with warnings.catch_warnings(action="ignore"):
        checkpoint.load(everything(model, optimizer), checkpoint_id=folder)
    train(model, optimizer, rank, 4, first=5)
    found = ended(model)
    return [name for name, value in expected.items() if not torch.equal(found[name], value)]


def test_torchs_checkpoints_hold_every_ranks(tmp_path):
    assert ranks.run(by_torchs_checkpoint, 2, folder=tmp_path / "checkpoint") == [[], []]


def keeps_nothing(rank, plans):
    """Which parameters are not those of a job that was not saved. To fill the state of SGD torch calls step(), in vain."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    unlike = {}
    for plan in plans:
        found = []
        for saves in (False, True):
            model, optimizer = begin(plan, "plain", emulated())
            for first in (0, 3):
                if saves:
                    optimizer.zero_grad()
                    get_optimizer_state_dict(model, optimizer)
                train(model, optimizer, rank, 3, first=first)
            assert model.gradweave.engine.iteration == 6
            found.append(ended(model))
        unlike[plan["scheme"]] = [name for name, value in found[0].items() if not torch.equal(value, found[1][name])]
    return unlike


def test_torchs_functions_save_optimizers_that_keep_nothing():
    schemes = ["ddp", "dear", "delayed_averaging", "local_sgd"]
    made = plans(2, [(scheme, {}) for scheme in schemes])
    assert ranks.run(keeps_nothing, 2, plans=made) == [{scheme: [] for scheme in schemes}] * 2


def decided_anew(rank):
    """A checkpoint of a job that had still to decide: it profiles again. One of a job that had decided keeps its plan."""
    model = make_net()
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), links=emulated(), warm_up=1, profile_iterations=2,
                                      report=False)
    train(model, optimizer, rank, 1)
    early = saved(model, optimizer)
    train(model, optimizer, rank, 5, first=1)
    late, plan = saved(model, optimizer), model.gradweave.plan
    told = (model.gradweave.cluster.to_dict(), model.gradweave.overheads, model.gradweave.prediction)
    model.gradweave.close()
    seen = []
    for data in (early, late):
        model = make_net()
        model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), links=emulated(), warm_up=1,
                                          profile_iterations=2, report=False)
        load(model, optimizer, data)
        seen.append(model.gradweave.plan)
        if data is late:
            seen.append((model.gradweave.cluster.to_dict(), model.gradweave.overheads, model.gradweave.prediction) == told)
        train(model, optimizer, rank, 4)
        seen.append(model.gradweave.prediction is not None)
        ended(model)
    return told[1]["optimizer_us"] > 0 and seen == [None, True, plan, True, True]


def test_a_decision_is_part_of_a_checkpoint():
    assert ranks.run(decided_anew, 2) == [True, True]


def seen_before(rank):
    """[what a job whose loop clips has seen, what one that goes on from its checkpoint knows of that, and what it knows
    without]."""
    def begin():
        model = make_net()
        return gradweave.wrap(model, make_optimizer("sgd", model), links=emulated(), warm_up=1, profile_iterations=2,
                              options={"allow": "exact+corrected"}, report=False)

    model, optimizer = begin()
    train(model, optimizer, rank, 16, clip=1.0)
    data = saved(model, optimizer)
    found = [model.gradweave._controller.seen]
    model.gradweave.close()
    for keeps in (True, False):
        state = torch.load(io.BytesIO(data))
        of_rank, = state["gradweave"].values()
        if not keeps:
            del of_rank.parts["seen"]  # as earlier versions saved it
        model, optimizer = begin()
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        model.gradweave.load_state_dict(state["gradweave"])
        found.append(model.gradweave._controller.seen)
        ended(model)
    return found


def test_what_was_seen_is_part_of_a_checkpoint():
    for then, now, without in ranks.run(seen_before, 2):
        traits, gradients = then
        assert "clips" in traits and len(gradients) > 8 and now == then
        assert "clips" not in without[0] and without[1] == []


@pytest.mark.parametrize("staged", [None, cluster(2, 3.0)])
def test_costs_come_back_from_a_checkpoint(staged):
    from gradweave import _native, checkpoint, core

    overheads = {"optimizer_us": 1234.567, "contention": 1.153, "burst_us": 2905.708}
    state = checkpoint.costs_state(_native.Costs(cluster(2), staged, **overheads))
    found = checkpoint.costs_of(state)
    assert checkpoint.costs_state(found) == state and found.overheads == overheads
    assert found.staged == (staged and core.Cluster(staged))
    before = checkpoint.costs_of({"cluster": cluster(2)})  # of a version that kept no more
    assert before.usual == found.usual and before.overheads == {"optimizer_us": 0, "contention": 1, "burst_us": 0}
    assert checkpoint.costs_of(checkpoint.costs_state(None)) is None


def of_two_jobs(rank, plans, folder):
    """{scheme: what each form of loading says where rank 0 goes on from one job and rank 1 from another, of the same plan and
    iteration; then what it says where only the model is the other job's}."""
    import warnings

    from torch.distributed import checkpoint

    said = {}
    for number, plan in enumerate(plans):
        data, places = [], []
        for job in range(2):
            model, optimizer = begin(plan, "sgd", emulated())
            train(model, optimizer, rank, 3, first=10 * job)
            data.append(saved(model, optimizer))
            places.append(folder / f"{number}.{job}")
            with warnings.catch_warnings(action="ignore"):
                checkpoint.save({"gradweave": model.gradweave}, checkpoint_id=places[-1])
            model.gradweave.close()

        def by_torchs_checkpoint(model, optimizer):
            with warnings.catch_warnings(action="ignore"):
                checkpoint.load({"gradweave": model.gradweave}, checkpoint_id=places[rank])  # noqa: B023  called at once

        def by_a_list(model, optimizer):
            states = [torch.load(io.BytesIO(each))["gradweave"] for each in data]  # noqa: B023
            own, = states[rank].values()
            everybodys = [{f"rank{r}": but(own, rank=r)} for r in range(2)]
            model.gradweave.load_state_dict(everybodys)

        def by_a_fold(model, optimizer):
            own, = torch.load(io.BytesIO(data[rank]))["gradweave"].values()  # noqa: B023
            model.gradweave.load_state_dict([{f"rank{r}": but(own, rank=r, ranks=3)} for r in range(3)])

        def with_the_others_model(model, optimizer):
            state = torch.load(io.BytesIO(data[rank]))  # noqa: B023
            model.load_state_dict(state["model"])
            model.gradweave.load_state_dict(torch.load(io.BytesIO(data[0]))["gradweave"])  # noqa: B023

        told = said[plan["scheme"]] = []
        for form in (lambda *held: load(*held, data[rank]), by_torchs_checkpoint, by_a_list, by_a_fold,  # noqa: B023
                     with_the_others_model):
            model, optimizer = begin(plan, "sgd", emulated())
            try:
                form(model, optimizer)
                told.append("accepted")
            except Exception as error:  # torch puts what is raised into one of its own
                told.append(str(error))
            model.gradweave.close(RuntimeError("over"))
    return said


def test_ranks_that_load_different_jobs_are_told(tmp_path):
    made = plans(2)
    local = {plan["scheme"] for plan in made if core_demands(plan)["local_steps"]}
    for said in ranks.run(of_two_jobs, 2, timeout=400, plans=made[:len(made) - len(VARIANTS)], folder=tmp_path):
        for scheme, (*jobs, other_model) in said.items():
            assert all(text.count("iteration 3 of job") == 2 for text in jobs), (scheme, jobs)
            assert scheme in local or "the ranks' parameters are not equal" in other_model, (scheme, other_model)


def of_two_continuations(rank, plans):
    """{scheme: what is said to rank 0's state of one continuation of a checkpoint and rank 1's of another, after the same
    iteration; and to both of one}"""
    said = {}
    for plan in plans:
        model, optimizer = begin(plan, "sgd", emulated())
        train(model, optimizer, rank, 2)
        start = saved(model, optimizer)
        model.gradweave.close()
        continued = []
        for first in (2, 7):  # other batches
            model, optimizer = begin(plan, "sgd", emulated())
            load(model, optimizer, start)
            train(model, optimizer, rank, 3, first=first)
            continued.append(saved(model, optimizer))
            model.gradweave.close()
        said[plan["scheme"]] = told = []
        for data in (continued[rank], continued[1]):
            model, optimizer = begin(plan, "sgd", emulated())
            try:
                load(model, optimizer, data)
                told.append("accepted")
            except ValueError as error:
                told.append(str(error))
            model.gradweave.close()
    return said


def test_continuations_of_one_checkpoint_are_told_apart():
    made = plans(2, [("delayed_averaging", {}), ("local_sgd", {"period": 3}), ("deft", {})])
    for said in ranks.run(of_two_continuations, 2, plans=made):
        for scheme, (mixed, one) in said.items():
            assert mixed.count("iteration 5 of job") == 2 and one == "accepted", (scheme, mixed, one)


def core_demands(plan):
    from gradweave import core

    return core.demands_of(plan)


def but(state, **changes):
    changed = copy.copy(state)
    vars(changed).update(changes)
    return changed


def refused(rank):
    from gradweave import core

    plan = core.make_plan(workload(), cluster(2), "dear")
    model, optimizer = begin(plan, "sgd", None)
    train(model, optimizer, rank, 2)
    first = model.gradweave.state_dict()
    x, y = batch(rank, 2)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    said = []

    def try_to(act):
        try:
            act()
        except ValueError as error:
            said.append(str(error))
    try_to(model.gradweave.state_dict)
    optimizer.step()
    try_to(lambda: model.gradweave.load_state_dict(first))
    second = model.gradweave.state_dict()
    model.gradweave.close()
    key, own = first.popitem()
    states = [{}, {key: but(own, version=1)}, {key: but(own, rank=5)}, {key: but(own, ranks=4)},
              {key: but(own, parts={**own.parts, "engine": {}})}, [{key: own}, second][rank]]
    for state in states:
        model, optimizer = begin(plan, "sgd", None)
        try_to(lambda: model.gradweave.load_state_dict(state))  # noqa: B023  called at once
        model.gradweave.close()
    return said


def of_other_parameters(rank):
    from gradweave import core

    model, optimizer = begin(core.make_plan(workload(), cluster(2), "dear"), "sgd", None)
    train(model, optimizer, rank, 2)
    (key, own), = model.gradweave.state_dict().items()
    first, *_ = names = [name for name, _ in model.named_parameters()]
    model.gradweave.close()
    fewer = but(own, parts=own.parts | {"layers": {"": names[1:]}})
    said = []
    for state, frozen, exclude in ((own, True, ()), (own, False, (first,)), (fewer, False, ())):
        model = make_net()
        model.get_parameter(first).requires_grad_(not frozen)
        model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), exclude=exclude)
        try:
            model.gradweave.load_state_dict({key: state})
        except gradweave.InvalidInput as error:
            said.append(str(error))
        model.gradweave.close()
    return first, said


def test_a_job_that_trains_other_parameters_is_told_which():
    for first, said in ranks.run(of_other_parameters, 2):
        here = f"load_state_dict(): parameter '{first}' was trained then, and is frozen, excluded or missing here"
        assert [here in text for text in said] == [True, True, False]
        assert f"parameter '{first}' is trained here, and was not then" in said[2]


class OneUnused(torch.nn.Module):
    def __init__(self, unused=True):
        super().__init__()
        self.first, self.other, self.last = (torch.nn.Linear(8, 8) for _ in range(3))
        self.unused = unused

    def forward(self, x):
        x = self.first(x)
        return self.last(x if self.unused else self.other(x))


def of_one_unused(rank, steps, model, optimizer):
    for step in steps:
        generator = torch.Generator().manual_seed(10 * step + rank)
        model(torch.randn(5, 8, generator=generator)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def begin_one_unused(compressor):
    torch.manual_seed(0)
    model = OneUnused()
    # It moves what has a gradient of zeros too.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    return gradweave.wrap(model, optimizer, "ddp", options={"compressor": compressor}, warm_up=1, profile_iterations=1,
                          report=False, find_unused_parameters=True)


def never_used(rank, compressors):
    """{compressor: [what has other values than it should]}."""
    wrong = {}
    for compressor in compressors:
        def compare(when, model, expected):
            wrong[compressor] += [(when, name) for name, value in parameters(model).items()  # noqa: B023  called at once
                                  if not torch.equal(value, expected[name])]

        wrong[compressor] = []
        model, optimizer = begin_one_unused(compressor)
        other = {name: value for name, value in parameters(model).items() if name.startswith("other")}
        of_one_unused(rank, range(6), model, optimizer)
        data = saved(model, optimizer)
        of_one_unused(rank, range(6, 9), model, optimizer)
        gradweave.finish(model)
        expected = parameters(model)
        compare("in one go", model, expected | other)
        model.gradweave.install(model.gradweave.plan)
        of_one_unused(rank, range(9, 12), model, optimizer)
        gradweave.finish(model)
        compare("under another plan", model, parameters(model) | other)
        model.gradweave.close()

        for when, cut in (("after a checkpoint", lambda data: data), ("after an earlier version's", as_before)):
            model, optimizer = begin_one_unused(compressor)
            load(model, optimizer, cut(data))
            of_one_unused(rank, range(6, 9), model, optimizer)
            compare(when, model, expected)
            model.gradweave.close()
    return wrong


def as_before(data):
    """Without what was given to codecs, by tensor, and what they began with, by block."""
    states = torch.load(io.BytesIO(data))
    state, = states["gradweave"].values()
    engine = state.parts["engine"]
    names = [name for tensors in state.parts["layers"].values() for name in tensors]
    engine["numbers"] = engine["numbers"][:-len(names) - len(state.plan["blocks"])]
    file = io.BytesIO()
    torch.save(states, file)
    return file.getvalue()


def test_what_no_rank_ever_uses_is_never_stepped():
    assert ranks.run(never_used, 2, compressors=["int8", "top_k"]) == [{"int8": [], "top_k": []}] * 2


def later_unused(rank):
    """As the error tells: it was found that all are used, and later one isn't."""
    data, said = None, []
    for unused in (None, True):
        model = OneUnused(unused=False)
        model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), "ddp", warm_up=1, report=False,
                                          profile_iterations=1, find_unused_parameters=unused)
        if data is None:
            of_one_unused(rank, range(4), model, optimizer)
            data = saved(model, optimizer)
        else:
            load(model, optimizer, data)
        model.unused = True
        try:
            of_one_unused(rank, range(4, 6), model, optimizer)
            said.append("trained")
        except RuntimeError as error:  # autograd hands it on so
            said.append(str(error))
        model.gradweave.close()
    return said


def test_a_job_may_go_on_with_unused_parameters():
    for refused, goes_on in ranks.run(later_unused, 2):
        assert "pass find_unused_parameters=True" in refused
        assert goes_on == "trained"


def between_micro_steps(rank):
    """What is accumulated is not saved, and lost nothing here."""
    from gradweave import core

    model, optimizer = begin(core.make_plan(workload(), cluster(2), "dear"), "sgd", None)
    train(model, optimizer, rank, 2)
    with model.gradweave.no_sync():
        torch.nn.functional.cross_entropy(model(batch(rank, 2)[0]), batch(rank, 2)[1]).backward()
        held = [p.grad.clone() for p in model.parameters()]
        state, = model.gradweave.state_dict().values()
    found = all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), held))
    torch.nn.functional.cross_entropy(model(batch(rank, 3)[0]), batch(rank, 3)[1]).backward()
    optimizer.step()
    ended(model)
    return found and state.iteration == 2


def test_a_checkpoint_may_come_between_micro_steps():
    assert ranks.run(between_micro_steps, 2) == [True, True]


def test_before_the_step_of_a_synchronous_plan_the_iteration_ends():
    from gradweave import core

    model, optimizer = begin(core.make_plan(workload(), cluster(1), "ddp"), "sgd", None)
    train(model, optimizer, 0, 2)
    x, y = batch(0, 2)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    before = parameters(model)
    state, = model.gradweave.state_dict().values()
    assert state.iteration == 3
    assert all(torch.equal(value, before[name]) for name, value in parameters(model).items())  # the file lacks that step
    optimizer.step()
    assert any(not torch.equal(value, before[name]) for name, value in parameters(model).items())
    model.gradweave.close()


def test_what_does_not_fit_is_refused():
    for said in ranks.run(refused, 2):
        unfinished, begun, none, version, rank, number, empty, other = said
        assert "between iterations" in unfinished
        assert "training has begun" in begun and "before the first forward" in begun
        assert "each rank its own" in none
        assert "version 1" in version
        assert "it was saved by rank 5 of 2" in rank
        assert "of 4" in number and "states of all" in number
        assert "state_dict()" in empty
        assert "iteration 2 of job" in other and "on rank 0, iteration 3 of job" in other and "on rank 1" in other
