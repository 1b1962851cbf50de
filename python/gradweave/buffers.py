"""Rank 0's buffers for all ranks."""

import warnings

from gradweave import _native
from gradweave.sharding import local_of

BUFFERS = "the broadcast of buffers"
SMALL = 1 << 20  # bytes of all buffers together: they are sent at each step
LOOKS = 5  # steps in which ranks find what changes of larger ones: others, such as large masks, are sent no more


class Buffers:
    """Of the model of `scope`."""

    def __init__(self, scope, control):
        self._scope, self._control = scope, control
        self._names = list(scope.named_buffers())  # alike on all ranks, as wrap() made sure
        self._marks = _marks_of(scope.named_buffers())
        self._small = sum(local_of(each).nbytes for each in scope.named_buffers().values()) <= SMALL
        # Of follow(): the names of those that change, what all had after a step, and how often ranks have looked.
        self._changing, self._sums, self._looks = set(), None, 0
        self._warned = False

    @property
    def changed(self):
        """Whether one has changed here since all ranks had rank 0's, as far as marks tell."""
        return _marks_of(self._scope.named_buffers()) != self._marks

    def broadcast(self):
        """All of them. Collective."""
        buffers = self._scope.named_buffers()
        self._send(buffers, buffers)

    def follow(self):
        """Once for each step: those that training changes on some rank; all, the first time and where they are small.
        Collective."""
        buffers = self._scope.named_buffers()
        chosen = buffers if self._small else self._names
        if self._sums is not None and not self._small:
            if self._looks < LOOKS:
                self._look(_sums_of(buffers))
            elif not self._warned:
                self._warn(buffers)
            chosen = [name for name in self._names if name in self._changing]
        self._send(buffers, chosen)
        if self._looks < LOOKS and not self._small:
            self._sums = _sums_of(buffers)

    def _look(self, sums):
        self._looks += 1
        changed = [int(sums.get(name) != self._sums.get(name)) for name in self._names]
        of_all = self._control.of_all(changed, "the search for buffers that change")
        self._changing |= {name for name, *told in zip(self._names, *of_all.values()) if any(told)}

    def _warn(self, buffers):
        for name, mark in _marks_of(buffers).items():
            if name not in self._changing and mark != self._marks.get(name) and \
                    _native.checksum(local_of(buffers[name])) != self._sums.get(name):
                self._warned = True
                warnings.warn(f"gradweave: buffer '{name}' has changed, and had not in the first {LOOKS + 1} steps: each rank "
                              "keeps its own until gradweave.finish(model); call model.gradweave.broadcast_buffers() on all "
                              "ranks where it changes", stacklevel=4)
                return

    def _send(self, buffers, names):
        self._control.broadcast([buffers[name] for name in names if name in buffers], BUFFERS)
        self._marks = _marks_of(buffers)


def _marks_of(buffers):
    """What changes with each change of a buffer, but not with one through `.data`."""
    return {name: (id(buffer), buffer._version) for name, buffer in buffers.items()}


def _sums_of(buffers):
    return {name: _native.checksum(local_of(buffer)) for name, buffer in buffers.items()}
