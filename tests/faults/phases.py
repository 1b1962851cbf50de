"""The phases of a job, told by the functions that are running, and the calls that each of them makes.

A phase lasts while one of its functions is on the stack of the training thread, the innermost of them counts; else the loop
says which it is. A test fails when one of the functions is gone.
"""

import collections
import importlib
import sys

FUNCTIONS = {
    "arrival": ("agreement.agree",),
    "groups": ("agreement.Control.__init__", "links.Link.open"),
    "broadcast": ("agreement.Control.broadcast",),
    "probe": ("commands.Commands.measure",),
    "install": ("commands.Commands.install",),
    "finish": ("session.Session.finish",),
    "close": ("session.Session.close",),
}
AFTER = {"probe": "decision"}  # what begins where a phase ends, and makes no calls that can be counted: it counts as one
PHASES = ("arrival", "groups", "broadcast", "wrap", "warm-up", "profile", "switch", "probe", "decision", "install", "training",
          "following", "tuning", "finish", "close")


def codes():
    """{code: phase} of the functions that there are."""
    found = {}
    for phase, names in FUNCTIONS.items():
        for name in names:
            module, *attributes = name.split(".")
            value = importlib.import_module(f"gradweave.{module}")
            for attribute in attributes:
                value = getattr(value, attribute, None)
            if code := getattr(value, "__code__", None):
                found[code] = phase
    return found


class Calls:
    """Counts the calls that the training thread makes in each phase; `on_call(phase, number)` is called at each."""

    def __init__(self, on_call=None):
        self.count = collections.Counter()
        self.current = None  # the phase of the last call
        self.loop = None  # the phase where no function of FUNCTIONS runs; None: not of interest
        self._on_call, self._codes, self._stack = on_call, codes(), []

    def begin(self):
        sys.setprofile(self._profile)

    def end(self):
        sys.setprofile(None)

    def _profile(self, frame, event, argument):
        if event == "return":
            if self._stack and self._stack[-1][0] is frame:
                _, ended = self._stack.pop()
                if ended in AFTER:
                    self._made(AFTER[ended])
            return
        if event == "call" and (phase := self._codes.get(frame.f_code)):
            self._stack.append((frame, phase))
        elif event not in ("call", "c_call"):
            return
        phase = self._stack[-1][1] if self._stack else self.loop
        if phase is not None:
            self._made(phase)

    def _made(self, phase):
        self.current = phase
        number = self.count[phase]
        self.count[phase] += 1
        if self._on_call:
            self._on_call(phase, number)
