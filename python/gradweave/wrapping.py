"""gradweave.wrap: the user's interface to the engine."""

import atexit
import contextlib
import logging
import sys
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterable, Iterator

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gradweave import forking  # noqa: F401  it acts by itself
from gradweave import core, graphs, islands, lockstep, reporting, scaling, sharding
from gradweave._native import InvalidInput
from gradweave.agreement import agree
from gradweave.groups import JobRanks
from gradweave.proofs import own_names, prove_sharded_steps, prove_slices
from gradweave.scope import INTEGRATIONS, Scope
from gradweave.session import ENDED, LAST_OPS_S, Session
from gradweave.settings import Given, Settings, spelled_as
from gradweave.stepping import Stepper, is_twin
from gradweave.subclasses import (become, keep, model_class, optimizer_class, optimizers_in, release, session_of, sessions,
                                  values_in)


FRAMEWORKS = {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "torch", "transformers"}


if TYPE_CHECKING:
    class WrappedModel(torch.nn.Module, Any):
        """What a wrapped model is to type checkers: the model as it was, and `gradweave`."""

        gradweave: Session

        def no_sync(self) -> contextlib.AbstractContextManager[None]: ...


class Wrapped(tuple["WrappedModel", Given]):
    """(model, optimizer), the latter a list where wrap() was given one. As a context manager it finishes the training where
    the block ends."""

    def __new__(cls, model: torch.nn.Module, optimizer: Given) -> "Wrapped[Given]":
        return super().__new__(cls, (model, optimizer))

    def __enter__(self) -> "Wrapped[Given]":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        session = session_of(self[0])
        try:
            if kind is None:
                session.finish()
        except BaseException as failed:
            error = failed
            raise
        finally:
            # After an error the other ranks may never run the other ends of the ops under way.
            session.close(error)


@spelled_as(Settings)
def wrap(model: torch.nn.Module, optimizer: Given, settings: Settings) -> Wrapped[Given]:
    """Make `model` and `optimizer` train with scheduled communication, and return both. The loop stays as it is.

    optimizer: one, or a list of several that step different parameters of the model. Every rank calls it alike. Errors:
    InvalidInput (a ValueError) for what the caller can change, on every rank; RuntimeFailure (a RuntimeError) once a peer
    is lost.
    """
    wrapped = wrap_alone(model, optimizer, settings)
    if settings.islands is not None:
        session = sessions[model]
        try:
            session.islands.join()
        except BaseException as error:
            session.close(error)
            raise
    return wrapped


def wrap_alone(model, optimizer, settings):
    """As wrap(); but an island joins the others at its first step: frameworks load checkpoints once the model is wrapped."""
    settings.check_times()
    if isinstance(optimizer, Iterator):
        optimizer = list(optimizer)
    if settings.islands is not None:
        settings.check_ranges()
        _check_islands(model, settings)
        between = islands.checked(settings.between)
        islands.check_exchanging(between["ranks"], model)
        gradients = between["average"] == "gradients"
        if gradients and any(each.islands is not None and each.islands.in_lockstep for each in set(sessions.values())):
            raise InvalidInput("gradweave.wrap(between={'average': 'gradients'}): this process already trains another "
                               "model like this, and islands could wait for different ones of the two: make one "
                               "module of the models")
        if gradients or islands.users_own(model, settings.exclude):
            return _wrap_island(model, optimizer, settings, lockstep.Lockstep if gradients else islands.Islands)
        settings.check_scheme_in_island()
    held = sharding.held_by(model, settings.exclude)
    job = JobRanks(settings.process_group, settings.timeout, settings.plan_group, held, settings.arrival_timeout)
    refusal, arguments, links, optimizers = None, {}, [], []
    try:
        settings.check_ranges()
        if settings.dump is not None:
            job.dump_to(settings.dump)
        optimizers = list(map(innermost, _listed(optimizer)))
        _check_arguments(model, optimizers)
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        links = settings.links_of(job, device)
        links = links + settings.levels_of(links, job)
        settings.check_tuning(model)
        graphs.refuse_capture(graphs.capturing(device), "gradweave.wrap")
        graphs.refuse_graphed(model, device)
        trained = Scope(model, settings.exclude)
        _check_steps(optimizers, model)
        _check_device(trained)
        _check_trained_once(trained)
        if trained.shards and settings.scales:
            raise InvalidInput("gradweave.wrap: with shards, scaler= finds an infinity on some ranks only, and the others "
                               "would step: train in bfloat16, or by a scheme that updates in step(), as ddp, without scaler=")
        if settings.slices:
            _check_slices(optimizers, trained.parameters)
        settings.check_runs(trained.names, trained.parameters, job.size)
        groups = {"links": ", ".join(map(str, links)), "ranks that train alike": str(job.size)}
        arguments = settings.arguments() | groups | trained.arguments() | _described(optimizers)
    except Exception as error:  # whatever it is, the other ranks must learn of it, or they wait for this one
        refusal = error
    agreed = False
    try:
        job.name = agree(job, arguments, refusal, settings.arrival_timeout)
        agreed = True
        if trained.shards:
            _check_sharded_steps(optimizers, trained.parameters)
        around = next(filter(None, map(_around, _listed(optimizer))), None)
        session = Session(model, optimizers, settings, job, links, around)
    except BaseException as error:
        if agreed or not isinstance(error, Exception):  # else the others know of it
            job.report(error)
        job.close()
        raise
    plain = [(weakref.ref(held), type(held)) for held in (model, *optimizers)]
    kind = model_class(type(model), session.phase, hasattr(model, "module"))
    sessions[model] = session
    become(model, keep(kind, session))
    for each in optimizers:
        sessions[each] = session
        # A scheduler made before patches `step` on the instance: ours does what the patch did.
        vars(each).pop("step", None)
        become(each, keep(optimizer_class(type(each)), session))
    if settings.scaler is not None:
        scaling.adopt(settings.scaler)
    session.on_close = _unwrapper(plain)
    return Wrapped(model, optimizer)


def _wrap_island(model, optimizer, settings, kind):
    """Of an island that no engine communicates in."""
    core.check_options(settings.scheme, settings.options)  # what one rank has no use for, others of the script may have
    optimizers = [innermost(each, hooks_alone=True) for each in _listed(optimizer)]
    _check_arguments(model, optimizers)
    _check_steps(optimizers, model)
    islands.check_reduced(model, settings.exclude)
    session = islands.Session(model, optimizers, settings, kind(model, optimizers, settings))
    sessions[model] = session
    session.on_close = _unwrapper([(weakref.ref(model), type(model))])
    become(model, keep(islands.model_class(type(model)), session))
    return Wrapped(model, optimizer)


def _check_islands(model, settings):
    for session in set(sessions.values()):
        if session.islands is not None and session.settings.islands == settings.islands:
            raise InvalidInput(
                f"gradweave.wrap: this process already trains another model, {type(session.model).__name__}, with the islands "
                f"that meet at {settings.islands}: make one module of the models, or give each a meeting point of its own")
    if any(hasattr(parameter, "_fsdp_flattened") for parameter in model.parameters()):
        raise InvalidInput("gradweave.wrap(islands=): FullyShardedDataParallel flattens parameters, which islands "
                           "need one by one: shard the model by fully_shard() (FSDP2)")


def _listed(given):
    """One optimizer or several, as a list. Errors: InvalidInput."""
    found = [given] if isinstance(given, torch.optim.Optimizer) or not isinstance(given, Iterable) else list(given)
    for each in found:
        if not hasattr(each, "param_groups"):
            raise InvalidInput(f"gradweave.wrap: the optimizer is of type {type(each).__name__}: give a "
                               "torch.optim.Optimizer, or a list of several")
    return found


def innermost(optimizer, hooks_alone=False):
    """The optimizer that steps, inside all others. `hooks_alone`: only its hooks matter, which run whoever calls its step().
    Errors: InvalidInput."""
    held = optimizers_in(optimizer)
    if not held:
        return optimizer
    if len(held) > 1 or _parameters_of(held[0]) != _parameters_of(optimizer):
        raise InvalidInput(f"gradweave.wrap: {type(optimizer).__name__} steps by optimizers inside it that hold other "
                           "parameters; give optimizers that step their own, wrap(model, [a, b])")
    if not hooks_alone and any(getattr(value, "__self__", None) is held[0] and getattr(value, "__name__", "") == "step"
                               for value in values_in(optimizer)):
        # As Accelerate's with a loss scale: it would step beside the plan.
        raise InvalidInput(f"gradweave.wrap: this {type(optimizer).__name__} has stored step() of the optimizer inside it: "
                           f"wrap the one inside before it is prepared; {INTEGRATIONS}")
    return innermost(held[0], hooks_alone)


def _around(optimizer):
    """The class of one around another that keeps values of its own, as Lookahead does, and is no framework's; or None."""
    if not (held := optimizers_in(optimizer)):
        return None
    inner = held[0]
    own = [name for name in own_names(optimizer) if vars(optimizer)[name] is not inner and name not in vars(inner)]
    if own and type(optimizer).__module__.partition(".")[0] not in FRAMEWORKS:
        return type(optimizer).__name__
    return _around(inner)


def _parameters_of(optimizer):
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _check_arguments(model, optimizers):
    if not optimizers:
        raise InvalidInput("gradweave.wrap: no optimizer; give at least one")
    for what, held in [("model", model)] + [("optimizer", each) for each in optimizers]:
        if held in sessions:
            raise InvalidInput(f"gradweave.wrap: this {what} is wrapped already: leave out this wrap(), or call "
                               "gradweave.finish(model), then model.gradweave.close() before it")
    if isinstance(model, torch.jit.ScriptModule):
        raise InvalidInput("gradweave.wrap: a TorchScript module has no hooks; pass the module that it was made from")
    seen = set()
    for each in optimizers:
        for parameter in (p for group in each.param_groups for p in group["params"]):
            if parameter in seen:
                raise InvalidInput("gradweave.wrap: a parameter is given twice, to one optimizer or to two: give it once")
            seen.add(parameter)


def _check_steps(optimizers, model):
    own = {id(parameter) for parameter in model.parameters()}
    for each in optimizers:
        if not own & _parameters_of(each):
            raise InvalidInput(f"gradweave.wrap: this {type(each).__name__} steps no parameter of the model: give the "
                               "optimizer that was made from this model's parameters()")


def _check_slices(optimizers, parameters):
    for each in optimizers:
        if reason := prove_slices(Stepper(each, type(each), parameters)):
            raise InvalidInput(
                f"gradweave.wrap: the plan steps parts of tensors, and the loop has an optimizer that can't step a part of a "
                f"tensor ({reason}); plan with slices=off, or use another scheme")


def _check_sharded_steps(optimizers, parameters):
    for each in optimizers:
        if reason := prove_sharded_steps(Stepper(each, type(each), parameters)):
            raise InvalidInput(
                f"gradweave.wrap: an optimizer of the loop can't step sharded parameters ({reason}); use one that works "
                "element by element, as AdamW does, or leave what it steps whole")


def _check_device(trained):
    device = trained.parameters[0].device if trained.parameters else None
    for name, parameter in zip(trained.names, trained.parameters):
        if parameter.device != device:
            raise InvalidInput(
                f"gradweave.wrap: parameter '{name}' is on {parameter.device}, '{trained.names[0]}' on {device}: keep a model "
                "on one device, or name what is on another in wrap(exclude=...)")


def _check_trained_once(trained):
    for session in set(sessions.values()):
        held = set(session.parameters)
        for name, parameter in zip(trained.names, trained.parameters):
            if parameter in held:
                raise InvalidInput(
                    f"gradweave.wrap: parameter '{name}' is of another wrapped model, {type(session.model).__name__}, too: "
                    "wrap the whole alone, with a list of optimizers, or name what they share in wrap(exclude=...); or call "
                    "gradweave.finish() and model.gradweave.close() of the other before")


def _described(optimizers):
    """{what: text} of what ranks must have alike: kinds and hyperparameters."""
    told = {"optimizers": ", ".join(type(each).__name__ for each in optimizers)}
    for number, each in enumerate(optimizers):
        for place, group in enumerate(each.param_groups):
            told |= {f"{type(each).__name__} {number}, group {place}, {name}": repr(value) for name, value in group.items()
                     if isinstance(value, (bool, int, float, str, tuple, type(None)))}
            told[f"{type(each).__name__} {number}, group {place}, shapes"] = str([tuple(p.shape) for p in group["params"]])
    return told


def finish(model: torch.nn.Module) -> None:
    """Apply everything that is on its way, average what ranks stepped on their own, and broadcast rank 0's buffers:
    afterwards all ranks have equal parameters and buffers. Training may go on. Collective."""
    session_of(model).finish()


def clip_grad_norm_(model: torch.nn.Module, max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> torch.Tensor:
    """torch.nn.utils.clip_grad_norm_ on the gradients that the coming update will use; returns their norm. Call it
    between backward() and step(). Where the plan steps parameters in the next forward it waits for all results here.
    Parameters of wrap(exclude=) are left out.

    Errors: InvalidInput where the plan steps parameters in the backward, before the norm is known."""
    return session_of(model).clip_grad_norm_(max_norm, norm_type, error_if_nonfinite)


def _unwrapper(plain):
    def unwrap():
        for reference, kind in plain:
            if (held := reference()) is not None:
                release(held, kind)
    return unwrap


def _other_optimizer(optimizer, arguments, named):
    # Of every optimizer in the process: those of wrapped models would step them beside the plan.
    if not sessions or optimizer in sessions or is_twin(optimizer):
        return
    held = _parameters_of(optimizer)
    for session in set(sessions.values()):
        if any(id(p) in held for p in session.parameters):
            session.stepped_by_another(optimizer)


_other_optimizer._gradweave_own = True
register_optimizer_step_pre_hook(_other_optimizer)


@atexit.register
def _close_all():
    # Groups must go before the interpreter does. What sys.exit() was given can't be seen from here.
    error = getattr(sys, "last_value", None)
    for session in set(sessions.values()):
        if error is None and isinstance(session, Session) and session._is_unfinished():
            reporting.tell(ENDED, logging.WARNING)
        session.close(error, LAST_OPS_S)
