"""Objects among ranks, without NumPy (tests/packaging/test_without_numpy.py)."""

import pickle

from torch import distributed

import ranks


def exchanges(rank):
    from gradweave.groups import from_rank_0, gathered

    own = {"rank": rank, "text": "x" * 10 ** rank}  # of other sizes
    found = [gathered(own), from_rank_0(own)]
    pair = distributed.new_group([1, 2])
    if rank in (1, 2):
        found += [gathered(own, pair), from_rank_0(own, pair)]
    return found


def test_objects_of_other_sizes_reach_the_ranks_of_a_group():
    everyones = [{"rank": rank, "text": "x" * 10 ** rank} for rank in range(3)]
    found = ranks.run(exchanges, 3)
    assert found[0] == [everyones, everyones[0]]
    assert found[1] == found[2] == [everyones, everyones[0], everyones[1:], everyones[1]]


class Code:
    def __reduce__(self):
        return print, ("this ran",)


def sends_code(rank):
    from gradweave.groups import gathered

    try:
        gathered(Code() if rank == 1 else "data")
    except pickle.UnpicklingError as error:
        return str(error)


def test_what_names_code_is_no_data():
    assert ranks.run(sends_code, 2) == ["builtins.print is no data"] * 2
