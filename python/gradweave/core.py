"""The planning core's functions for Python.

What stands in files is a Workload, a Cluster, a Plan or a Timeline: a value that never changes and compares, with
`from_json(text)` and `to_json()`, `read(path)` and `to_dict()`, that reads like the dictionary of its file
(`plan["scheme"]`) and can be pickled. Every function also takes dictionaries in the form of the files, and `Plan(dictionary)`
makes one a value. Errors in either name the place in it.
"""

import os
import sys
from typing import TYPE_CHECKING, Any, Iterable, Mapping, overload

Json = dict[str, Any]

if TYPE_CHECKING:
    from gradweave._native import Cluster, Plan, Timeline, Workload


def __getattr__(name):
    if name in ("Plan", "Workload", "Cluster", "Timeline"):
        return getattr(_native(), name)
    raise AttributeError(f"module 'gradweave.core' has no attribute '{name}'")


def schemes() -> list[Json]:
    """Every scheme with its options, as `gradweave schemes --json` prints them."""
    return _native().schemes()


@overload
def make_plan(workload: "Workload", cluster: "Cluster", scheme: str,
              options: Mapping[str, object] | None = None) -> "Plan": ...
@overload
def make_plan(workload: Json, cluster: "Json | Cluster", scheme: str,
              options: Mapping[str, object] | None = None) -> Json: ...
def make_plan(workload: "Json | Workload", cluster: "Json | Cluster", scheme: str,
              options: Mapping[str, object] | None = None) -> "Json | Plan":
    """The scheme's plan: a Plan for a Workload, a dictionary for a dictionary. Errors: ValueError naming the option, the
    scheme or the place in the input; RuntimeError with the reason when the scheme would never update anything."""
    return _as(workload, _native().make_plan(workload, cluster, scheme, texts_of(options)))


def check_options(scheme: str, options: Mapping[str, object] | None = None) -> None:
    """Raises InvalidInput (a ValueError) if the scheme does not exist or could not be planned with these options,
    whatever the workload."""
    _native().check_options(scheme, texts_of(options))


def check_tuning(scheme: str, options: Mapping[str, object] | None, trials: int) -> None:
    """Raises InvalidInput (a ValueError) if a job by the scheme with these options can't be tuned in so many trials."""
    _native().check_tuning(scheme, texts_of(options), trials)


def ranked_plans(workload: "Json | Workload", cluster: "Json | Cluster",
                 options: Mapping[str, object] | None = None) -> list[Json]:
    """Scheme `auto`'s admissible plans under its `options`, best first: [{"plan": as make_plan() returns it, "prediction":
    what simulate() returns, "effects": ["exact", ...], "demands": as demands_of() returns}, ...]. A plan's "finding" says
    whose it is ("chosen": scheme, options, iteration_us, effects), why ("reason"), and in the first plan what would be chosen
    if corrected averages were allowed too ("if_corrected", where that is another). Errors: as make_plan()."""
    ranked = _native().ranked_plans(workload, cluster, texts_of(options))
    return [entry | {"plan": _as(workload, entry["plan"])} for entry in ranked]


def demands_of(plan: "Json | Plan") -> dict[str, bool]:
    """What the plan asks of a training loop: steps_in_forward, steps_in_backward, partial_steps, slices,
    delays_gradients, local_steps, keeps_residual, makes_momentum; `synchronous` if it applies exactly its own gradients
    at each iteration's end."""
    return _native().demands(plan)


def simulate(plan: "Json | Plan", workload: "Json | Workload", cluster: "Json | Cluster", *, optimizer_us: float = 0.0,
             apply_us: float = 0.0, contention: float = 1.0, handover_us: float = 0.0, launch_us: float = 0.0,
             burst_us: float = 0.0) -> Json:
    """What `gradweave simulate --json` prints for the plan: times are in microseconds. `optimizer_us`: the time of one
    whole optimizer step; `apply_us`: by how much a step of a part of the model, in the forward or the backward, takes longer
    than its share of that; `contention`: how many times longer compute takes while a link is busy; `handover_us`: the time
    from when an op is ready until an idle link starts it; `launch_us`: the compute time that a message takes if it starts
    beside compute; `burst_us`: the size of each link's token bucket, which fills while the link sends nothing, as the time
    in which the link sends as much. Errors: ValueError."""
    return _native().simulate(plan, workload, cluster, optimizer_us, apply_us, contention, handover_us, launch_us,
                              burst_us)


def chosen(plan: "Json | Plan") -> Json:
    """Whose the plan is: what `auto` or `optimal` say of the plan that they chose, else the plan itself; has its "scheme"
    and "options"."""
    return plan.get("finding", {}).get("chosen", plan) if isinstance(plan, dict) else plan.chosen


def cut_layers(plan: "Json | Plan", workload: "Json | Workload") -> list[int]:
    """The layers, except the first, whose gradients complete an op that may start then. The backward has to reach their
    gradients apart from those of the layers before. Errors: ValueError."""
    return _native().cut_layers(plan, workload)


def fit_link(measurements: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Start-up and per-byte cost of a link by a robust fit of [{"bytes": n, "us": t}, ...]: {"startup_us",
    "us_per_byte", "residual"}. Errors: ValueError."""
    try:
        points = [(int(each["bytes"]), float(each["us"])) for each in measurements]
    except (KeyError, TypeError, ValueError):
        raise _native().InvalidInput('fit_link(): give a list of {"bytes": n, "us": t}, of numbers') from None
    return _native().fit_link(points)


def chrome_trace(timelines: "Iterable[Json | Timeline]") -> str:
    """Timelines (as `model.gradweave.timeline()` gives them) side by side as one trace for Perfetto, as text."""
    return _native().chrome_trace(list(timelines))


def write_report(path: str | os.PathLike[str], *, workload: "Json | Workload | None" = None,
                 cluster: "Json | Cluster | None" = None, schemes: Iterable[str] | None = None,
                 plans: "Mapping[str, Json | Plan] | None" = None, timelines: "Iterable[Json | Timeline]" = (),
                 measured: Iterable[str] = (), optimizer_us: float = 0.0, contention: float = 1.0,
                 burst_us: float = 0.0) -> None:
    """Writes the page that `gradweave report` writes, whole or not at all. Give a workload and its cluster, or a timeline.
    `schemes`: planned beside the `plans` ({name: plan}); default: all that don't search among the others. `measured`:
    sentences that the page shows. `optimizer_us`, `contention`, `burst_us`: as for simulate(). Errors: ValueError;
    RuntimeError if the disk fails."""
    _native().write_report(os.fspath(path), workload=workload, cluster=cluster,
                           schemes=None if schemes is None else list(schemes), plans=list((plans or {}).items()),
                           timelines=list(timelines), measured=list(measured), optimizer_us=optimizer_us,
                           contention=contention, burst_us=burst_us)


def _as(given, made):
    """`made`, an object of a class, in the form in which the caller gave something else."""
    return made.to_dict() if isinstance(given, dict) else made


def texts_of(options: Mapping[str, object] | None) -> dict[str, str]:
    """Options as texts, as the command line and plans have them: 1.0 as "1"."""
    return {name: str(int(value) if isinstance(value, float) and value.is_integer() else value)
            for name, value in (options or {}).items()}


def _native():
    # Imported late: `doctor` must run, and say why, where the extension cannot be loaded.
    from gradweave import InvalidInput  # says what to do where torch is missing

    return sys.modules[InvalidInput.__module__]
