"""What is measured of a run, and plans that follow it."""

import json
import re
from random import Random

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


def train_until(model, optimizer, rank, first, reached):
    """Returns how many steps there were in all. How soon that is depends on the machine (bench/following.py)."""
    while not reached() and first < 600:
        train(model, optimizer, rank, range(first, first + 20))
        first += 20
    return first


def follow(rank):
    """On a link whose start-up rises from 50 us to 20 ms, under a plan of many messages."""
    import gradweave

    link = gradweave.EmulatedLink(50, 0.02)
    model = make_net()
    # A scheme whose ops don't share the link: then start-ups are told from rates.
    model, optimizer = gradweave.wrap(model, sgd(model), "mg_wfbp", links=link, follow=True, warm_up=1, profile_iterations=2,
                                      timeout=20)
    train(model, optimizer, rank, range(60))
    model.gradweave.install(core.make_plan(model.gradweave.workload, model.gradweave.cluster, "wfbp"))
    link.set(20_000, 0.02)
    steps = train_until(model, optimizer, rank, 60, lambda: model.gradweave.cluster["links"][0]["startup_us"] > 5000)
    train(model, optimizer, rank, range(steps, steps + 40))
    found = {"report": model.gradweave.report(), "prediction": model.gradweave.prediction, "steps": steps + 40,
             "ops": len(model.gradweave.plan["period"][0]["ops"])}
    gradweave.finish(model)
    model.gradweave.close()
    return found | {"parameters": parameters(model)}


def plain(rank, steps):
    from torch.nn.parallel import DistributedDataParallel

    model = make_net()
    replica, optimizer = DistributedDataParallel(model), sgd(model)
    train(replica, optimizer, rank, range(steps))
    return parameters(model)


def test_an_exact_job_follows_its_link_and_keeps_every_bit():
    found = ranks.run(follow, 2)
    expected = ranks.run(plain, 2, steps=found[0]["steps"])
    for each, wanted in zip(found, expected):
        assert each["ops"] == 1
        assert each["prediction"]["iteration_us"] > 15_000
        assert equal(each["parameters"], wanted)
        assert each["report"]["measured"]["exposed_us"] > 10_000


def recover(rank):
    """On two links, of which the plan leaves one idle until it is as good as the other."""
    import gradweave

    slow = gradweave.EmulatedLink(30_000, 5, name="slow")
    model = make_net()
    links = [gradweave.EmulatedLink(1000, 0.5, name="fast"), slow]
    model, optimizer = gradweave.wrap(model, sgd(model), links=links, warm_up=1, profile_iterations=2, timeout=20)

    def used():
        return {op["link"] for iteration in model.gradweave.plan["period"] for op in iteration["ops"]}

    train(model, optimizer, rank, range(100))
    before = used()
    slow.set(1000, 0.5)
    steps = train_until(model, optimizer, rank, 100, lambda: len(used()) == 2)
    after = used()
    gradweave.finish(model)
    model.gradweave.close()
    return parameters(model), before, after, steps


def test_a_link_that_was_left_idle_is_used_once_it_recovers():
    found = ranks.run(recover, 2)
    expected = ranks.run(plain, 2, steps=found[0][-1])
    for (each, before, after, _), wanted in zip(found, expected):
        assert (before, after) == ({"fast"}, {"fast", "slow"})
        assert equal(each, wanted)


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


def switch_to_any(rank, optimizer, plans):
    import gradweave

    model = make_net()
    make = {"sgd": sgd, "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.001)}[optimizer]
    model, optimizer = gradweave.wrap(model, make(model), plan=plans[0], links=gradweave.EmulatedLink(100, 0.1), timeout=20,
                                      report=False)
    random = Random(1)
    for _ in range(2):
        train(model, optimizer, rank, range(40), {
            step: lambda plan=random.choice(plans): model.gradweave.install(plan) for step in random.sample(range(40), 5)})
        gradweave.finish(model)  # which compares the ranks
    model.gradweave.close()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_after_a_switch_from_local_steps_to_exact_ones_ranks_step_alike(optimizer):
    plans = plans_of(["delayed_averaging", "us_byte", "local_sgd", "dear", "dreamddp", "wfbp"])
    ranks.run(switch_to_any, 2, optimizer=optimizer, plans=plans)


class Sometimes(nn.Module):

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, both):
        return self.second(self.first(x)) if both else self.first(x)


def switch_where_states_differ(rank, plans):
    import gradweave

    model = Sometimes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer = gradweave.wrap(model, optimizer, plan=plans[0], links=gradweave.EmulatedLink(100, 0.1), timeout=20,
                                      find_unused_parameters=True, report=False)
    for step in range(20):
        if step == 10:
            model.gradweave.install(plans[1])
            buffers = [optimizer.state[p]["momentum_buffer"].clone() for p in model.parameters()]
        optimizer.zero_grad()
        model(torch.ones(4, 8), both=rank == 0 or step >= 10).square().sum().backward()
        optimizer.step()
    gradweave.finish(model)
    model.gradweave.close()
    return buffers


def test_what_one_rank_alone_keeps_of_a_parameter_is_shared_by_all():
    plans = plans_of(["local_sgd", "wfbp"], Sometimes())
    first, second = ranks.run(switch_where_states_differ, 2, plans=plans)
    assert all(torch.equal(a, b) for a, b in zip(first, second)) and all(buffer.abs().sum() > 0 for buffer in first)


def workload_of(model):
    layers = [{"name": name, "forward_us": 100.0, "backward_us": 200.0,
               "tensors": [{"name": f"{name}.{part}", "numel": tensor.numel(), "dtype": "float32"}
                           for part, tensor in module.named_parameters()]}
              for name, module in model.named_children()]
    return {"version": 1, "name": "net", "layers": layers}


def plans_of(schemes, model=None):
    workload = workload_of(model or make_net())
    cluster = {"version": 1, "workers": 2, "workers_per_node": 1, "startup_growth": "linear",
               "links": [{"name": "emulated", "startup_us": 100.0, "us_per_byte": 0.02, "concurrency": 1}]}
    plans = []
    for scheme in schemes:
        try:
            plans.append(core.make_plan(workload, cluster, scheme))
        except RuntimeError:
            continue
    return plans


def exact_plans():
    return plans_of([scheme["name"] for scheme in core.schemes() if scheme["consistency"] == "exact"])


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
    model.again.register_full_backward_pre_hook(lambda *_: time.sleep(0.05 if rank == 1 else 0))
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
        assert report["op"]["measured_us"] < report["measured"]["iteration_us"] / 2  # which rank 0 waits in its op
        assert "rank 1 computes" in report["text"]
        assert report["measured"]["iteration_us"] > 100_000
        assert {"predicted", "ccr", "ccr_uncertainty", "links", "differences"} <= set(report)


def data_of(page):
    """What a page holds."""
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text())[1])


def write_pages(rank, folder):
    import gradweave

    model = make_net()
    model, optimizer = gradweave.wrap(model, sgd(model), "wfbp", links=gradweave.EmulatedLink(100, 0.01), warm_up=1,
                                      profile_iterations=2, timeout=60)
    errors = []
    try:
        model.gradweave.report(folder / "early.html")
    except gradweave.InvalidInput as error:
        errors.append(str(error))
    train(model, optimizer, rank, range(40))
    found = model.gradweave.report(folder / "page.html")
    model.gradweave.record_timeline()
    train(model, optimizer, rank, range(40, 43))
    model.gradweave.report(str(folder / "timeline.html"))
    try:
        model.gradweave.report(folder / "none" / "page.html")
    except gradweave.InvalidInput as error:
        errors.append(str(error))
    gradweave.finish(model)
    model.gradweave.close()
    return found, errors


def test_a_report_is_written_as_a_page(tmp_path):
    (found, errors), (also, others) = ranks.run(write_pages, 2, folder=tmp_path)
    assert found["measured"] == also["measured"]
    assert ["record_timeline()" in errors[0], "none/page.html" in errors[1], others] == [True, True, []]
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "timeline.html"}
    page = data_of(tmp_path / "page.html")
    assert page["measured"] == found["text"].splitlines()
    rows = {row["name"]: row for row in page["rows"]}
    assert {"ddp", "us_byte", "dear", "wfbp in force"} <= rows.keys() and "auto" not in rows
    assert rows["wfbp in force"]["given"] and rows["wfbp in force"]["iteration_us"] == found["predicted"]["iteration_us"]
    assert not [row for row in page["rows"] if row["origin"] != "simulated"]
    measured, = [row for row in data_of(tmp_path / "timeline.html")["rows"] if row["origin"] != "simulated"]
    assert measured["name"] == "wfbp in force" and measured["origin"] == "measured, emulated link"
    assert [line for line in data_of(tmp_path / "timeline.html")["advice"] if "The prediction is" in line]


def test_the_core_writes_pages_without_a_job(tmp_path):
    workload = workload_of(make_net())
    cluster = {"version": 1, "workers": 2, "workers_per_node": 1, "startup_growth": "linear",
               "links": [{"name": "net", "startup_us": 100.0, "us_per_byte": 0.02}]}
    plan = core.make_plan(workload, cluster, "dear")
    core.write_report(tmp_path / "page.html", workload=workload, cluster=cluster, schemes=["ddp"], plans={"mine": plan})
    assert [row["name"] for row in data_of(tmp_path / "page.html")["rows"]] == ["ddp", "mine"]
    with pytest.raises(ValueError, match="nothing to show"):
        core.write_report(tmp_path / "page.html")
    with pytest.raises(ValueError, match="mine.*is not a valid plan"):
        core.write_report(tmp_path / "page.html", workload=workload, cluster=cluster, plans={"mine": plan | {"blocks": []}})
