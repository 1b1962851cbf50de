"""Objects of the user's that get a subclass while they are wrapped: same object, same name, other methods."""

import collections.abc
import contextlib
import copy
import sys
import weakref

import torch

from gradweave import compiling
from gradweave._native import InvalidInput


class Sessions(collections.abc.MutableMapping):
    """By model and by optimizer. It keeps nothing alive: the class that each of them has while it is wrapped keeps the
    session, so that all are collected together."""

    def __init__(self):
        self._of = weakref.WeakKeyDictionary()

    def __getitem__(self, held):
        session = self._of[held]()
        if session is None:
            raise KeyError(held)
        return session

    def __setitem__(self, held, session):
        self._of[held] = weakref.ref(session)

    def __delitem__(self, held):
        del self._of[held]

    def __iter__(self):
        return (held for held, session in list(self._of.items()) if session() is not None)

    def __len__(self):
        return sum(1 for _ in self)


sessions = Sessions()
of_parent = weakref.WeakSet()  # models and optimizers that were wrapped in the process that this one was forked from


def session_of(held):
    """Errors: InvalidInput if `held` is not wrapped."""
    try:
        session = sessions.get(held) or sessions.get(getattr(held, "module", held))  # Fabric's stands around it
    except TypeError:  # no object that can be wrapped
        session = None
    if session is None and held in of_parent:
        raise InvalidInput("this process was forked from the rank that wrapped this model, and is no rank: train and finish "
                           "there; here the model is the plain one")
    if session is None:
        raise InvalidInput(f"this {type(held).__name__} is no wrapped model: give the one that gradweave.wrap() returned, "
                           "before close()")
    return session


def values_in(optimizer):
    """Its attributes, and what is in lists of them."""
    return [each for value in vars(optimizer).values() for each in (value if isinstance(value, (list, tuple)) else [value])]


def optimizers_in(optimizer):
    """Accelerate, Fabric and others put one around another, whose step() calls the inner one's."""
    return [each for each in values_in(optimizer) if isinstance(each, torch.optim.Optimizer) and each is not optimizer]


def wrapped_in(optimizer):
    """The wrapped optimizer inside it, if there is one; else an optimizer that is not wrapped."""
    if optimizer in sessions or len(held := optimizers_in(optimizer)) != 1:
        return optimizer
    return wrapped_in(held[0])


class Hook:
    """A session's hook on a module. Copies of the module, and saved ones, get one that does nothing."""

    def __init__(self, call):
        self._call = call

    def __call__(self, *arguments):
        return self._call(*arguments)

    def __reduce__(self):
        return Hook, (_nothing,)


def weakly(method):
    """A call of it for C++, where Python's collector sees no references: it does not keep the method's object alive. Torch has
    hooks on accumulated gradients there."""
    reference = weakref.WeakMethod(method)
    return lambda *arguments: reference()(*arguments)


def named_as(subclass, base):
    """`subclass`, called like its base."""
    subclass.__name__, subclass.__qualname__, subclass.__module__ = base.__name__, base.__qualname__, base.__module__
    subclass.__doc__ = base.__doc__
    return subclass


class _Make:
    """Makes the object that a copy will be. `tell`: is told of it, if it is made in this process and not from a file."""

    def __init__(self, tell=None):
        self._tell = tell

    def __call__(self, kind, *arguments):
        made = kind.__new__(kind)
        if self._tell is not None:
            self._tell(made)
        return made

    def __reduce__(self):
        return _Make, ()


def reduce_plain(held, base, protocol, tell=None):
    """What `__reduce_ex__` returns to copy or pickle `held` as the `base` that it was before. `tell`: as of _Make."""
    plain = base.__new__(base)
    plain.__dict__.update(held.__dict__)
    function, arguments, *rest = plain.__reduce_ex__(protocol)
    if getattr(function, "__name__", "") == "__newobj__":  # pickle insists on the object's own class there
        function = _Make(tell)
    return function, arguments, *rest


def keep(kind, session):
    """What has this class, made for it alone, keeps `session` alive."""
    kind._gradweave_session = session
    return kind


def become(held, kind):
    """Makes `kind` the class of `held`. Objects may pass assignments on to others inside them, as Fabric's modules do."""
    object.__setattr__(held, "__class__", kind)


def model_class(base, phase, has_module):
    """`phase`: a compiling.Phase. `has_module`: the model has an attribute `module` of its own."""
    class Model(base):
        def __call__(self, *args, **kwargs):
            return compiling.called(phase, super().__call__, self, _before_forward, _after_forward, args, kwargs)

        @property
        def gradweave(self):
            """The session: plan, workload, cluster, counters, timeline."""
            return session_of(self)

        def no_sync(self):
            """In this context backward passes accumulate and communicate nothing."""
            return session_of(self).no_sync() if self in sessions else contextlib.nullcontext()

        def train(self, mode=True):
            if not mode and self in sessions:
                sessions[self].evaluates()
            return super().train(mode)

        def state_dict(self, *args, **kwargs):
            if self in sessions:
                sessions[self].synchronize()
            return super().state_dict(*args, **kwargs)

        def load_state_dict(self, *args, **kwargs):
            if self in sessions:
                sessions[self].before_load("model")
            return super().load_state_dict(*args, **kwargs)

        def zero_grad(self, set_to_none=True):
            with sessions[self].looking_at_gradients() if self in sessions else contextlib.nullcontext():
                super().zero_grad(set_to_none)

        def __reduce_ex__(self, protocol):
            if self not in sessions:
                return reduce_plain(self, base, protocol)
            sessions[self].synchronize()
            return reduce_plain(self, base, protocol, sessions[self].copied)

    if has_module:
        return named_as(Model, base)

    class Inner(Model):
        def __call__(self, *args, **kwargs):
            return session_of(self).model(*args, **kwargs)

    class Whole(Model):
        _gradweave_inner = None

        @property
        def module(self):
            """For scripts made for DistributedDataParallel: the same model, by another object, which has no `module`."""
            if self not in sessions:
                raise AttributeError(f"'{base.__name__}' object has no attribute 'module'")
            if Whole._gradweave_inner is None:
                Whole._gradweave_inner = _inner(self, named_as(Inner, base))
            return Whole._gradweave_inner

    return named_as(Whole, base)


def _inner(model, kind):
    inner = kind.__new__(kind)
    object.__setattr__(inner, "__dict__", vars(model))
    sessions[inner] = sessions[model]
    keep(kind, sessions[model])
    return inner


def release(held, base):
    """Makes `held`, a model or an optimizer, the `base` that it was."""
    for each in (held, getattr(type(held), "_gradweave_inner", None)):
        if each is not None and sessions.pop(each, None) is not None:
            become(each, base)


def _before_forward(model):
    if model in sessions:
        sessions[model].before_forward()


def _after_forward(model, output):
    if model in sessions:
        sessions[model].after_forward(output)


def optimizer_class(base):
    class Optimizer(base):
        def step(self, closure=None):
            session = sessions.get(self)
            if session is None:
                return base.step(self) if closure is None else base.step(self, closure)
            if fills_state():
                return session.fill_state(self, base.step)
            self._opt_called = True  # what a scheduler's patch of step() does
            return session.step(self, closure)

        step._wrapped_by_lr_sched = True

        @property
        def _step_supports_amp_scaling(self):
            # Of GradScaler's contract with optimizers: true makes a scaler that wrap() does not know show itself.
            session = sessions.get(self)
            if session is not None and _asked_by_scaler(sys._getframe(1)):
                session.scaler_was_seen()
                if session.unscales:
                    return session.settings.scaler is None
            return vars(self).get("_step_supports_amp_scaling", False)

        @_step_supports_amp_scaling.setter
        def _step_supports_amp_scaling(self, value):
            vars(self)["_step_supports_amp_scaling"] = value

        def state_dict(self):
            if self in sessions:
                sessions[self].synchronize()
                with _seen_as(self, base):
                    return self.state_dict()
            return super().state_dict()

        def load_state_dict(self, state_dict):
            if self in sessions:
                sessions[self].before_load("optimizer")
            result = super().load_state_dict(state_dict)
            if self in sessions:
                sessions[self].updates.forget(self)
            return result

        def add_param_group(self, param_group):
            if self in sessions:
                raise InvalidInput("gradweave: parameter groups can't be added to a wrapped optimizer; add them before "
                                   "gradweave.wrap()")
            return super().add_param_group(param_group)

        def __deepcopy__(self, memo):
            # A model that is copied after it, with the same memo, has the parameters that are copied here.
            if self in sessions:
                sessions[self].synchronize()
            with _seen_as(self, base):
                return copy.deepcopy(self, memo)

        def __reduce_ex__(self, protocol):
            return reduce_plain(self, base, protocol)

    return named_as(Optimizer, base)


def fills_state():
    """Whether torch's get_optimizer_state_dict() and its kind have called step(), by zeros and at a rate of 0, to fill the
    state of an optimizer that keeps nothing yet."""
    called_by = sys.modules.get("torch.distributed.checkpoint.state_dict")
    code = getattr(getattr(called_by, "_init_optim_state", None), "__code__", None)
    frame = code and sys._getframe(1)
    while frame and frame.f_code is not code:
        frame = frame.f_back
    return bool(frame)


def _asked_by_scaler(frame):
    """Whether it is a GradScaler that reads an attribute, and no framework that only wants to know."""
    return isinstance(frame.f_locals.get("self"), torch.amp.GradScaler)


@contextlib.contextmanager
def _seen_as(held, base):
    wrapped = type(held)
    become(held, base)
    try:
        yield
    finally:
        become(held, wrapped)


def _nothing(*arguments):
    pass
