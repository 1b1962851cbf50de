"""Parts and copies of a wrapped model, its `module`, and its evaluation: what scripts do with them beside the steps."""

import copy
import io
import warnings

import pytest
import torch
from torch import distributed, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import ranks
from gradweave import EmulatedLink, InvalidInput
from models import batch, cluster, differing, make_net, make_optimizer, parameters, train, workload

STEPS = 5


def wrapped(scheme, rank, model=None, **arguments):
    import gradweave
    from gradweave import core

    model = model or make_net(seed=rank)
    plan = core.make_plan(workload(), cluster(distributed.get_world_size(), 0.6), scheme)
    return gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=20, report=False, **arguments)


def schemes():
    from gradweave import core

    return {row["name"]: row["consistency"] for row in core.schemes() if row["name"] != "auto"}


READINGS = {
    "attribute": lambda model: {"wide.weight": model.wide.weight, "conv.bias": model.conv.bias},
    "get_parameter": lambda model: {"again.weight": model.get_parameter("again.weight")},
    "state_dict": lambda model: {f"out.{name}": value for name, value in model.out.state_dict().items()},
    "parameters": lambda model: dict(zip(("norm.weight", "norm.bias"), model.norm.parameters())),
    "children": lambda model: {f"{name}.{n}": p for name, child in model.named_children()
                               for n, p in child.named_parameters()},
    "_parameters": lambda model: {f"wide.{name}": value for name, value in model.wide._parameters.items()},
    "copy": lambda model: {f"again.{name}": p for name, p in copy.deepcopy(model.again).named_parameters()},
    "file": lambda model: {f"wide.{name}": p for name, p in from_file(model.wide).named_parameters()},
}


def from_file(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def read_between(rank, readings):
    """[(scheme, reading, step, parameter) that is not what the model as a whole has then, or DistributedDataParallel]."""
    expected, after = make_net(seed=rank), []
    parallel, optimizer = nn.parallel.DistributedDataParallel(expected), make_optimizer("sgd", expected)
    average = AveragedModel(expected.wide, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for step in range(STEPS):
        train(parallel, optimizer, rank, 1, first=step)
        after.append(parameters(expected))
        average.update_parameters(expected.wide)
    wrong = []
    for scheme, effect in schemes().items():
        for reading in readings:
            model, optimizer = wrapped(scheme, rank)
            own = AveragedModel(model.wide, multi_avg_fn=get_ema_multi_avg_fn(0.5))
            for step in range(STEPS):
                train(model, optimizer, rank, 1, first=step)
                found = {name: value.detach().clone() for name, value in READINGS[reading](model).items()}
                own.update_parameters(model.wide)
                whole = after[step] if effect == "exact" else parameters(model)
                wrong += [(scheme, reading, step, name) for name in found if not torch.equal(found[name], whole[name])]
            if effect == "exact":
                wrong += [(scheme, reading, "average", name) for name in differing(own, average)]
                wrong += [(scheme, reading, "end", name) for name in differing(model, expected)]
            assert type(model.wide) is nn.Linear
            model.gradweave.finish()
            model.gradweave.close()
            assert all(type(module._parameters) is dict for module in model.modules())
    return wrong


def test_a_part_that_is_read_after_step_is_up_to_date_under_every_scheme():
    assert ranks.run(read_between, 2, timeout=500, readings=["attribute", "state_dict"]) == [[], []]


@pytest.mark.slow
def test_however_it_is_read():
    assert ranks.run(read_between, 2, timeout=900, readings=list(READINGS)) == [[], []]


class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def compiled(rank, scheme):
    """A compiled model whose parts are read between its steps; the names of what differs from DistributedDataParallel's."""
    import gradweave

    results = []
    for parallel in (True, False):
        torch.manual_seed(rank)
        model = Compiled()
        optimizer, run = torch.optim.SGD(model.parameters(), lr=0.1), model
        if parallel:
            run = nn.parallel.DistributedDataParallel(model)
        else:
            model.compile(backend="eager")
            run, optimizer = gradweave.wrap(model, optimizer, scheme, links=[gradweave.EmulatedLink(100, 0.1)], warm_up=1,
                                            profile_iterations=1, report=False)
        read = []
        for step in range(8):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(run(x.flatten(1)[:, :8]), y).backward()
            optimizer.step()
            read.append({"first": model.first.weight.detach().clone(), "second": model.second.bias.detach().clone()})
        results.append(read)
        if not parallel:
            gradweave.finish(model)
            model.gradweave.close()
    return [(step, name) for step, (one, other) in enumerate(zip(*results)) for name in one
            if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("scheme", ["dear", "p3"])
def test_parts_of_a_compiled_model(scheme):
    assert ranks.run(compiled, 2, scheme=scheme) == [[], []]


def averaged(rank, kept_by):
    """{scheme: (whether finish() warned, whether averages of weights are equal on all ranks at last)}."""
    found = {}
    for scheme in schemes():
        model, optimizer = wrapped(scheme, rank)
        average = AveragedModel(model, use_buffers=True) if rank in kept_by else None
        for step in range(STEPS):
            train(model, optimizer, rank, 1, first=step)
            if average is not None:
                average.update_parameters(model)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model.gradweave.finish()
        told = any("model.gradweave.average(copy)" in str(each.message) for each in told)
        if len(kept_by) == 2 and any_rank(told):
            before = torch.cat([p.detach().flatten() for p in average.parameters()])
            model.gradweave.average(average)
            mean = before.clone()
            distributed.all_reduce(mean)
            assert torch.allclose(torch.cat([p.detach().flatten() for p in average.parameters()]), mean / 2)
            assert int(average.n_averaged) == STEPS
        found[scheme] = told, average is None or len(kept_by) == 1 or equal_on_ranks(average)
        model.gradweave.close()
    return found


def any_rank(told):
    number = torch.tensor(int(told))
    distributed.all_reduce(number)
    return bool(number)


def equal_on_ranks(module):
    own = torch.cat([p.detach().flatten() for p in module.parameters()])
    first = own.clone()
    distributed.broadcast(first, 0)
    return torch.equal(own, first)


@pytest.mark.parametrize("kept_by", [(0, 1), (0,)])
def test_averages_of_weights_that_differ_are_told_and_can_be_made_equal(kept_by):
    first, second = ranks.run(averaged, 2, kept_by=kept_by)
    for scheme, effect in schemes().items():
        apart = effect in ("local", "corrected")
        assert first[scheme] == (apart, True) and second[scheme] == (False, True), (scheme, first[scheme], second[scheme])


def other_average(rank):
    import gradweave

    model, _ = wrapped("local_sgd", rank)
    with pytest.raises(gradweave.InvalidInput, match="in modules; give it the same module") as error:
        model.gradweave.average(nn.Linear(3, 3 + rank))
    return str(error.value)


def test_averages_of_other_shapes_are_refused():
    assert all("same module" in said for said in ranks.run(other_average, 2))


class HasModule(nn.Module):
    """`module` is its own, as AveragedModel's and Fabric's."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(8, 5)

    def forward(self, x):
        return self.module(x)


def unwrapped(model):
    """As timm and others do it."""
    return unwrapped(model.module) if hasattr(model, "module") else model


def by_module(rank, scheme):
    import gradweave

    model = make_net(seed=rank)
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'module'"):
        model.module  # noqa: B018
    keys, modules = list(model.state_dict()), dict(model.named_modules())
    model, optimizer = wrapped(scheme, rank, model)
    inner = model.module
    assert inner is model.module and unwrapped(model) is inner and isinstance(inner, type(model).__mro__[2])
    assert type(inner).__name__ == "Net" and inner.wide is model.wide and not hasattr(inner, "module")
    for step in range(STEPS):
        train(model if step % 2 else inner, optimizer, rank, 1, first=step)
        state = inner.state_dict()
        assert list(state) == list(model.state_dict()) == keys
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert dict(model.named_modules()) | {"": None} == modules | {"": None}
    plain = copy.deepcopy(inner)
    assert type(plain).__module__ == "models" and not hasattr(plain, "gradweave")
    with inner.no_sync():
        inner.eval()
    assert not model.training
    inner.load_state_dict(model.state_dict())
    gradweave.finish(inner)
    found = parameters(model)
    inner.gradweave.close()
    assert type(inner) is type(model) and type(model).__module__ == "models" and not hasattr(model, "module")
    return found


@pytest.mark.parametrize("scheme", ["ddp", "dear", "deft"])
def test_module_is_the_model_for_scripts_made_for_ddp(scheme):
    first, second = ranks.run(by_module, 2, scheme=scheme)
    assert all(torch.equal(first[name], second[name]) for name in first)


def of_its_own(rank):
    import gradweave

    model = HasModule()
    inside = model.module
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), report=False)
    assert model.module is inside and list(model.state_dict()) == ["module.weight", "module.bias"]
    model.gradweave.close()
    assert model.module is inside


def test_a_models_own_module_stays():
    of_its_own(0)


def evaluated(rank, arguments, finished):
    """The warnings of an evaluation."""
    import gradweave

    model, optimizer = wrapped("ddp", rank, **arguments)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(3):
            model.eval()
            model.train()
            train(model, optimizer, rank, 1, first=step)
            if finished:
                gradweave.finish(model)
        model.eval()
        gradweave.finish(model)
        model.eval()
    model.gradweave.close()
    return [str(each.message) for each in told]


@pytest.mark.parametrize("arguments, finished, warned", [
    ({}, False, 1), ({}, True, 0), ({"broadcast_buffers": True}, False, 1)])
def test_an_evaluation_with_each_ranks_own_statistics_is_told(arguments, finished, warned):
    first, second = ranks.run(evaluated, 2, arguments=arguments, finished=finished)
    assert first == [] and len(second) == warned
    assert all("gradweave.finish(model) on all ranks before model.eval()" in said for said in second)


def alone(links=None):
    """One process, without a group, trains as torch alone does."""
    import gradweave

    model, expected = make_net(), make_net()
    with gradweave.wrap(model, make_optimizer("adamw", model), "dear", links=links, warm_up=1, profile_iterations=2,
                        report=False) as (model, optimizer):
        train(model, optimizer, 0, 8)
        assert model.gradweave.plan["scheme"] == "dear"
    train(expected, make_optimizer("adamw", expected), 0, 8)
    return differing(model, expected)


def test_one_process_without_a_group_trains(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert alone() == []
    monkeypatch.setenv("WORLD_SIZE", "2")  # started by torchrun, and the group forgotten
    for links in (None, ["lo"], EmulatedLink(startup_us=1, us_per_byte=0)):
        with pytest.raises(InvalidInput, match="WORLD_SIZE=2 processes were started"):
            alone(links)
