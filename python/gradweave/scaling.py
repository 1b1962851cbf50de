"""torch.amp.GradScaler with plans that delay gradients or step outside optimizer.step().

There a gradient is handed over in the backward, and what `.grad` holds in step() may be older: the engine takes the
scale out and looks for infinities and NaNs at the hand-over, ranks agree, and the engine leaves out what is not
finite. The scaler then only has to learn of it, and to leave out step(). With all other plans it does its usual work on
reduced gradients. What wrap(exclude=) names, and what is no model's, is stepped by the gradient that is there: the scaler
unscales and checks it as ever.
"""

import contextlib

import torch

from gradweave.subclasses import named_as, reduce_plain, sessions, wrapped_in


def inverse_scale(scaler):
    """The factor that takes the scale out, rounded as the scaler rounds it."""
    return scaler._get_scale_async().double().reciprocal().float()


def adopt(scaler):
    """Give `scaler` a class that knows the sessions of wrapped optimizers. It stays the same object."""
    if not hasattr(type(scaler), "_gradweave_base"):
        scaler.__class__ = _scaler_class(type(scaler))


def _unscaled(gradient, inverse):
    """Takes the scale out, in place. Returns 1 if some value is not finite, else 0."""
    values = gradient._values() if gradient.is_sparse else gradient
    found = torch.zeros((), device=values.device)
    torch._amp_foreach_non_finite_check_and_unscale_([values], found, inverse.to(values.device))
    return found


@contextlib.contextmanager
def _aside(parameters):
    """These have no gradients inside."""
    held = [(parameter, parameter.grad) for parameter in parameters]
    try:
        for parameter, _ in held:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


def _scaler_class(base):
    class Scaler(base):
        _gradweave_base = base

        def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
            inner = wrapped_in(optimizer)
            session = sessions.get(inner)
            if session is None or session.settings.scaler is not self or not session.unscales:
                return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
            found = torch.full_like(found_inf, float(session.overflowed()))
            for parameter in session.updates.apart(inner):
                if parameter.grad is not None:
                    found = torch.maximum(found, _unscaled(parameter.grad, inv_scale).to(found.device))
            return {found_inf.device: found}

        def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
            inner = wrapped_in(optimizer)
            session = sessions.get(inner)
            if session is None or session.settings.scaler is not self or not session.unscales:
                if session is not None and sum(v.item() for v in optimizer_state["found_inf_per_device"].values()):
                    session.leave_out_step(inner)
                return super()._maybe_opt_step(optimizer, optimizer_state, *args, **kwargs)
            if session.overflowed():  # whoever watches step() sees none, as ever
                return session.leave_out_step(inner)
            found = any(each.item() for each in optimizer_state["found_inf_per_device"].values())
            with _aside(session.updates.apart(inner) if found else ()):
                return optimizer.step(*args, **kwargs)

        def __reduce_ex__(self, protocol):
            return reduce_plain(self, base, protocol)

    return named_as(Scaler, base)
