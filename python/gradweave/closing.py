"""A session that was closed refuses every public call."""

import functools
import inspect
from typing import Any, TypeVar

from gradweave import _native

_Class = TypeVar("_Class", bound=type[Any])


def refusing_once_closed(cls: _Class) -> _Class:
    """Every public method and property of `cls` but close() raises InvalidInput where `self.closed` is true."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") or name == "close":
            continue
        if isinstance(member, property):
            setattr(cls, name, property(_refusing(member.fget, name), doc=member.__doc__))
        elif inspect.isfunction(member):
            setattr(cls, name, _refusing(member, name))
    return cls


def _refusing(method, name):
    @functools.wraps(method)
    def call(self, *arguments, **named):
        if self.closed:
            raise _native.InvalidInput(f"model.gradweave.{name}: this training was ended by close(): "
                                       "call this before close(), or wrap the model again")
        return method(self, *arguments, **named)
    return call
