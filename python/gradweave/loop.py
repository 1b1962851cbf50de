"""What a training loop does to gradients, seen while the starter runs."""

import torch

from gradweave import _native
from gradweave.sharding import local_of


class Loop(_native.Loop):
    """Of one rank; src/control/loop.h has what there is to see. `parameters` are those that are communicated."""

    def __init__(self, parameters):
        super().__init__()
        self._parameters = parameters
        self._handed = None  # the gradients as the last backward left them, until a step

    @property
    def dropped(self):
        """Whether all gradients were taken away since the last backward."""
        return (self._handed is not None and any(self._handed) and
                all(parameter.grad is None for parameter in self._parameters))

    def backward_ended(self, accumulates):
        if accumulates and self._handed is not None:
            self.saw("accumulates")
        self._hand_over()

    def _hand_over(self):
        self._handed = self.gradients()

    def gradients(self):
        """What changes when somebody writes to a gradient, for each parameter."""
        return [_state_of(parameter.grad) for parameter in self._parameters]

    def clipped(self):
        """gradweave.clip_grad_norm_ has changed gradients."""
        self.saw("clips")
        self._hand_over()

    def skipped(self):
        """The loss scale was too large: the step is left out, as it should be."""
        self._handed = None

    def stepped(self):
        """The user's step(), before it changes anything."""
        dropped = self.dropped
        handed, self._handed = self._handed, None
        if handed is not None and not dropped and handed != self.gradients():
            self.saw("edits")

    def hooked(self, before):
        """The optimizer's hooks before its step have run; `before` them: gradients()."""
        if before != self.gradients():
            self.saw("edits")


def _state_of(gradient: torch.Tensor | None):
    return None if gradient is None else (local_of(gradient).data_ptr(), local_of(gradient)._version)
