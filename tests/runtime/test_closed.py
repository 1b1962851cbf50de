"""After close() every public call is an error that says what to do; each one is found by introspection."""

import copy
import inspect
import re
import warnings

import pytest
import ranks
import torch

import gradweave
from gradweave import _native, core, islands, wrapping
from gradweave.session import UNFINISHED, Session
from models import batch, cluster, make_net, make_optimizer, train, workload

EVER = {"close"}  # may be called again
# One argument of each type that the engine's methods take, by how pybind11 writes it.
SAMPLES = {"str": "", "int": 0, "SupportsInt": 0, "float": 0.0, "SupportsFloat": 0.0, "bool": False, "dict": {}, "list": [],
           "Sequence": [], "Mapping": {}, "Optional": None, "Callable": None}


def public(cls):
    return sorted(name for name in vars(cls) if not name.startswith("_") and name not in EVER)


def samples(method, given_values):
    """Positional arguments that fit a method of the extension module."""
    _, _, given = re.match(r"(\w+)\(self: ([\w.]+)(?:, (.*))?\) ->", method.__doc__).groups()
    kinds = re.findall(r"\w+: (?:\w+\.)*(\w+)[^:]*(?:,|$)", given or "")
    return [{**SAMPLES, **given_values}[kind] for kind in kinds]


def ask(held, cls, name, given):
    member = vars(cls)[name]
    if isinstance(member, property):
        return getattr(held, name)
    if inspect.isfunction(member):
        return getattr(held, name)()
    return getattr(held, name)(*samples(member, given))


def asked_of_closed(rank):
    """Of each public member of the session and the engine: what it raises."""
    model = torch.nn.Linear(4, 2)
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1), "ddp")
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    session = model.gradweave
    engine = session.engine
    given = {"Plan": session.plan, "Workload": session.workload}
    session.close()
    session.close()
    engine.close()
    told = {}
    for held, cls in ((session, Session), (engine, _native.Engine)):
        for name in public(cls):
            try:
                told[f"{cls.__name__}.{name}"] = repr(ask(held, cls, name, given))
            except Exception as error:
                told[f"{cls.__name__}.{name}"] = f"{type(error).__name__}: {error}"
    return told


def test_a_closed_session_refuses_every_call():
    told, = ranks.run(asked_of_closed, 1)
    assert len(told) > 60 and "Session.report" in told and "Session.state_dict" in told and "Engine.counters" in told
    assert {name: said for name, said in told.items()
            if not said.startswith("InvalidInput") or "close()" not in said or "wrap the model again" not in said} == {}


def test_a_closed_session_of_an_island_refuses_every_call(meeting):
    model = torch.nn.Linear(4, 2)
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1), **meeting.given, report=False)
    session = model.gradweave
    session.close()
    session.close()
    calls = [name for name in public(islands.Session) if callable(getattr(session, name))]
    assert {"finish", "state_dict", "load_state_dict", "no_sync", "synchronize"} <= set(calls)
    for name in calls:
        with pytest.raises(gradweave.InvalidInput, match="ended by close.*wrap the model again"):
            getattr(session, name)()


def resumed(model, optimizer, plan):
    """As another job goes on from a checkpoint: before its first step."""
    states = [copy.deepcopy(each.state_dict()) for each in (model, optimizer)] + [model.gradweave.state_dict()]
    model.gradweave.finish()
    model.gradweave.close()
    model = make_net()
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=20.0)
    for each, state in zip((model, optimizer, model.gradweave), states):
        each.load_state_dict(state)
    model(batch(0, 4)[0])
    return model, optimizer


def before_close(rank, cases):
    """What close() warns of after {case: (scheme, what is called before it)}."""
    said = {}
    for case, (scheme, before) in cases.items():
        model = make_net()
        plan = core.make_plan(workload(), cluster(2, 0.6), scheme)
        model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=20.0)
        train(model, optimizer, rank, 4)
        if before == "resume":
            model, optimizer = resumed(model, optimizer, plan)
        if before in ("finish", "synchronize"):
            getattr(model.gradweave, before)()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            wrapping._close_all() if before == "exit" else model.gradweave.close()
        said[case] = [(str(each.message), each.filename == __file__) for each in caught]
    return said


def test_close_without_finish_says_what_is_lost():
    warned = {"forward": ("dear", ""), "delayed": ("deft", "synchronize"), "own steps": ("local_sgd", "synchronize"),
              "resumed": ("deft", "resume")}
    silent = {"in step": ("ddp", ""), "synchronized": ("dear", "synchronize"), "exit": ("deft", "exit"),
              **{f"finished {scheme}": (scheme, "finish") for scheme in ("dear", "deft", "local_sgd")}}
    first, second = ranks.run(before_close, 2, cases=warned | silent)
    assert first == dict.fromkeys(warned, [(UNFINISHED, True)]) | dict.fromkeys(silent, [])
    assert second == dict.fromkeys(warned | silent, [])
    assert "gradweave.finish(model)" in UNFINISHED


def test_a_model_on_two_devices_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    told, = ranks.run(wrap_in_parts, 1, model=model)
    assert "parameter '1.weight' is on meta, '0.weight' on cpu" in told and "one device" in told


def wrap_in_parts(rank, model):
    with pytest.raises(gradweave.InvalidInput) as error:
        gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    # What is left to others may be anywhere.
    gradweave.wrap(model, torch.optim.SGD(model[0].parameters(), 0.1), exclude=["1"], broadcast=False)[0].gradweave.close()
    return str(error.value)
