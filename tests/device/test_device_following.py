"""Following, report() and tuning on an accelerator: by its events, in time that only models move, while the host waits for
nothing."""

import re

import pytest
import torch
from torch import distributed, nn

import jobs
import ranks
from test_virtual_time import BACKWARD_US, FORWARD_US, STARTUP_US, Layer

US_PER_BYTE = 0.02
ENOUGH = 400  # iterations, in which a plan is made beside the training


def job(layers):
    model = nn.Sequential(*(Layer(number) for number in range(layers))).to("sim")
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, iterations):
    inputs = torch.zeros(1, device="sim", requires_grad=True)
    for _ in range(iterations):
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()


def wrapped(scheme, layers=4, **settings):
    """(a step of a wrapped job whose layers and links take what models say, its session)."""
    import gradweave
    from accelerator import native
    from gradweave import probe

    probe.JOB_SECONDS = 0.02  # that pass on the accelerator
    native.carry_by(cost_us=(STARTUP_US, US_PER_BYTE))
    settings = {"report": False, "timeout": 60} | settings
    model, optimizer = gradweave.wrap(*job(layers), scheme, warm_up=2, profile_iterations=3, **settings)

    def step(iterations=1):
        train(model, optimizer, iterations)

    step(5)
    return step, model.gradweave


def costs(session):
    return [(link["startup_us"], link["us_per_byte"]) for link in session.cluster["links"]]


def watched(rank, schemes):
    """{scheme: (what links were measured to cost, waits of the host in 60 iterations, what an iteration took and by the
    simulator, likewise exposed communication, the text of report(), what the checker said)}."""
    from accelerator import native

    found = {}
    for scheme in schemes:
        step, session = wrapped(scheme, follow=True)
        step(40)
        waits = native.host_waits()
        step(60)
        waits = native.host_waits() - waits
        report, predicted = session.report(), session.prediction
        found[scheme] = (costs(session), waits, (report["measured"]["iteration_us"], predicted["iteration_us"]),
                         (report["measured"]["exposed_us"], predicted["exposed_us"]), report["text"], native.take_reports())
        assert session.counters["exposed_ns"] > 0 or predicted["exposed_us"] == 0
        session.close()
    return found


def check_watched(ranks, schemes):
    for found in jobs.run(watched, ranks, schemes=schemes):
        for scheme, (links, waits, iteration, exposed, text, said) in found.items():
            assert said == [] and waits == 0, scheme
            assert links == [(pytest.approx(STARTUP_US, rel=0.01), pytest.approx(US_PER_BYTE, rel=0.01))]
            assert iteration[0] == pytest.approx(iteration[1], rel=0.01), scheme
            assert exposed[0] == pytest.approx(exposed[1], rel=0.02, abs=20), scheme
            assert "iteration" in text


def test_what_a_plan_takes_is_measured_by_events_and_no_host_waits():
    check_watched(2, ["ddp", "dear"])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_what_each_exact_plan_takes_is_measured_by_events(ranks):
    from gradweave import core

    check_watched(ranks, [row["name"] for row in core.schemes() if row["consistency"] == "exact" and row["name"] != "auto"])


def recorded(rank, schemes):
    """{scheme: (what was recorded of 20 iterations, what they are predicted to take, waits of the host meanwhile, lines that
    were told, what the checker said)}."""
    from accelerator import native

    lines = ranks.lines_told()
    found = {}
    for scheme in schemes:
        step, session = wrapped(scheme, report=True)
        step(20)
        session.record_timeline()
        waits = native.host_waits()
        step(20)
        waits = native.host_waits() - waits
        spans = session.timeline().to_dict()["spans"]
        session.record_timeline(False)
        prediction = session.prediction
        session.close()
        found[scheme] = spans, prediction, waits, lines[:], native.take_reports()
        lines.clear()
    return found


def test_a_timeline_and_the_last_line_say_what_the_accelerator_took():
    for rank, found in enumerate(jobs.run(recorded, 2, schemes=["ddp", "dear"])):
        for scheme, (spans, prediction, waits, lines, said) in found.items():
            assert said == [] and waits == 0, scheme
            lasted = [(span, span["end_us"] - span["begin_us"]) for span in spans]
            begins = {}
            for span in spans:
                if span["track"] == 0:
                    begins[span["iteration"]] = min(span["begin_us"], begins.get(span["iteration"], span["begin_us"]))
            first, last = min(begins), max(begins)
            assert last - first == 19
            assert (begins[last] - begins[first]) / 19 == pytest.approx(prediction["iteration_us"], rel=0.01), scheme
            exposed = sum(us for span, us in lasted if span["kind"] == "wait" and first < span["iteration"] <= last) / 19
            assert exposed == pytest.approx(prediction["exposed_us"], rel=0.02, abs=20), scheme
            for kind, least in (("forward", FORWARD_US), ("backward", BACKWARD_US)):
                times = {round(us, -1) for span, us in lasted if span["kind"] == kind}
                assert times == {least, 1.5 * least}, (scheme, kind)
            whole = {"ddp": 1, "dear": 0.5}[scheme]  # of an all-reduce
            ops = [(us, span["bytes"]) for span, us in lasted if span["kind"] == "op"]
            assert ops and all(us == pytest.approx(whole * (STARTUP_US + size * US_PER_BYTE), rel=0.01) for us, size in ops)
            if rank == 0:
                measured = re.search(r"([0-9.]+) ms an iteration measured", lines[-1])[1]
                assert float(measured) == pytest.approx(prediction["iteration_us"] / 1000, abs=0.06, rel=0.01), lines


def changed(rank):
    """(what links cost by measurement, and once they have become slower, waits of the host between, what the checker said)
    under a plan that follows."""
    from accelerator import native

    step, session = wrapped("mg_wfbp", follow=True)
    step(60)
    before = costs(session)
    native.carry_by(cost_us=(200 * STARTUP_US, US_PER_BYTE))
    waits = waits_until = native.host_waits()
    for _ in range(ENOUGH):
        step()
        if costs(session) != before:
            break
        waits_until = native.host_waits()
    found = before, costs(session), waits_until - waits, native.take_reports()
    session.close()
    return found


def test_a_new_plan_comes_once_links_have_become_slower():
    for before, after, waits, said in jobs.run(changed, 2):
        assert waits == 0 and said == []
        assert before == [(pytest.approx(STARTUP_US, rel=0.01), pytest.approx(US_PER_BYTE, rel=0.01))]
        assert after[0][0] > 50 * STARTUP_US


def tuned(rank):
    """(trials, what the plan in force takes by the simulator)."""
    step, session = wrapped("dear", layers=6, tune=4)
    step(145)
    found = session.tuning, session.prediction["iteration_us"]
    session.close()
    return found


def test_plans_are_tuned_by_what_the_accelerator_took():
    first, second = jobs.run(tuned, 2)
    assert first == second
    tuning, predicted = first
    assert tuning["ended"] and len(tuning["trials"]) > 1
    best = tuning["trials"][tuning["best"]]["measured_us"]
    assert best == pytest.approx([predicted] * len(best), rel=0.01)
    assert all(min(best) <= time for trial in tuning["trials"] for time in trial["measured_us"])


def used(session):
    return [op["link"] for each in session.plan["period"] for op in each["ops"]]


def echoed(rank):
    """On two links, of which the plan leaves the slow one idle until it is as good as the other: (links used before and after,
    echoes that went round before, waits of the host in the meantime, what the checker said)."""
    import gradweave
    from accelerator import native

    fast, slow = (1000.0, 0.5), (30_000.0, 5.0)
    groups = [distributed.new_group() for _ in range(2)]
    native.carry_by(cost_us=fast)
    model, optimizer = job(4)
    model, optimizer = gradweave.wrap(model, optimizer, links=groups, warm_up=2, profile_iterations=3, report=False,
                                      timeout=60)
    session = model.gradweave
    last = list(distributed.distributed_c10d._world.pg_names.values())[-1]  # the group of the session's second link
    native.carry_by(cost_us=fast, cost_us_of_group={last: slow})
    train(model, optimizer, 100)
    before = set(used(session))
    native.take_launches()
    waits = native.host_waits()
    train(model, optimizer, 60)
    waits = native.host_waits() - waits
    echoes = [each for each in native.take_launches() if f"of group {last}, 65536 bytes" in each]
    native.carry_by(cost_us=fast)
    for _ in range(ENOUGH):
        train(model, optimizer, 1)
        if len(set(used(session))) == 2:
            break
    found = len(before), len(set(used(session))), len(echoes), waits, native.take_reports()
    session.close()
    return found


def test_a_link_of_the_accelerator_that_was_left_idle_is_used_once_it_recovers():
    first, second = jobs.run(echoed, 2)
    assert first == second
    before, after, echoes, waits, said = first
    assert (before, after, waits, said) == (1, 2, 0, [])
    assert echoes >= 2
