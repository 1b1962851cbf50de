"""Objects of the user's that get a subclass while they are wrapped: same object, same name, other methods."""


class Hook:
    """A session's hook on a module. Copies of the module, and saved ones, get one that does nothing."""

    def __init__(self, call):
        self._call = call

    def __call__(self, *arguments):
        return self._call(*arguments)

    def __reduce__(self):
        return Hook, (_nothing,)


def named_as(subclass, base):
    """`subclass`, called like its base."""
    subclass.__name__, subclass.__qualname__, subclass.__module__ = base.__name__, base.__qualname__, base.__module__
    subclass.__doc__ = base.__doc__
    return subclass


def reduce_plain(held, base, protocol):
    """What `__reduce_ex__` returns to copy or pickle `held` as the `base` that it was before."""
    plain = base.__new__(base)
    plain.__dict__.update(held.__dict__)
    function, arguments, *rest = plain.__reduce_ex__(protocol)
    if getattr(function, "__name__", "") == "__newobj__":  # pickle insists on the object's own class there
        function = _new
    return function, arguments, *rest


def _nothing(*arguments):
    pass


def _new(kind, *arguments):
    return kind.__new__(kind, *arguments)
