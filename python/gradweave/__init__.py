"""Gradweave schedules the communication of data-parallel training.

    model, optimizer = gradweave.wrap(model, optimizer)

and the training loop stays as it is. docs/runtime.md says what the loop may do.
"""

_WRAPPING = ("wrap", "finish", "clip_grad_norm_", "Wrapped")
_LINKS = ("EmulatedLink",)
__all__ = [*_WRAPPING, *_LINKS, "InvalidInput", "RuntimeFailure"]


def __getattr__(name):
    # Late, so that commands which need no torch start quickly and `doctor` can say why torch cannot be loaded.
    if name in ("InvalidInput", "RuntimeFailure"):
        import torch  # noqa: F401  the extension's libraries are torch's

        from gradweave import _native

        return getattr(_native, name)
    if name in _WRAPPING:
        from gradweave import wrapping

        return getattr(wrapping, name)
    if name in _LINKS:
        from gradweave import channels

        return getattr(channels, name)
    raise AttributeError(f"module 'gradweave' has no attribute '{name}'")
