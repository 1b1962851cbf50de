"""Whether all ranks have equal parameters, bit for bit."""

from gradweave import _native
from gradweave.agreement import named

CHECK_EVERY = 100  # iterations, with wrap(check=True)


def check_equal(control, names, parameters, when):
    """Compares checksums over ranks. Collective. Errors: InvalidInput, on every rank, naming the ranks that differ and the
    first parameter in which they do."""
    if control.size == 1:
        return
    own = [_native.checksum(parameter) for parameter in parameters]
    what = f"the comparison of parameters {when}"
    sums = control.of_all(own, what)
    if len(set(map(tuple, sums.values()))) == 1:
        return
    groups = {}
    for rank, each in sums.items():
        groups.setdefault(tuple(each), []).append(rank)
    most, *others = sorted(groups.values(), key=len, reverse=True)
    if len(most) > len(others[0]):  # nobody is named on a tie
        found = f"those of {named(sorted(sum(others, [])))} differ from those of {named(most)}"
    else:
        found = "different on " + " and on ".join(named(each) for each in [most, *others])
    first = next(name for name, column in zip(names, zip(*sums.values())) if len(set(column)) > 1)
    raise _native.InvalidInput(f"{when}: the ranks' parameters are not equal: {found}, first in '{first}'; "
                               "every rank must take the same steps with the same hyperparameters, and change parameters "
                               "only alike: look for what one of them does alone, or load one checkpoint on all of them")

