"""Averages that are compressed, or that an outer optimizer uses, give bit for bit what a slow plain loop gives, wherever they
are drained and whatever plan comes next."""

import pytest
import torch
from torch import distributed

import ranks
from models import batch, cluster, differing, make_net, make_optimizer, of_gains, train, workload
from reference import Reference

OUTER = {"momentum": 0.9, "learning_rate": 0.7}
# case: (scheme, options, compressor, outer optimizer)
CASES = {
    "int4": ("delayed_averaging", {}, "int4", None),
    "int8 every 3": ("delayed_averaging", {"period": 3}, "int8", None),
    "signs every 2": ("local_sgd", {"period": 2}, "ef_signsgd", None),
    "int4 in the backward": ("dreamddp", {"period": 3}, "int4", None),
    "int4 in parts": ("partial_sgd", {"period": 3}, "int4", None),
    "int2": ("delayed_averaging", {}, "int2", None),
    "top_k": ("delayed_averaging", {"period": 2}, "top_k", None),
    "top_k in parts": ("partial_sgd", {"period": 3}, "top_k", None),
    "int4 outer": ("delayed_averaging", {}, "int4", OUTER),
    "exact outer": ("delayed_averaging", {"period": 2}, None, OUTER),
}


def world_size():
    return distributed.get_world_size() if distributed.is_initialized() else 1


def plan_of(scheme, options, compressor, outer):
    """The scheme's plan; its averages are of what was gained."""
    from gradweave import core

    return of_gains(core.make_plan(workload(), cluster(world_size(), 0.6), scheme, options), compressor, outer)


def against_reference(rank, cases, optimizer, stops):
    """Trains by one case after another, drained after each of the cases' `stops`; the names of the parameters that differ
    from the reference's after each."""
    import gradweave

    expected, model = make_net(seed=0), make_net(seed=0)
    slow = make_optimizer(optimizer, expected)
    loop, wrong, step = None, {}, 0
    model, stepper = gradweave.wrap(model, make_optimizer(optimizer, model), plan=plan_of(*next(iter(cases.values()))),
                                    moments="local")
    for number, (case, arguments) in enumerate(cases.items()):
        plan = plan_of(*arguments)
        if number > 0:
            model.gradweave.install(plan)
        for stop in stops:
            loop = Reference(expected, slow, plan, workload(), after=loop)
            for _ in range(stop):
                loop.train_step(*batch(rank, step))
                train(model, stepper, rank, 1, first=step)
                step += 1
            loop.drain()
            gradweave.finish(model)
            if differ := differing(model, expected):
                wrong[case, stop] = differ
    model.gradweave.close()
    return wrong


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_engine_agrees_with_the_reference(optimizer):
    for wrong in ranks.run(against_reference, 2, cases=CASES, optimizer=optimizer, stops=(1, 6)):
        assert not wrong


def test_two_stages_agree_with_the_reference():
    cases = {name: CASES[name] for name in ("int4", "int8 every 3", "signs every 2", "int2", "int4 outer")}
    for wrong in ranks.run(against_reference, 3, cases=cases, optimizer="sgd", stops=(1, 6)):
        assert not wrong


def dropped_batches(rank):
    """The names of parameters that differ from the reference's after a batch was dropped; every op was checked across
    ranks."""
    import gradweave

    plan = plan_of("delayed_averaging", {}, "int4", OUTER)
    expected, model = make_net(seed=0), make_net(seed=0)
    loop = Reference(expected, make_optimizer("sgd", expected), plan, workload())
    with gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, check=True) as (model, optimizer):
        for step in range(9):
            x, y = batch(rank, step)
            loop.train_step(x, y, overflow=step in (3, 4))
            if step in (3, 4):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                model.gradweave.skip_step()
            else:
                train(model, optimizer, rank, 1, first=step)
        loop.drain()
        gradweave.finish(model)
        return differing(model, expected)


def test_dropped_batches_leave_averages_alone():
    assert ranks.run(dropped_batches, 2) == [[], []]


def wire_bytes(plan, op):
    elements = sum(plan["blocks"][b]["end"] - plan["blocks"][b]["begin"] for b in op["blocks"])
    return -(-elements // 256) * 4 + -(-elements // 2)


def what_is_sent(rank, emulated):
    """Trains with int4 averages and compares what counters and timeline tell with the plan."""
    import gradweave

    us_per_byte = 0.5
    group = distributed.group.WORLD if world_size() > 1 else None
    links = [gradweave.EmulatedLink(3000, us_per_byte, group)] if emulated else None
    plan = plan_of("delayed_averaging", {"period": 2}, "int4", None)
    model = make_net()
    with gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, links=links) as (model, optimizer):
        model.gradweave.record_timeline()
        train(model, optimizer, rank, 6)
        gradweave.finish(model)
        spans = [span for span in model.gradweave.timeline()["spans"] if span["kind"] == "op"]
        assert len(spans) == model.gradweave.counters["ops"]
        assert {span["bytes"] for span in spans} == {wire_bytes(plan, op) for it in plan["period"] for op in it["ops"]}
        assert sum(span["bytes"] for span in spans) == model.gradweave.counters["bytes"]
        if emulated:  # half a start-up: a message each way
            assert all(span["end_us"] - span["begin_us"] >= 1500 + us_per_byte * span["bytes"] - 1 for span in spans)


@pytest.mark.parametrize("emulated", [False, True])
def test_bytes_are_those_on_the_wire(emulated):
    ranks.run(what_is_sent, 2, emulated=emulated)


def test_one_process_on_an_emulated_link():
    what_is_sent(0, emulated=True)


def refused(rank):
    """What wrap() says of averages that the engine has not."""
    import gradweave
    from gradweave import core

    said = []
    for compressor in ("top_k", "int4"):
        model = make_net().double()
        load = workload(model)
        for layer in load["layers"]:
            for tensor in layer["tensors"]:
                tensor["dtype"] = "float64"
        plan = core.make_plan(load, cluster(2, 0.6), "delayed_averaging")
        for op in (op for iteration in plan["period"] for op in iteration["ops"]):
            op |= {"collective": "compressed", "compression": {"name": compressor}}
        with pytest.raises(gradweave.InvalidInput) as error:
            model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan)
            x, y = batch(rank, 0)
            model(x.double())
        said.append(str(error.value))
    return said


def test_what_the_engine_has_not_is_refused():
    for said in ranks.run(refused, 2):
        assert all("only floats of 16 or 32 bits" in each and "autocast" in each for each in said)
