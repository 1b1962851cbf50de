"""Plans that are tried in training, and the best one that stays."""

import statistics

import pytest
import torch

import ranks
from gradweave import core
from models import cluster, make_net, make_optimizer, parameters, train, workload

TRIALS = 4
# A start that sends every layer, or slice, by itself over a link where each op takes 5 ms.
STARTS = {"dear": {"buffer_bytes": 1}, "bytescheduler": {"partition_bytes": 4000, "credit_bytes": 1}, "auto": {}}


def wrapped(scheme, **more):
    import gradweave

    model = make_net()
    return gradweave.wrap(model, make_optimizer("sgd", model), scheme, links=gradweave.EmulatedLink(5000, 0.01), warm_up=1,
                          profile_iterations=2, timeout=20, report=False, **more)


def train_until_tuned(model, optimizer, rank):
    """Returns how many iterations that took."""
    for step in range(1000):
        train(model, optimizer, rank, 1, first=step)
        if (model.gradweave.tuning or {}).get("ended"):
            return step + 1
    raise AssertionError("the tuning does not end")


def tune(rank, scheme):
    import gradweave

    model, optimizer = wrapped(scheme, options=STARTS[scheme], tune=TRIALS)
    steps = train_until_tuned(model, optimizer, rank)
    session = model.gradweave
    plan, seen, early = session.plan, session.tuning, session.report()
    train(model, optimizer, rank, 25, first=steps)
    report = session.report()
    gradweave.finish(model)
    prediction = session.prediction
    session.close()
    return {"steps": steps + 25, "parameters": parameters(model), "plan": plan, "tuning": seen, "early": early,
            "report": report, "prediction": prediction}


def plain(rank, steps):
    from torch.nn.parallel import DistributedDataParallel

    model = make_net()
    train(DistributedDataParallel(model), make_optimizer("sgd", model), rank, steps)
    return parameters(model)


@pytest.mark.parametrize("scheme", STARTS)
def test_trials_change_no_bit_and_the_best_plan_stays(scheme):
    found = ranks.run(tune, 2, scheme=scheme)
    expected = ranks.run(plain, 2, steps=found[0]["steps"])
    for each, wanted in zip(found, expected):
        assert each["tuning"] == found[0]["tuning"]
        trials, best = each["tuning"]["trials"], each["tuning"]["best"]
        made = core.chosen(each["plan"])
        if scheme == "auto":
            assert len({trial["scheme"] for trial in trials}) > 1
        else:
            assert trials[0]["options"] == {name: str(value) for name, value in STARTS[scheme].items()}
        assert 1 < len(trials) <= TRIALS and sum(len(trial["measured_us"]) for trial in trials) <= TRIALS + 6
        assert trials[best]["scheme"] == made["scheme"] and trials[best]["options"].items() <= made["options"].items()
        medians = [statistics.median(trial["measured_us"]) for trial in trials]
        assert medians[best] <= medians[0]
        assert each["early"] is None and each["report"]["text"]
        assert each["prediction"]["iteration_us"] > 0
        assert all(torch.equal(value, each["parameters"][name]) for name, value in wanted.items())


def tune_where_training_may_change(rank):
    model, optimizer = wrapped("auto", options={"allow": "exact+local+corrected"}, tune=TRIALS, moments="local")
    steps = train_until_tuned(model, optimizer, rank)
    tuning, plan = model.gradweave.tuning, model.gradweave.plan
    train(model, optimizer, rank, 10, first=steps)
    model.gradweave.finish()
    model.gradweave.close()
    return {"tuning": tuning, "plan": plan, "parameters": parameters(model)}


def test_plans_that_change_training_are_tried_where_they_may_and_all_ranks_end_equal():
    first, second = ranks.run(tune_where_training_may_change, 2)
    assert first["tuning"] == second["tuning"] and first["plan"] == second["plan"]
    assert len(first["tuning"]["trials"]) == TRIALS
    assert all(torch.equal(value, second["parameters"][name]) for name, value in first["parameters"].items())


def tune_where_a_plan_is_refused(rank):
    """No rank can put the second plan in force."""
    model, optimizer = wrapped("dear", options=STARTS["dear"], tune=2)
    session, put_in_force, plans = model.gradweave, model.gradweave.put_in_force, []

    def refuse(plan, workload):
        plans.append(plan)
        if len(plans) == 3:  # after the starter and the start
            return "not this one"
        return put_in_force(plan, workload)

    session.put_in_force = refuse
    train_until_tuned(model, optimizer, rank)
    session.finish()
    tuned = session.tuning
    session.close()
    return tuned, session.plan, plans


def test_a_plan_that_is_refused_costs_a_trial_and_the_start_stays():
    for tuning, plan, plans in ranks.run(tune_where_a_plan_is_refused, 2):
        assert tuning["trials"][1]["measured_us"] == [None]
        assert tuning["best"] == 0 and plan == plans[1]


def install_meanwhile(rank):
    model, optimizer = wrapped("dear", options=STARTS["dear"], tune=TRIALS)
    train(model, optimizer, rank, 30)
    tried = model.gradweave.tuning
    plan = model.gradweave.plan
    model.gradweave.install(plan)
    train(model, optimizer, rank, 40, first=30)
    after = model.gradweave.tuning
    kept = model.gradweave.plan == plan
    model.gradweave.finish()
    model.gradweave.close()
    return tried, after, kept


def test_a_plan_that_the_user_installs_ends_the_tuning():
    for tried, after, kept in ranks.run(install_meanwhile, 2):
        assert tried and tried == after and not after["ended"] and kept


def refusals(rank):
    import gradweave

    def said(scheme="dear", make=make_net, **arguments):
        model = make()
        try:
            gradweave.wrap(model, make_optimizer("sgd", model), scheme, links=gradweave.EmulatedLink(1, 0), report=False,
                           **arguments)
        except ValueError as error:
            return str(error)

    def compiled():
        model = make_net()
        model.compile(backend="eager")
        return model

    def compiled_later():
        model, optimizer = wrapped("dear", tune=4)
        try:
            train(torch.compile(model, backend="eager"), optimizer, rank, 1)
        except ValueError as error:
            model.gradweave.close(error)
            return str(error)

    return {"wfbp": said("wfbp", tune=8), "one": said(tune=1), "text": said(tune="8"),
            "option": said(options={"layers_per_group": 4}, tune=8), "compiled": said(make=compiled, tune=8),
            "plan": said(plan=core.make_plan(workload(), cluster(1), "dear"), tune=8), "later": compiled_later()}


def test_what_cannot_be_tuned_is_refused_with_the_remedy():
    found = ranks.run(refusals, 2)[0]
    assert "scheme 'wfbp' has no option that is tuned on the running job" in found["wfbp"]
    assert "use one of ddp, horovod, p3, bytescheduler, us_byte, dear, auto" in found["wfbp"]
    assert "tune: 1 trials; give 2 to 1000" in found["one"]
    assert "give a number of trials" in found["text"]
    assert "exclude each other" in found["option"]
    assert "compiled again for each trial" in found["compiled"] and "compiled again" in found["later"]
    assert "plan= gives one" in found["plan"]
