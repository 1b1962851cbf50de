"""Workloads, clusters, plans and timelines as Python's values, and whatever plan a caller gives to wrap()."""

import copy
import json
import pickle
import random
import warnings

import pytest
import torch
from torch import nn

import gradweave
from gradweave import core
from models import cluster, workload

SPAN = {"kind": "forward", "track": 0, "iteration": 0, "layer": 0, "begin_us": 0, "end_us": 5, "label": "conv"}
TIMELINE = {"version": 1, "name": "run", "origin": "measured", "links": ["link0"], "spans": [SPAN]}


@pytest.mark.parametrize("kind, given, other", [
    (core.Workload, workload(), workload(forward_us=1)), (core.Cluster, cluster(2), cluster(3)),
    (core.Plan, core.make_plan(workload(), cluster(2), "dear"), core.make_plan(workload(), cluster(2), "ddp")),
    (core.Timeline, TIMELINE, TIMELINE | {"name": "other"})])
def test_a_value_compares_and_comes_back_from_its_file(kind, given, other, tmp_path):
    value = kind(given)
    (tmp_path / "file.json").write_text(value.to_json())
    for same in (kind(json.dumps(given)), kind(value), kind.from_json(value.to_json()), kind(value.to_dict()),
                 kind.read(str(tmp_path / "file.json")), kind.read(tmp_path / "file.json"), copy.copy(value),
                 copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert same == value and hash(same) == hash(value) and {same: 1}[value] == 1
    assert value != kind(other) and value != given and value is not None
    with pytest.raises(AttributeError):
        value.name = "changed"


def test_a_value_reads_like_the_dictionary_of_its_file():
    value = core.Timeline(TIMELINE)
    assert value["spans"] == value.to_dict()["spans"] and dict(value) == {**value} == value.to_dict() and "spans" in value
    assert value.get("stop", 3) == 3 and list(value) == list(value.keys()) and TIMELINE["name"] in repr(value)
    with pytest.raises(KeyError, match="spam"):
        value["spam"]
    named = value.named("other")
    assert (named["name"], value["name"], named.empty) == ("other", "run", False)
    found = core.make_plan(core.Workload(workload()), core.Cluster(cluster(2)), "auto")
    assert core.chosen(found) == core.chosen(found.to_dict()) and found.chosen["scheme"] != "auto"
    given = core.make_plan(core.Workload(workload()), core.Cluster(cluster(2)), "ddp")
    assert core.chosen(given) == {"scheme": "ddp", "options": given.options}


def test_classes_give_classes_and_dictionaries_give_dictionaries():
    load, machines = core.Workload(workload()), core.Cluster(cluster(2, 0.6))
    for scheme in ("dear", "optimal"):
        plan, as_dictionary = core.make_plan(load, machines, scheme), core.make_plan(workload(), cluster(2, 0.6), scheme)
        assert plan.to_dict() == as_dictionary and plan.scheme == scheme and plan.links == ["link0"]
        assert core.simulate(plan, load, machines) == core.simulate(as_dictionary, workload(), cluster(2, 0.6))
        assert core.demands_of(plan) == core.demands_of(as_dictionary)
    typed, plain = core.ranked_plans(load, machines), core.ranked_plans(workload(), cluster(2, 0.6))
    assert [entry | {"plan": entry["plan"].to_dict()} for entry in typed] == plain


@pytest.mark.parametrize("call", [
    lambda plan: core.Plan(plan), lambda plan: core.demands_of(plan),
    lambda plan: core.simulate(plan, workload(), cluster(2)), lambda plan: core.cut_layers(plan, workload())])
@pytest.mark.parametrize("plan, words", [
    ({"version": 1}, "plan: blocks: is missing"), ("{", "plan: line 1, column 2: is not JSON"),
    (workload(), "is a workload file"), ({"version": object()}, "plan: can't be written as JSON"),
    ({"version": float("nan")}, "plan: line 1")])
def test_what_has_not_the_form_is_refused_by_place(call, plan, words):
    with pytest.raises(gradweave.InvalidInput, match=words):
        call(plan)


def wrapped(plan):
    """One process trains by it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = gradweave.wrap(model, optimizer, plan=plan, links=[gradweave.EmulatedLink(0, 0)], report=False)
    try:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        gradweave.finish(model)
    finally:
        model.gradweave.close()


def plans_to_change():
    layers = [{"name": str(n), "forward_us": 10, "backward_us": 20, "tensors": [
        {"name": f"{n}.{kind}", "numel": numel, "dtype": "float32"} for kind, numel in (("weight", 4 * out), ("bias", out))]}
        for n, out in ((0, 4), (2, 2))]
    load = {"version": 1, "name": "two", "layers": layers}
    return [core.make_plan(load, cluster(1, 0.6), scheme, options) for scheme, options in (
        ("ddp", {}), ("dear", {}), ("p3", {"partition_bytes": 20}), ("covap", {"interval": 2}),
        ("delayed_averaging", {"period": 2}), ("ddp", {"compressor": "top_k", "compressor_density": 0.5}))]


ODD = [None, True, -1, 0, 7, 2**31, 2**63, 10**400, 0.5, 1e300, float("nan"), float("inf"), "", "x" * 5000, "\ud800", [], {},
       [[]], {"": 0}, object(), b"bytes", {1, 2}, {3: 4}, torch.ones(1)]


def places(value, here=()):
    yield here
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in members:
        yield from places(inner, (*here, key))


def changed(plan, generator):
    plan = copy.deepcopy(plan)
    for _ in range(generator.randint(1, 3)):
        *way, last = generator.choice([place for place in places(plan) if place])
        holder = plan
        for key in way:
            holder = holder[key]
        act = generator.random()
        if act < 0.3:
            del holder[last]
        elif act < 0.8:
            holder[last] = generator.choice(ODD)
        elif isinstance(holder, list):
            holder.insert(last, generator.choice([*ODD, copy.deepcopy(holder[last])]))
        else:
            holder[generator.choice(["", "unknown", "links", "finding", "outer"])] = generator.choice(ODD)
    return plan


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def itself():
    value = {"version": 1}
    value["period"] = [value]
    return value


def test_a_plan_changed_at_random_runs_or_is_refused_with_a_place():
    generator, started, told = random.Random(1), plans_to_change(), 0
    cases = [changed(generator.choice(started), generator) for _ in range(400)]
    cases += [{"version": 1, "period": nested(100_000)}, itself(), {}, [], 3, None.__class__, "{" * 10_000, "{}", b"{}"]
    for text in (json.dumps(plan) for plan in started):
        cases += [text[:generator.randrange(1, len(text))], text.replace("1", "1e999"), text.replace(",", ",,", 1)]
    for case in cases:
        try:
            wrapped(case)
        except gradweave.InvalidInput as error:
            told += 1
            assert len(str(error)) > 10
    assert told > 300


def test_plan_files_have_the_commands_limits_and_messages(tmp_path):
    good, sparse, nothing = tmp_path / "good.json", tmp_path / "large.json", tmp_path / "none.json"
    good.write_text(json.dumps(plans_to_change()[0]))
    for path in (good, str(good)):
        wrapped(path)
    with open(sparse, "wb") as file:
        file.truncate(3 << 29)
    (tmp_path / "binary.json").write_bytes(bytes(range(256)))
    for path, words in ((nothing, "cannot be read: No such file"), (tmp_path, "cannot be read"),
                        (sparse, "is larger than 1 GiB"), (tmp_path / "binary.json", "is not JSON"), ("-", "cannot be read")):
        with pytest.raises(gradweave.InvalidInput, match=words) as error:
            wrapped(path)
        assert path == "-" or str(path) in str(error.value)


def test_two_levels_of_links_are_warned_of():
    nested = core.Cluster(cluster(2) | {"workers_per_node": 2})
    flat = core.Cluster(cluster(2))
    plan = core.make_plan(workload(), flat, "ddp")
    for call in (lambda where: core.make_plan(workload(), where, "ddp"), lambda where: core.ranked_plans(workload(), where),
                 lambda where: core.simulate(plan, workload(), where)):
        with pytest.warns(UserWarning, match="workers_per_node is 2, but 'inside', the links within a node"):
            call(nested)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(flat)


def test_a_simulation_knows_a_proved_optimum():
    plan = core.make_plan(workload(), cluster(2), "optimal")
    assert plan["finding"]["optimum"]
    found = core.simulate(plan, workload(), cluster(2))
    assert {"name": "optimum", "iteration_us": found["iteration_us"]} in found["bounds"]


def test_times_are_rounded_to_nanoseconds():
    plan = core.make_plan(workload(), cluster(2), "ddp")
    alone, with_optimizer = (core.simulate(plan, workload(), cluster(2), optimizer_us=us)["iteration_us"] for us in (0, 1.001))
    assert with_optimizer - alone == pytest.approx(1.001, abs=1e-6)


@pytest.mark.parametrize("points", [[{"size": 1, "us": 2}], [{"bytes": "many", "us": 2}], [3]])
def test_what_is_no_measurement_of_a_link_is_refused(points):
    with pytest.raises(gradweave.InvalidInput, match="give a list of"):
        core.fit_link(points)
