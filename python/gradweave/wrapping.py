"""gradweave.wrap: the user's interface to the engine."""

import atexit
import sys
import weakref

import torch

from gradweave import scaling
from gradweave.session import Session
from gradweave.settings import Settings, spelled_as
from gradweave.subclasses import model_class, optimizer_class, session_of, sessions


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
        session_of(self[0]).close(error)


@spelled_as(Settings)
def wrap(model: torch.nn.Module, optimizer: torch.optim.Optimizer, settings: Settings) -> Wrapped:
    """Make `model` and `optimizer` train with scheduled communication; returns both, the loop stays as it is.

    Every rank calls it alike. Errors: InvalidInput (a ValueError) for what the caller can change; RuntimeFailure (a
    RuntimeError) once a peer is lost.
    """
    _check_arguments(model, optimizer)
    kind = type(optimizer)
    session = Session(model, optimizer, kind, settings)
    sessions[model] = sessions[optimizer] = session
    model.__class__ = model_class(type(model))
    # A scheduler made before patches `step` on the instance: ours does what the patch did.
    vars(optimizer).pop("step", None)
    optimizer.__class__ = optimizer_class(kind)
    if settings.scaler is not None:
        scaling.adopt(settings.scaler)
    session.on_close = _unwrapper(weakref.ref(model), weakref.ref(optimizer))
    return Wrapped(model, optimizer)


def _check_arguments(model, optimizer):
    for what, held in (("model", model), ("optimizer", optimizer)):
        if held in sessions:
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
    session_of(model).finish()


def clip_grad_norm_(model: torch.nn.Module, max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> torch.Tensor:
    """torch.nn.utils.clip_grad_norm_ on the gradients that the coming update will use; returns their norm. Call it
    between backward() and step(). Where the plan steps parameters in the next forward it waits for all results here.

    Errors: InvalidInput where the plan steps parameters in the backward, before the norm is known."""
    return session_of(model).clip_grad_norm_(max_norm, norm_type, error_if_nonfinite)


def _unwrapper(model_ref, optimizer_ref):
    def unwrap():
        for held in (model_ref(), optimizer_ref()):
            if held is not None and sessions.pop(held, None) is not None:
                held.__class__ = type(held).__mro__[1]
    return unwrap


@atexit.register
def _close_all():
    # Groups must go before the interpreter does.
    for session in set(sessions.values()):
        session.close(getattr(sys, "last_value", None))
