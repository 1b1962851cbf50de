"""Plans over two levels of links: gradients are reduced inside nodes, their shards between nodes, and brought together."""

import random

import pytest
import torch
from torch import distributed

import ranks
import test_checkpoint
import test_workers
from models import batch, differing, make_net, make_optimizer, parameters, train, two_levels, workload
from reference import Reference, summed
from test_delayed import few

STEPS = 8
DELAYED = {"deft sum": ("deft", {"merge": "sum"}), "deft mean": ("deft", {"merge": "mean"}),
           "deft local": ("deft", {"correction": "local"}), "covap": ("covap", {"interval": 3})}


def exact_schemes():
    from gradweave import core

    return [row["name"] for row in core.schemes() if row["consistency"] == "exact"]


def by_distributed_data_parallel(rank, optimizer, of_node):
    """Its parameters where a communication hook takes the two-level sums."""
    model = make_net(seed=rank)
    parallel = torch.nn.parallel.DistributedDataParallel(model)

    def two_sums(state, bucket):
        future = torch.futures.Future()
        future.set_result(summed(bucket.buffer() / distributed.get_world_size(), of_node))
        return future

    parallel.register_comm_hook(None, two_sums)
    train(parallel, make_optimizer(optimizer, model), rank, STEPS)
    return model


def exact(rank, schemes, optimizer, between, inside):
    """[(scheme, names that differ)] from DistributedDataParallel's bits."""
    import gradweave
    from gradweave import core

    expected = by_distributed_data_parallel(rank, optimizer, 2)
    wrong = []
    for scheme in schemes:
        plan = core.make_plan(workload(), two_levels(4, 2, between, inside), scheme)
        assert {link["level"] for link in plan["links"]} == {"inside", "between"}
        model = make_net(seed=rank)
        links = [distributed.group.WORLD] + [distributed.new_group() for _ in range(between - 1)]
        with gradweave.wrap(model, make_optimizer(optimizer, model), plan=plan, links=links, check=True) as (model, stepper):
            train(model, stepper, rank, STEPS)
        if names := differing(model, expected):
            wrong.append((scheme, names))
    return wrong


@pytest.mark.parametrize(("optimizer", "between", "inside"), [("sgd", 1, 1), ("adamw", 2, 2)])
def test_exact_schemes_have_the_bits_of_distributed_data_parallel(optimizer, between, inside):
    assert ranks.run(exact, 4, schemes=exact_schemes(), optimizer=optimizer, between=between, inside=inside) == [[]] * 4


def against_reference(rank, cases, of_node, stops, make):
    """{case: by how much parameters differ from the reference's at most}, after a drain at each of `stops`."""
    import gradweave
    from gradweave import core

    found = {}
    for case, (scheme, options) in cases.items():
        load = workload(make(0))
        plan = core.make_plan(load, two_levels(distributed.get_world_size(), of_node), scheme, options)
        for stop in stops:
            expected, model = make(0), make(0)
            loop = Reference(expected, make_optimizer("sgd", expected), plan, load)
            for step in range(stop):
                loop.train_step(*batch(rank, step))
            loop.drain()
            model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan)
            train(model, optimizer, rank, stop)
            gradweave.finish(model)  # which compares ranks
            model.gradweave.close()
            values = parameters(expected)
            found[case, stop] = max(float((p - values[n]).abs().max()) for n, p in parameters(model).items())
    return found


def test_schemes_that_delay_or_filter_gradients_have_the_bits_of_the_reference():
    for found in ranks.run(against_reference, 4, cases=DELAYED, of_node=2, stops=(1, 4, 9), make=make_net):
        assert set(found.values()) == {0.0}, found


# Where three add up, their order is the backend's. A message of one element has empty shards.
@pytest.mark.parametrize(("workers", "of_node"), [(6, 3), (6, 2)])
def test_messages_of_a_few_elements_among_threes(workers, of_node):
    cases = {scheme: (scheme, {}) for scheme in ("wfbp", "dear", "p3", "deft")}
    for found in ranks.run(against_reference, workers, cases=cases, of_node=of_node, stops=(5,), make=few):
        assert max(found.values()) <= 1e-6, found


def measured(rank, scheme, options):
    """(bits differ, the plan's links, the cluster) of a job that measures its links and plans for them."""
    import gradweave

    expected = by_distributed_data_parallel(rank, "sgd", 2)
    model = make_net(seed=rank)
    with gradweave.wrap(model, make_optimizer("sgd", model), scheme=scheme, options=options, workers_per_node=2, warm_up=1,
                        profile_iterations=2) as (model, stepper):
        train(model, stepper, rank, STEPS)
        levels = {link.get("level") for link in model.gradweave.plan["links"]}
        cluster = model.gradweave.cluster.to_dict()
        assert model.gradweave.report() is None and model.gradweave.prediction["iteration_us"] > 0
    return differing(model, expected), levels, cluster


@pytest.mark.parametrize(("scheme", "options"), [("dear", {}), ("auto", {"allow": "exact"})])
def test_a_job_measures_both_levels_and_plans_for_them(scheme, options):
    results = ranks.run(measured, 4, scheme=scheme, options=options)
    for wrong, levels, cluster in results:
        assert wrong == []
        assert levels == {"inside", "between"}
        assert (cluster["workers"], cluster["workers_per_node"]) == (4, 2)
        assert [link["name"] for link in cluster["inside"]["links"]] == ["inside"]
        assert cluster["links"][0]["each_worker"] is True
        assert cluster == results[0][2]


def plans(cases):
    from gradweave import core

    return [core.make_plan(workload(), two_levels(4, 2), scheme, options) for scheme, options in cases]


CASES = [("ddp", {}), ("dear", {}), ("us_byte", {}), *DELAYED.values()]


def test_training_goes_on_from_a_checkpoint_with_the_same_bits():
    moments = [random.Random(number).randrange(1, test_checkpoint.STEPS) for number in range(len(CASES))]
    assert ranks.run(test_checkpoint.interrupted, 4, plans=plans(CASES), kind="sgd", moments=moments) == [[]] * 4


@pytest.mark.parametrize("moments", [(3, 5, 7, 4, 6, 2, 8), (1, 2, 3, 5, 8, 9, 4)])
def test_training_goes_on_without_nodes_from_what_was_on_its_way(moments):
    old = ranks.run(test_workers.before, 4, plans=plans(CASES), kind="plain", moments=moments)
    files = [[of_rank[number][0] for of_rank in old] for number in range(len(CASES))]
    new = ranks.run(test_workers.after, 2, plans=test_workers.plans(2, CASES), kind="plain", files=files)
    for number, (case, moment) in enumerate(zip(CASES, moments)):
        test_workers.check(case, moment, [each[number] for each in old], [each[number] for each in new], bits=False)


def refusals(rank):
    """{what is asked for: what wrap() says}."""
    import gradweave
    from gradweave import core
    from sharded_models import make_stack, mesh_of, shard

    flat = [distributed.new_group(pair) for pair in ([0, 1], [2, 3])]
    sharded = make_stack()
    shard(sharded, mesh_of()["inside"])
    for_three = core.make_plan(workload(), two_levels(9, 3), "ddp")
    asked = {
        "averages": {"scheme": "local_sgd", "workers_per_node": 2},
        "codec": {"scheme": "ddp", "options": {"compressor": "int8"}, "workers_per_node": 2},
        "plan of averages": {"plan": core.make_plan(workload(), two_levels(4, 2), "dreamddp")},
        "one": {"workers_per_node": 1}, "three": {"workers_per_node": 3}, "one node": {"workers_per_node": 4},
        "follow": {"scheme": "dear", "follow": True, "workers_per_node": 2},
        "groups": {"process_group": flat[rank // 2], "plan_group": distributed.group.WORLD, "workers_per_node": 2},
        "sharded": {"scheme": "dear", "workers_per_node": 2}, "other nodes": {"plan": for_three, "workers_per_node": 2}}
    said = {}
    for what, arguments in asked.items():
        model = sharded if what == "sharded" else make_net()
        try:
            with gradweave.wrap(model, make_optimizer("sgd", model), **arguments, timeout=30) as (model, optimizer):
                train(model, optimizer, rank, 1)
            said[what] = "nothing"
        except ValueError as error:
            said[what] = str(error)
    return said


def test_what_can_not_be_run_is_refused_by_name_with_a_remedy():
    expected = {
        "averages": "averages of parameters can't be trained over two levels of links; leave workers_per_node out",
        "codec": "compressed gradients can't be trained over two levels of links",
        "plan of averages": "averages of parameters can't be trained over two levels",
        "one": "workers_per_node=1: give at least 2", "three": "4 ranks don't fill two or more nodes of 3",
        "one node": "4 ranks don't fill two or more nodes of 4", "follow": "leave out follow or workers_per_node",
        "groups": "or train without plan_group", "sharded": "leave out workers_per_node, or train without",
        "other nodes": "it is for nodes of 3 workers; make one for nodes of 2"}
    for said in ranks.run(refusals, 4):
        for what, words in expected.items():
            assert words in said[what], (what, said[what])
