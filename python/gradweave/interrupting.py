"""A verdict reaches a training thread that waits in a call of its own, as for an accelerator."""

import ctypes
import threading

from gradweave import _native


class Interruption:
    """Called with the verdict, from another thread: `thread` raises it once that call has returned."""

    def __init__(self):
        self.thread = threading.get_ident()

    def __call__(self, verdict):
        base = _native.RuntimeFailure
        # The interpreter takes a class.
        members = {"__module__": base.__module__, "__init__": lambda own: base.__init__(own, verdict)}
        failure = type(base.__name__, (base,), members)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(failure))
