"""The planning core's functions for Python: dictionaries in the form of the files, in and out."""

import json


def schemes():
    """Every scheme with its options, as `gradweave schemes --json` prints them."""
    return json.loads(_native().schemes())["schemes"]


def make_plan(workload, cluster, scheme, options=None):
    """The scheme's plan. Errors: ValueError naming the option, the scheme or the place in the input; RuntimeError
    with the reason when the scheme would never update anything."""
    text = {name: str(value) for name, value in (options or {}).items()}
    plan = json.loads(_native().make_plan(json.dumps(workload), json.dumps(cluster), scheme, json.dumps(text)))
    if "starves" in plan:
        raise RuntimeError(f"scheme '{scheme}' has no plan here: {plan['starves']}")
    return plan


def simulate(plan, workload, cluster, **options):
    """What `gradweave simulate --json` prints for the plan: times are in microseconds."""
    return json.loads(_native().simulate(*map(json.dumps, (plan, workload, cluster, options))))


def fit_link(measurements):
    """Start-up and per-byte cost of a link by least squares over [{"bytes": n, "us": t}, ...]."""
    return json.loads(_native().fit_link(json.dumps({"measurements": measurements})))


def chrome_trace(timelines):
    """Timelines (as `model.gradweave.timeline()` gives them) side by side as one trace for Perfetto, as text."""
    return _native().chrome_trace([json.dumps(timeline) for timeline in timelines])


def _native():
    # Imported late: `doctor` must run, and say why, where the extension cannot be loaded.
    from gradweave import _native

    return _native
