"""The arguments of gradweave.wrap(), spelled once."""

import functools
import inspect
import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Concatenate, Iterable, Mapping, ParamSpec, TypeVar

import torch
from torch import distributed

from gradweave.channels import EmulatedLink

Link = str | distributed.ProcessGroup | EmulatedLink  # an interface, a group, or a model of one
Plan = dict[str, Any] | str | os.PathLike


@dataclass(frozen=True)
class Settings:
    """How a job is trained.

    scheme: a planner's name; its plan is made after `warm_up` + `profile_iterations` ordinary iterations, in which
    training goes on synchronously. plan: a plan (dictionary, JSON text or path) to run from the first iteration instead.
    links: network interfaces, process groups or EmulatedLinks; default: the default group's. options: the scheme's
    options. timeout: seconds that one op may take. find_unused_parameters: as in DistributedDataParallel; None finds
    out in the first iteration. broadcast: parameters and buffers from rank 0 first. broadcast_buffers: buffers from
    rank 0 also before every forward in training, as DistributedDataParallel does. scaler: the loop's
    torch.amp.GradScaler; plans that do not update by this iteration's reduced gradient in step() need it.
    check: compare every op across ranks before it starts (default: the environment's GRADWEAVE_CHECK).
    """

    scheme: str = "auto"
    plan: Plan | None = None
    links: Link | Iterable[Link] | None = None
    options: Mapping[str, object] | None = None
    timeout: float = 300.0
    find_unused_parameters: bool | None = None
    warm_up: int = 3
    profile_iterations: int = 8
    broadcast: bool = True
    broadcast_buffers: bool = False
    scaler: torch.amp.GradScaler | None = None
    check: bool | None = None

    @property
    def checks(self) -> bool:
        return bool(int(os.environ.get("GRADWEAVE_CHECK", "0"))) if self.check is None else self.check

    @property
    def scales(self) -> bool:
        """Whether the loop has a loss scale."""
        return self.scaler is not None and self.scaler.is_enabled()


def plan_of(given: Plan) -> dict[str, Any]:
    """The plan of a dictionary, a JSON text or a path. Errors: ValueError, OSError."""
    if isinstance(given, dict):
        return given
    text = str(given)
    if not text.lstrip().startswith("{"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    return json.loads(text)


_Arguments, _Result = ParamSpec("_Arguments"), TypeVar("_Result")
_Job = Concatenate[torch.nn.Module, torch.optim.Optimizer, _Arguments]


def spelled_as(settings: Callable[_Arguments, Settings]):
    """Gives a function of (model, optimizer, settings) the arguments of `settings` in place of the last."""
    def decorate(function: Callable[[torch.nn.Module, torch.optim.Optimizer, Settings], _Result]) -> Callable[_Job, _Result]:
        @functools.wraps(function)
        def call(model, optimizer, *arguments, **named):
            return function(model, optimizer, settings(*arguments, **named))

        signature = inspect.signature(function)
        own = list(signature.parameters.values())[:2]
        call.__doc__ = f"{function.__doc__}\n    {settings.__doc__}"
        call.__signature__ = signature.replace(parameters=[*own, *inspect.signature(settings).parameters.values()])
        return call
    return decorate
