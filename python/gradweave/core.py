"""The planning core's functions for Python: dictionaries in the form of the files, in and out."""

import json
import os
import sys
from typing import Any, Iterable, Mapping

Json = dict[str, Any]


def schemes() -> list[Json]:
    """Every scheme with its options, as `gradweave schemes --json` prints them."""
    return json.loads(_native().schemes())["schemes"]


def make_plan(workload: Json, cluster: Json, scheme: str, options: Mapping[str, object] | None = None, *,
              beside_training: bool = False) -> Json:
    """The scheme's plan. `beside_training`: made at low priority. Errors: ValueError naming the option, the scheme or the
    place in the input; RuntimeError with the reason when the scheme would never update anything."""
    plan = json.loads(_native().make_plan(json.dumps(workload), json.dumps(cluster), scheme, _text_of(options),
                                          beside_training))
    if "starves" in plan:
        raise RuntimeError(f"scheme '{scheme}' has no plan here: {plan['starves']}")
    return plan


def check_options(scheme: str, options: Mapping[str, object] | None = None) -> None:
    """Raises InvalidInput (a ValueError) if the scheme does not exist or could not be planned with these options,
    whatever the workload."""
    _native().check_options(scheme, _text_of(options))


def check_tuning(scheme: str, options: Mapping[str, object] | None, trials: int) -> None:
    """Raises InvalidInput (a ValueError) if a job by the scheme with these options can't be tuned in so many trials."""
    _native().check_tuning(scheme, _text_of(options), trials)


def ranked_plans(workload: Json, cluster: Json, options: Mapping[str, object] | None = None, *,
                 beside_training: bool = False) -> list[Json]:
    """Scheme `auto`'s admissible plans under its `options`, best first: [{"plan": ..., "prediction": what simulate()
    returns, "effects": ["exact", ...], "demands": as demands_of() returns}, ...]. A plan's "finding" says whose it is
    ("chosen": scheme, options, iteration_us, effects), why ("reason"), and in the first plan what would be chosen if
    corrected averages were allowed too ("if_corrected", where that is another). `beside_training` and errors: as
    make_plan()."""
    ranked = json.loads(_native().ranked_plans(json.dumps(workload), json.dumps(cluster), _text_of(options), beside_training))
    if "starves" in ranked:
        raise RuntimeError(f"scheme 'auto' has no plan here: {ranked['starves']}")
    return ranked["plans"]


def demands_of(plan: Json) -> dict[str, bool]:
    """What the plan asks of a training loop: steps_in_forward, steps_in_backward, partial_steps, slices,
    delays_gradients, local_steps, keeps_residual, makes_momentum; `synchronous` if it applies exactly its own gradients
    at each iteration's end."""
    return json.loads(_native().demands(json.dumps(plan)))


def simulate(plan: Json, workload: Json, cluster: Json, *, optimizer_us: float = 0.0, contention: float = 1.0) -> Json:
    """What `gradweave simulate --json` prints for the plan: times are in microseconds. `optimizer_us`: the time of one
    whole optimizer step; `contention`: how many times longer compute takes while a link is busy. Errors: ValueError."""
    options = {"optimizer_us": optimizer_us, "contention": contention}
    return json.loads(_native().simulate(*map(json.dumps, (plan, workload, cluster, options))))


def chosen(plan: Json) -> Json:
    """Whose the plan is: what `auto` or `optimal` say of the plan that they chose, else the plan itself; has its "scheme"
    and "options"."""
    return plan.get("finding", {}).get("chosen", plan)


def cut_layers(plan: Json, workload: Json) -> list[int]:
    """The layers, not the first, whose gradients complete an op that may start then: the backward has to reach their
    gradients apart from those of the layers before. Errors: ValueError."""
    return _native().cut_layers(json.dumps(plan), json.dumps(workload))


def first_within(times: Iterable[float], tolerance: float) -> int:
    """The place of the first of `times`, which stand in order of preference, that is longer than the shortest by at most the
    share `tolerance` of it: the rule by which `auto` chooses."""
    return _native().first_within(list(times), tolerance)


def typical_row(rows: Iterable[Iterable[float]]) -> list[float]:
    """The median of each column of `rows`, one or more of one length, all scaled alike so that they add up to the median of
    the rows' sums."""
    return _native().typical_row([list(row) for row in rows])


def fit_link(measurements: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Start-up and per-byte cost of a link by a robust fit of [{"bytes": n, "us": t}, ...]: {"startup_us",
    "us_per_byte", "residual"}. Errors: ValueError."""
    return json.loads(_native().fit_link(json.dumps({"measurements": list(measurements)})))


def chrome_trace(timelines: Iterable[Json]) -> str:
    """Timelines (as `model.gradweave.timeline()` gives them) side by side as one trace for Perfetto, as text."""
    return _native().chrome_trace([json.dumps(timeline) for timeline in timelines])


def write_report(path: str | os.PathLike[str], *, workload: Json | None = None, cluster: Json | None = None,
                 schemes: Iterable[str] | None = None, plans: Mapping[str, Json] | None = None, timelines: Iterable[Json] = (),
                 measured: Iterable[str] = ()) -> None:
    """Writes the page that `gradweave report` writes, whole or not at all. `schemes`: planned beside the `plans` ({name:
    plan}); default: all that don't search among the others. `measured`: sentences that the page shows. A workload and its
    cluster, or a timeline, there must be. Errors: ValueError; RuntimeError if the disk fails."""
    given = {"workload": workload, "cluster": cluster, "schemes": None if schemes is None else list(schemes),
             "plans": dict(plans or {}), "timelines": list(timelines), "measured": list(measured)}
    known = {name: value for name, value in given.items() if value is not None}
    _native().write_report(os.fspath(path), json.dumps(known))


def _text_of(options):
    return json.dumps({name: str(value) for name, value in (options or {}).items()})


def _native():
    # Imported late: `doctor` must run, and say why, where the extension cannot be loaded.
    from gradweave import InvalidInput  # says what to do where torch is missing

    return sys.modules[InvalidInput.__module__]
