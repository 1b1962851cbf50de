"""torch.compile together with a wrapped model: before wrap() or after it, around the model or in place.

A hook that torch.compile can't look into cuts its graph. So the model runs as plain Python while every layer is recorded,
and is compiled at the switch, when only those hooks are left that the plan needs. The gradients of one graph come all at
once, at the end of its backward: where the plan starts an op earlier, the graph is cut in front of the layer whose
gradients complete that op.
"""

import torch


class Phase:
    """Whether a wrapped model runs as plain Python now, and whether it was seen to be compiled. torch.compile guards
    what it reads of `eager`, so that a change compiles once more."""

    def __init__(self):
        self.eager, self.seen = True, False


def called(phase, plainly, model, before, after, arguments, named):
    """`plainly(...)` between the session's `before(model)` and `after(model, output)`."""
    if phase.eager:
        return _run_eagerly(phase, torch.compiler.is_dynamo_compiling(), plainly, model, before, after, arguments, named)
    _opaquely(before, model)
    output = plainly(*arguments, **named)
    _opaquely(after, model, output)
    return output


@torch.compiler.disable
def _run_eagerly(phase, traced, plainly, model, before, after, arguments, named):
    phase.seen = phase.seen or traced or is_compiled(model)
    before(model)
    with torch.compiler.set_stance("force_eager"):
        output = plainly(*arguments, **named)
    after(model, output)
    return output


def is_compiled(model):
    """Whether the model, or a module in it, is compiled already."""
    return any(_compiled_in_place(module) for module in model.modules())


def _compiled_in_place(module):
    return module._compiled_call_impl is not None or isinstance(module, torch._dynamo.OptimizedModule)


@torch.compiler.disable
def _opaquely(call, *arguments):
    call(*arguments)


def cut(module, inputs):
    """A forward pre-hook that ends one graph and begins another."""
    _opaquely(_nothing)


def opaque(call):
    """`call` as torch.compile should see it: something that it must not look into."""
    return torch.compiler.disable(call)


def forget_graphs():
    """Drop what was compiled with other hooks: torch.compile does not notice when hooks come and go."""
    torch.compiler.reset()


def _nothing():
    pass
