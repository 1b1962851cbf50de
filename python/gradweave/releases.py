"""Which releases of PyTorch Gradweave works with, and which one the extension beside this file was built for."""

import importlib

OLDEST, NEWEST = (2, 11), (2, 15)  # major and minor numbers
RANGE = f"torch>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"
# The warning that torch gives while it is imported where NumPy is missing, which nothing here needs.
WITHOUT_NUMPY = ("Failed to initialize NumPy", UserWarning)
BUILD = "make runtime in a clone, or install a wheel (docs/install.md)"


def reason_against(running, built):
    """Why an extension built for torch `built` (None: there is none) can't run beside torch `running`, with the remedy; ""
    if it can. Releases of one minor number fit each other, whatever device they are for."""
    if reason := outside(running):
        return f"{reason}, then {BUILD}"
    if built is None:
        return f"the extension is not built: {BUILD}"
    if _minor_of(built) != _minor_of(running):
        return f"the extension was built for torch {built}, and torch {running} is installed here: build it again, {BUILD}"
    return ""


def outside(running):
    """As reason_against(), of the range only."""
    if OLDEST <= _minor_of(running) <= NEWEST:
        return ""
    return f"torch {running} is installed here, and gradweave works with {RANGE}: pip install '{RANGE}'"


def built_for():
    """`torch.__version__` of what the extension was built for; None if it is not built."""
    try:
        return importlib.import_module("gradweave._built_for").TORCH
    except ModuleNotFoundError:
        return None


def _minor_of(version):
    return tuple(int(part) for part in version.split(".")[:2])
