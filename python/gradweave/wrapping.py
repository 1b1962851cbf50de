"""gradweave.wrap: the user's interface to the engine."""

import atexit
import contextlib
import os
import sys
import weakref
from typing import Any, Iterable, Mapping

import torch
from torch import distributed

from gradweave import classes, scaling
from gradweave.channels import EmulatedLink
from gradweave.session import Session

Link = str | distributed.ProcessGroup | EmulatedLink  # an interface, a group, or a model of one

_sessions = weakref.WeakKeyDictionary()  # by model and by optimizer


class Wrapped(tuple):
    """(model, optimizer). As a context manager it finishes the training where the block ends."""

    def __new__(cls, model, optimizer):
        return super().__new__(cls, (model, optimizer))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            finish(self[0])
        # After an error the other ranks may never run the other ends of the ops under way.
        _session_of(self[0]).close(abandon=kind is not None)


def wrap(model: torch.nn.Module, optimizer: torch.optim.Optimizer, scheme: str = "auto",
         plan: dict[str, Any] | str | os.PathLike | None = None, links: Link | Iterable[Link] | None = None,
         options: Mapping[str, object] | None = None, *, timeout: float = 300.0,
         find_unused_parameters: bool | None = None, warm_up: int = 3, profile_iterations: int = 8,
         broadcast: bool = True, broadcast_buffers: bool = False, scaler: torch.amp.GradScaler | None = None,
         check: bool | None = None) -> Wrapped:
    """Make `model` and `optimizer` train with scheduled communication; returns both, the loop stays as it is.

    scheme: a planner's name; its plan is made after `warm_up` + `profile_iterations` ordinary iterations, in which
    training goes on synchronously. options: the scheme's options. plan: a plan (dictionary, JSON text or path) to run
    from the first iteration instead. links: network interfaces, process groups or EmulatedLinks; default: the default
    group's. timeout: seconds that one op may take. find_unused_parameters: as in DistributedDataParallel; None finds
    out in the first iteration. broadcast: parameters and buffers from rank 0 first. broadcast_buffers: buffers from
    rank 0 also before every forward in training, as DistributedDataParallel does. scaler: the loop's
    torch.amp.GradScaler; plans that do not update by this iteration's reduced gradient in step() need it.
    check: compare every op across ranks before it starts (default: the environment's GRADWEAVE_CHECK).

    Every rank calls it alike. Errors: InvalidInput (a ValueError) for what the caller can change; RuntimeFailure (a
    RuntimeError) once a peer is lost.
    """
    _check_arguments(model, optimizer)
    kind = type(optimizer)
    session = Session(model, optimizer, kind, scheme=scheme, plan=plan, links=links, options=options, timeout=timeout,
                      find_unused_parameters=find_unused_parameters, warm_up=warm_up,
                      profile_iterations=profile_iterations, broadcast=broadcast,
                      broadcast_buffers=broadcast_buffers, scaler=scaler, check=check)
    _sessions[model] = session
    _sessions[optimizer] = session
    model.__class__ = _model_class(type(model))
    # A scheduler made before patches `step` on the instance: ours does what the patch did.
    vars(optimizer).pop("step", None)
    optimizer.__class__ = _optimizer_class(kind)
    if scaler is not None:
        scaling.adopt(scaler, _sessions)
    session.on_close = _unwrapper(weakref.ref(model), weakref.ref(optimizer))
    return Wrapped(model, optimizer)


def _check_arguments(model, optimizer):
    for what, held in (("model", model), ("optimizer", optimizer)):
        if held in _sessions:
            raise ValueError(f"gradweave.wrap: this {what} is wrapped already; close it first: model.gradweave.close()")
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise ValueError("gradweave.wrap: this model communicates already; pass the one inside: model.module")
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError("gradweave.wrap: a TorchScript module has no hooks; pass the module that it was made from")
    for name, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise ValueError(f"gradweave.wrap: parameter '{name}' has no shape yet; run one forward first")
        if hasattr(parameter, "placements"):  # a DTensor
            raise ValueError(f"gradweave.wrap: parameter '{name}' is sharded; pass a model that is whole on every rank")


def finish(model: torch.nn.Module) -> None:
    """Apply everything that is on its way, average what ranks stepped on their own, and broadcast rank 0's buffers:
    afterwards all ranks have equal parameters and buffers. Training may go on. Collective."""
    _session_of(model).finish()


def clip_grad_norm_(model: torch.nn.Module, max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> torch.Tensor:
    """torch.nn.utils.clip_grad_norm_ on the gradients that the coming update will use; returns their norm. Call it
    between backward() and step(). Where the plan steps parameters in the next forward it waits for all results here.

    Errors: InvalidInput where the plan steps parameters in the backward, before the norm is known."""
    return _session_of(model).clip_grad_norm_(max_norm, norm_type, error_if_nonfinite)


def _session_of(model):
    session = _sessions.get(model)
    if session is None:
        raise ValueError("this model is not wrapped: call gradweave.wrap() first")
    return session


def _unwrapper(model_ref, optimizer_ref):
    def unwrap():
        for held in (model_ref(), optimizer_ref()):
            if held is not None and _sessions.pop(held, None) is not None:
                held.__class__ = type(held).__mro__[1]
    return unwrap


@atexit.register
def _close_all():
    # Groups must go before the interpreter does.
    failed = hasattr(sys, "last_value")
    for session in set(_sessions.values()):
        session.close(abandon=failed)


def _model_class(base):
    class Model(base):
        @property
        def gradweave(self):
            """The session: plan, workload, cluster, counters, timeline."""
            return _session_of(self)

        def no_sync(self):
            """In this context backward passes accumulate and communicate nothing."""
            return _session_of(self).no_sync() if self in _sessions else contextlib.nullcontext()

        def train(self, mode=True):
            if not mode and self in _sessions:
                _sessions[self].synchronize()
            return super().train(mode)

        def state_dict(self, *args, **kwargs):
            if self in _sessions:
                _sessions[self].synchronize()
            return super().state_dict(*args, **kwargs)

        def load_state_dict(self, *args, **kwargs):
            if self in _sessions:
                _sessions[self].synchronize()
            return super().load_state_dict(*args, **kwargs)

        def named_parameters(self, *args, **kwargs):
            if self in _sessions:
                _sessions[self].apply_outstanding()
            return super().named_parameters(*args, **kwargs)

        def __reduce_ex__(self, protocol):
            return classes.reduce_plain(self, base, protocol)

    return classes.named_as(Model, base)


def _optimizer_class(base):
    class Optimizer(base):
        def step(self, closure=None):
            session = _sessions.get(self)
            if session is None:
                return base.step(self) if closure is None else base.step(self, closure)
            self._opt_called = True  # what a scheduler's patch of step() does
            return session.step(closure)

        step._wrapped_by_lr_sched = True

        @property
        def _step_supports_amp_scaling(self):
            # Of GradScaler's contract with optimizers: true makes a scaler that wrap() does not know show itself.
            session = _sessions.get(self)
            if session is not None and session.unscales:
                return session.scaler is None
            return vars(self).get("_step_supports_amp_scaling", False)

        @_step_supports_amp_scaling.setter
        def _step_supports_amp_scaling(self, value):
            vars(self)["_step_supports_amp_scaling"] = value

        def state_dict(self):
            if self in _sessions:
                _sessions[self].synchronize()
                with _seen_as(self, base):
                    return self.state_dict()
            return super().state_dict()

        def load_state_dict(self, state_dict):
            if self in _sessions:
                _sessions[self].synchronize()
            result = super().load_state_dict(state_dict)
            if self in _sessions:
                _sessions[self].stepper.forget()
            return result

        def add_param_group(self, param_group):
            if self in _sessions:
                raise ValueError("gradweave: parameter groups can't be added to a wrapped optimizer; add them before "
                                 "gradweave.wrap()")
            return super().add_param_group(param_group)

        def __reduce_ex__(self, protocol):
            return classes.reduce_plain(self, base, protocol)

    return classes.named_as(Optimizer, base)


@contextlib.contextmanager
def _seen_as(held, base):
    wrapped = type(held)
    held.__class__ = base
    try:
        yield
    finally:
        held.__class__ = wrapped
