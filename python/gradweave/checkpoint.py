"""What a checkpoint keeps of one rank, and how a job goes on from those of all."""

import torch

from gradweave import _native
from gradweave._native import InvalidInput
from gradweave.agreement import has_mean, named
from gradweave.sharding import beside, local_of

VERSION = 2


class RankState:
    """Of one rank after one iteration, for Session.load_state_dict(). torch.distributed.checkpoint keeps it whole, since it is
    no dictionary."""

    def __init__(self, rank, ranks, job=None, iteration=0, plan=None, **parts):
        self.version, self.rank, self.ranks, self.job, self.iteration = VERSION, rank, ranks, job, iteration
        self.plan, self.parts = plan, parts


torch.serialization.add_safe_globals([RankState])  # torch.load() takes it with weights_only, its default


class OfRanks:
    """In a checkpoint that torch.distributed.checkpoint loads: the states of all `ranks` that the job had then."""

    def __init__(self, session, ranks):
        self._session, self._ranks = session, ranks

    def state_dict(self):
        part = self._session.job.part
        return {key_of(rank, part): RankState(rank, self._ranks) for rank in range(self._ranks)}

    def load_state_dict(self, states):
        self._session.load_state_dict([{key: state} for key, state in sorted(states.items(), key=lambda item: item[1].rank)])


def key_of(rank, part=None):
    """`part`: JobRanks.part: ranks that train other parts of a model have states of their own."""
    return f"rank{rank}" if part is None else f"rank{rank}.part{part}"


def ranks_of(given):
    """How many ranks the job had of which one has returned `given`, by state_dict()."""
    state, = given.values()
    return state.ranks


def states_of(given, rank, ranks):
    """The RankStates that a job of `ranks` ranks goes on from on this one: its own, or those of all ranks of a job that had
    another number. `given`: {key_of(): RankState}, or a list of them in the order of ranks. Errors: InvalidInput."""
    given = given if isinstance(given, (list, tuple)) else [given]
    states = [state for each in given for state in (each.values() if isinstance(each, dict) else [each])]
    if not states or not all(isinstance(state, RankState) for state in states):
        raise InvalidInput("it does not hold a rank's state: give each rank its own, as state_dict() returned it, or a list "
                           "of all")
    for state in states:
        if state.version != VERSION:
            raise InvalidInput(f"it has version {state.version}, and this gradweave reads version {VERSION}: load it with "
                               "the release that saved it")
    first = states[0]
    if len(states) == 1 and first.ranks == ranks:
        if first.rank != rank:
            raise InvalidInput(f"it was saved by rank {first.rank} of {first.ranks}, and this is rank {rank} of {ranks}: give "
                               "each rank its own")
        return states
    _check_complete(states)
    return [states[rank]] if len(states) == ranks else states


def _check_complete(states):
    first = states[0]
    found = [state.rank for state in states]
    for state in states:
        if state.ranks != first.ranks or state.job != first.job or state.plan != first.plan:
            raise InvalidInput(f"the states of {named([first.rank])} and {named([state.rank])} are of different jobs "
                               f"({first.ranks} and {state.ranks} ranks): give those of one")
        if state.iteration != first.iteration:
            raise InvalidInput(f"the state of rank {first.rank} is of iteration {first.iteration}, that of rank {state.rank} "
                               f"of iteration {state.iteration}: give those of one iteration")
    if twice := sorted({each for each in found if found.count(each) > 1}):
        raise InvalidInput(f"the state of {named(twice)} is given twice: give each rank's once")
    if missing := sorted(set(range(first.ranks)) - set(found)):
        raise InvalidInput(f"it is of {named(found)} of {first.ranks}, without {named(missing)}: to go on with another number "
                           "of ranks, give every rank the states of all, load_state_dict([of rank 0, of rank 1, ...])")
    if found != sorted(found):
        raise InvalidInput(f"they are of {named(found)}: give them in the order of ranks")


def check_names(state, names):
    """Errors: InvalidInput if its plan is for other parameters than `names`."""
    if state.plan is None:
        return
    then = {name for tensors in state.parts["layers"].values() for name in tensors}
    for unlike, how in ((then - set(names), "was trained then, and is frozen, excluded or missing here"),
                        (set(names) - then, "is trained here, and was not then")):
        if unlike:
            raise InvalidInput(f"parameter '{min(unlike)}' {how}: train the same ones, or load model and optimizer alone")


def fold(states, scope, links, updates, moments):
    """Makes parameters and optimizers what finish() of the job before would have made them, from the states of all its ranks,
    and returns what outlives its plan on each of them, for Engine.take_over(). Every rank does it alone, and all alike.
    `scope`: of the model; `links`: LinkSpecs without groups; `moments`: as for Updates.plan_installed()."""
    parts = [state.parts for state in states]
    if states[0].plan is None:
        return [each["remains"] for each in parts]
    names, parameters = scope.names, scope.parameters
    plan, workload = _native.Plan(states[0].plan), _native.Workload(parts[0]["workload"])
    engines = [each["engine"] for each in parts]
    local = "local" in parts[0]
    remains, ended = [], []
    for rank, each in enumerate(parts):
        if local:
            put_local(each["local"], names, parameters, updates)
        engine = _native.Engine(names, scope.tensors, links, None, _native.Peers(None, 0, 1, 60.0), len(states), 60.0, False,
                                None, updates.step_subset, scope.shards)
        with updates.of(engine):
            engine.play(plan, workload, engines, rank)
            if local or rank == 0:  # elsewhere ranks have equal parameters
                updates.plan_installed(moments)
                engine.drain("load_state_dict()")
        remains.append(engine.remains())
        engine.close()
        if local:
            ended.append(_copied(local_state(names, parameters, updates), parameters[0].device))
    if local:
        put_local(_mean(ended), names, parameters, updates)
    return remains


def costs_state(costs):
    """What a decision was made from, None where a plan was given."""
    if costs is None:
        return {"cluster": None}
    return {"cluster": costs.usual.to_dict(), "staged": costs.staged and costs.staged.to_dict(), "overheads": costs.overheads}


def costs_of(state):
    """The Costs of a costs_state(), of versions that kept the cluster alone too."""
    if state["cluster"] is None:
        return None
    return _native.Costs(state["cluster"], state.get("staged"), **state.get("overheads", {}))


def local_state(names, parameters, updates):
    """{name: {"value", "optimizer"}}: what ranks have of their own where they step on their own. No copies."""
    return {name: {"value": local_of(parameter).detach(),
                   "optimizer": {key: local_of(value) for key, value in updates.state_of(parameter).items()}}
            for name, parameter in zip(names, parameters)}


def put_local(state, names, parameters, updates):
    """Makes parameters and optimizers' states copies of a local_state()."""
    with torch.no_grad():
        for name, parameter in zip(names, parameters):
            local_of(parameter).copy_(state[name]["value"])
            kept = _copied(state[name]["optimizer"], parameter.device)
            updates.set_state(parameter, {key: beside(value, parameter) for key, value in kept.items()})


def _copied(value, device):
    """What lies beside a parameter on `device`: counts of steps, which have no dimension, stay where torch keeps them."""
    if isinstance(value, dict):
        return {key: _copied(each, device) for key, each in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device, copy=True) if value.dim() > 0 else value.clone()


def _mean(values):
    """Of what ranks have of one thing, None where they have nothing: floats are averaged, a rank without them counts as zeros;
    all else is alike on all of them."""
    first = next((each for each in values if each is not None), None)
    if isinstance(first, dict):
        held = [each or {} for each in values]
        return {key: _mean([each.get(key) for each in held]) for key in dict.fromkeys(key for each in held for key in each)}
    if isinstance(first, torch.Tensor) and has_mean(first):
        return _native.mean_over_ranks([torch.zeros_like(first) if each is None else each for each in values])
    return first
