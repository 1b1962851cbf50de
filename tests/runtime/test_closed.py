"""After close() every public call is an error that says what to do; each one is found by introspection."""

import inspect
import re

import pytest
import ranks
import torch

import gradweave
from gradweave import _native
from gradweave.session import Session

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
