"""What is measured of a run, and plans that follow it."""

import json

import pytest
import torch
from torch import nn

import ranks
from models import batch, make_net, parameters

from gradweave import core


def train(model, optimizer, rank, steps, at=None):
    """at: {step: what is called before it}."""
    for step in steps:
        if at and step in at:
            at[step]()
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def follow(rank, steps):
    """On a link whose start-up rises from 50 us to 20 ms, where a plan of many messages was the best."""
    import gradweave

    link = gradweave.EmulatedLink(50, 0.02)
    model = make_net()
    model, optimizer = gradweave.wrap(model, sgd(model), links=link, warm_up=1, profile_iterations=2, timeout=20)
    plans = []

    def look():
        plans.append(json.dumps(model.gradweave.plan, sort_keys=True))

    train(model, optimizer, rank, range(steps), {59: look, 60: lambda: link.set(20_000, 0.02)} | dict.fromkeys(
        range(61, steps), look))
    report = model.gradweave.report()
    startup = model.gradweave.cluster["links"][0]["startup_us"]
    gradweave.finish(model)
    model.gradweave.close()
    return {"parameters": parameters(model), "plans": len(set(plans)), "startup_us": startup, "report": report}


def plain(rank, steps):
    from torch.nn.parallel import DistributedDataParallel

    model = make_net()
    replica, optimizer = DistributedDataParallel(model), sgd(model)
    train(replica, optimizer, rank, range(steps))
    return parameters(model)


def test_an_exact_job_follows_its_link_and_keeps_every_bit():
    found, expected = ranks.run(follow, 2, steps=240), ranks.run(plain, 2, steps=240)
    for each, wanted in zip(found, expected):
        assert each["plans"] > 1
        assert each["startup_us"] > 5000
        assert equal(each["parameters"], wanted)
        assert each["report"]["measured"]["exposed_us"] > 10_000


def switch_often(rank, switches, plans):
    import gradweave

    link = gradweave.EmulatedLink(1, 0)
    model = make_net()
    model, optimizer = gradweave.wrap(model, sgd(model), plan=plans[0], links=link, timeout=20)
    train(model, optimizer, rank, range(switches),
          {step: lambda step=step: model.gradweave.install(plans[step % len(plans)]) for step in range(1, switches)})
    gradweave.finish(model)
    model.gradweave.close()
    return parameters(model)


def workload_of(model):
    layers = [{"name": name, "forward_us": 100.0, "backward_us": 200.0,
               "tensors": [{"name": f"{name}.{part}", "numel": tensor.numel(), "dtype": "float32"}
                           for part, tensor in module.named_parameters()]}
              for name, module in model.named_children()]
    return {"version": 1, "name": "net", "layers": layers}


def exact_plans():
    workload = workload_of(make_net())
    cluster = {"version": 1, "workers": 2, "workers_per_node": 1, "startup_growth": "linear",
               "links": [{"name": "emulated", "startup_us": 100.0, "us_per_byte": 0.02, "concurrency": 1}]}
    plans = []
    for scheme in core.schemes():
        try:
            plan = core.make_plan(workload, cluster, scheme["name"])
        except RuntimeError:
            continue
        if scheme["consistency"] == "exact":
            plans.append(plan)
    return plans


def test_switches_between_exact_plans_change_no_bit():
    compare_switches(60)


@pytest.mark.slow
def test_a_thousand_switches():
    compare_switches(1000)


def compare_switches(switches):
    plans = exact_plans()
    assert len(plans) > 5
    found = ranks.run(switch_often, 2, switches=switches, plans=plans)
    expected = ranks.run(plain, 2, steps=switches)
    for mine, theirs in zip(found, expected):
        assert equal(mine, theirs)


def report_straggler(rank):
    """Rank 1 computes longer, and rank 0 waits for it."""
    import time

    import gradweave

    model = make_net()
    model.again.register_full_backward_pre_hook(lambda *_: time.sleep(0.03 if rank == 1 else 0))
    model, optimizer = gradweave.wrap(model, sgd(model), "ddp", links=gradweave.EmulatedLink(100, 0.01), warm_up=1,
                                      profile_iterations=2, timeout=20)
    early = model.gradweave.report()
    train(model, optimizer, rank, range(30))
    report = model.gradweave.report()
    gradweave.finish(model)
    model.gradweave.close()
    return early, report


def test_a_report_names_the_straggler_and_does_not_call_waiting_communication():
    for early, report in ranks.run(report_straggler, 2):
        assert early is None
        assert [each["rank"] for each in report["stragglers"]] == [1]
        assert report["op"]["measured_us"] < 30_000  # of which rank 0 waits as long in its ops
        assert "rank 1 computes" in report["text"]
        assert report["measured"]["iteration_us"] > 60_000
        assert {"predicted", "ccr", "ccr_uncertainty", "links", "differences"} <= set(report)
