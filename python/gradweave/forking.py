"""A process that is forked from a rank is not a rank: it has the model and the optimizer as wrap() found them, with the
parameters that the next forward would have used."""

import os

from torch import distributed

from gradweave import _native
from gradweave.subclasses import of_parent, sessions


class OfParent:
    """What a session becomes."""

    def __getattr__(self, name):
        raise _native.InvalidInput(f"model.gradweave.{name}: this process was forked from a rank and is not a rank itself: "
                                   "train, save and finish in the parent; here the model is the plain one")


def _before():
    for session in set(sessions.values()):
        session.before_fork()


def _in_child():
    for session in set(sessions.values()):
        of_parent.update(held for held, of in sessions.items() if of is session)
        _native.keep_forever(session)
        session.unhook()
        session.__class__ = OfParent
    # Torch's groups would wait for their threads at the end, too.
    if distributed.is_available() and distributed.is_initialized() and of_parent:
        for group in distributed.distributed_c10d._world.pg_map:
            _native.keep_forever(group)


os.register_at_fork(before=_before, after_in_child=_in_child)
