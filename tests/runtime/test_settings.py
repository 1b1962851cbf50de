"""Arguments of gradweave.wrap() of a wrong type, and what the environment says in place of arguments."""

import math

import pytest
import ranks
import torch
from models import cluster, make_net, workload


@pytest.mark.parametrize("said, on", [("1", True), ("true", True), ("TRUE", True), ("on", True), ("0", False),
                                      ("false", False), ("off", False), ("", False), (None, False)])
def test_the_environment_may_switch_the_check_on(monkeypatch, said, on):
    from gradweave.settings import Settings

    monkeypatch.delenv("GRADWEAVE_CHECK", raising=False)
    if said is not None:
        monkeypatch.setenv("GRADWEAVE_CHECK", said)
    assert Settings().checks is on and Settings(check=not on).checks is not on


def with_an_unknown_switch(rank):
    import os

    import gradweave

    os.environ["GRADWEAVE_CHECK"] = "maybe"
    model = make_net()
    with pytest.raises(gradweave.InvalidInput) as error:
        gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    return str(error.value)


def test_another_word_for_the_check_is_refused_on_every_rank():
    for told in ranks.run(with_an_unknown_switch, 2):
        assert "GRADWEAVE_CHECK='maybe'" in told and "1, true or on" in told


def given_by_generators(rank):
    import gradweave

    model = make_net()
    optimizers = (torch.optim.SGD(part.parameters(), 0.1) for part in (model.wide, model.out))
    model, optimizers = gradweave.wrap(model, optimizers, exclude=(name for name in ("conv", "out.bias")))
    names = model.gradweave.names
    model.gradweave.close()
    return names, len(optimizers)


def test_optimizers_and_names_may_come_from_generators():
    (names, optimizers), = ranks.run(given_by_generators, 1)
    assert "out.weight" in names and not {"conv.weight", "conv.bias", "out.bias"} & set(names) and optimizers == 2


@pytest.mark.parametrize("arguments, said", [
    ({"timeout": math.inf}, "timeout=inf: give seconds"), ({"timeout": "300"}, "timeout='300': give seconds"),
    ({"arrival_timeout": 0}, "arrival_timeout=0: give seconds"), ({"warm_up": "3"}, "warm_up='3': give a whole number"),
    ({"profile_iterations": 2.5}, "profile_iterations=2.5: give a whole number"),
    ({"options": "compressor=int4"}, "options='compressor=int4': give a dictionary"),
    ({"exclude": None}, "exclude=None: give a list of names"),
    ({"exclude": [torch.nn.Linear(1, 1)]}, "exclude= has a Linear: give names"),
    ({"scaler": True}, "scaler=True: give the loop's"),
    ({"workers_per_node": "2"}, "workers_per_node='2': give a whole number"), ({"plan": 5}, "plan= is of type int: give"),
    ({"follow": True, "plan": {}}, "follow= makes new plans, and plan= gives one"),
    ({"islands": "a:1", "key": "k", "between": "int4"}, "between='int4': give a dictionary"),
    ({"islands": "a:1", "key": "k", "between": {"period": "8"}}, "period is '8'; give a number of steps"),
    ({"islands": "a:1", "key": "k", "between": {"period": None}}, "period is None; give a number of steps"),
])
def test_an_argument_of_a_wrong_type_is_named(arguments, said):
    import gradweave

    model = make_net()
    with pytest.raises(ValueError) as error:
        gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1), **arguments)
    assert said in str(error.value)


@pytest.mark.parametrize("scheme, options", [("wfbp", {"compressor": "top_k", "compressor_density": 1.0}),
                                             ("delayed_averaging", {"compressor": "auto", "outer_learning_rate": 1.0})])
def test_a_plan_goes_with_the_options_that_made_it(scheme, options):
    import gradweave
    from gradweave import core

    model = make_net()
    plan = core.make_plan(workload(), cluster(workers=2), scheme, options)
    model, _ = gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1), scheme, plan=plan, options=options)
    model.gradweave.close()


@pytest.mark.parametrize("given, said", [(None, "is of type NoneType"), ("sgd", "is of type str"),
                                         ([torch.nn.Parameter(torch.zeros(1))], "is of type Parameter"), ([], "no optimizer")])
def test_what_is_no_optimizer_is_refused(given, said):
    import gradweave

    with pytest.raises(ValueError, match=said):
        gradweave.wrap(make_net(), given)


def with_a_string_on_one_rank(rank):
    """The others learn of it."""
    import gradweave

    model = make_net()
    with pytest.raises(ValueError) as error:
        gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1) if rank == 0 else "sgd", timeout=20)
    return str(error.value)


def test_what_one_rank_gives_wrongly_all_are_told():
    first, second = ranks.run(with_a_string_on_one_rank, 2)
    assert "rank 1 reports: gradweave.wrap: the optimizer is of type str" in first and "is of type str" in second
