"""What a checkpoint keeps of one rank."""

import torch

VERSION = 1


class RankState:
    """Of one rank after one iteration, for Session.load_state_dict(). torch.distributed.checkpoint keeps it whole, since it is
    no dictionary."""

    def __init__(self, rank, ranks, plan=None, **parts):
        self.version, self.rank, self.ranks, self.plan, self.parts = VERSION, rank, ranks, plan, parts


torch.serialization.add_safe_globals([RankState])  # torch.load() takes it with weights_only, its default


def key_of(rank):
    return f"rank{rank}"


def state_of(states, rank, ranks):
    """This rank's, of `states` {key_of(): RankState}. Errors: ValueError."""
    state = states.get(key_of(rank))
    if not isinstance(state, RankState):
        others = ", ".join(map(str, states)) or "none"
        raise ValueError(f"it has no state of rank {rank}, but of {others}: give each rank its own")
    if state.version != VERSION:
        raise ValueError(f"it is of version {state.version}, this gradweave reads version {VERSION}")
    if (state.rank, state.ranks) != (rank, ranks):
        raise ValueError(f"it is of rank {state.rank} of {state.ranks}, this is rank {rank} of {ranks}: to go on with another "
                         "number of ranks, call gradweave.finish(model) before the model and the optimizer are saved, and "
                         "leave this out")
    return state
