"""Which plan a job runs: from its profile, its links and its settings. The engine is only asked what it runs."""

import json

import torch

from gradweave import _native, core, probe

STARTER = "sequential"  # runs while the job is profiled: no op disturbs the backward that is measured
PROBE_SECONDS = 3.0  # for each link
CANDIDATES = 4  # plans that are tried one after another, should one of them not go into force


def check_runs(settings, names, parameters, workers):
    """Refuses what the engine can't run of a scheme that was asked for by name, as far as its options tell before a profile.
    names, parameters: the model's. Errors: InvalidInput."""
    options = {name: value for name, value in (settings.options or {}).items() if name.startswith(("compressor", "outer_"))}
    if settings.plan is not None or settings.scheme == "auto" or not options:
        return
    one_of_each = {parameter.dtype: name for name, parameter in zip(names, parameters)}
    dtypes = {names[0]: parameters[0].dtype} | {name: dtype for dtype, name in one_of_each.items()}
    layers = [{"name": name, "forward_us": 1.0, "backward_us": 1.0,
               "tensors": [{"name": name, "numel": 4096, "dtype": str(dtype).removeprefix("torch.")}]}
              for name, dtype in dtypes.items()]
    workload = {"version": 1, "name": "any", "layers": layers}
    try:
        plan = core.make_plan(workload, _guessed(["any"], workers, 0.01), settings.scheme, options)
    except RuntimeError:  # no such plan for this workload, which isn't the model's
        return
    _native.check_runnable(json.dumps(plan), json.dumps(workload), workers, parameters[0].device)


def compressor_of(options):
    return (options or {}).get("compressor", "none")


def rates(scheme, options, workload, workers, device):
    """{compressor: its speed here} of those that the plan may use, by a short measurement."""
    asked, allowed = compressor_of(options), (options or {}).get("allow", "")
    if asked in _native.codecs():
        names = [asked]
    elif asked == "auto" or (scheme == "auto" and "compressed" in allowed.split("+")):
        names = _native.codecs()
    else:
        return {}
    tensors = [tensor for layer in workload["layers"] for tensor in layer["tensors"]]
    dtype = getattr(torch, tensors[0]["dtype"])
    # A message of some layers: small ones are not worth a compressor.
    numel = min(max(sum(tensor["numel"] for tensor in tensors) // 4, 1 << 14), 1 << 20)
    parameters = {name.removeprefix("compressor_"): float(value) for name, value in (options or {}).items()
                  if name.startswith("compressor_") and asked == names[0]}
    measured = {name: _native.measure_rate(name, parameters, workers, numel, dtype, device) for name in names}
    return {name: {"encode_us_per_byte": encode, "decode_us_per_byte": decode} for name, (encode, decode) in measured.items()}


def expected_demands(scheme, options, workload, links, workers):
    """What the plan of a scheme that was asked for by name will ask of the loop, as far as that can be known before a
    profile; None if it can't."""
    if scheme == "auto":  # takes what the loop supports
        return None
    guess = {**workload, "layers": [{**layer, "forward_us": 1000.0, "backward_us": 2000.0} for layer in workload["layers"]]}
    size = sum(tensor["numel"] for layer in workload["layers"] for tensor in layer["tensors"])
    try:
        # As long as the compute: overlap is worth while, and not hopeless.
        cluster = _guessed(links, workers, 3000.0 * len(workload["layers"]) / (4 * size))
        plan = core.make_plan(guess, cluster, scheme, _variants(scheme, options)[-1])
    except (ValueError, RuntimeError):
        return None
    return core.demands_of(plan)


def starter(workload, links, workers):
    """The plan that runs while nothing is measured yet."""
    return core.make_plan(workload, _guessed(links, workers, 0.001), STARTER)


def _guessed(links, workers, us_per_byte):
    unknown = [{"name": name, "startup_us": 1, "us_per_byte": us_per_byte, "concurrency": 1} for name in links]
    return probe.cluster_of(unknown, workers, "")


def cluster_of(links, control, device, compressor_rates):
    """The cluster that the job runs on: what each link costs, measured where it isn't given. Collective."""
    costs = []
    for link in links:
        if link.emulated:
            cost = {"name": link.name, "startup_us": link.model.startup_us, "us_per_byte": link.model.us_per_byte,
                    "concurrency": 1}
        elif control.size == 1:
            cost = {"name": link.name, "startup_us": 1, "us_per_byte": 0, "concurrency": 1}
        else:
            cost, _ = probe.measure_link(link.name, link.group, seconds=PROBE_SECONDS, device=device, peers=control.peers)
        costs.append(cost)
    if control.several_groups:
        costs = _slowest(costs, control)
    cluster = probe.cluster_of(costs, control.size, f"{control.size} workers")
    return {**cluster, "compressor_rates": compressor_rates} if compressor_rates else cluster


def _slowest(costs, control):
    """The links' costs of that group of the job whose link is slowest. Collective."""
    parts = [part for cost in costs for part in (cost, *(cost[half] for half in probe.HALVES if half in cost))]
    keys = ("startup_us", "us_per_byte")
    largest = iter(control.largest([part[key] for part in parts for key in keys], "the comparison of links"))
    for part in parts:
        part.update({key: next(largest) for key in keys})
    return costs


def decide(workload, cluster, settings, loop, device, preserver=None, beside_training=False):
    """{"workload", "cluster", "candidates": plans that the engine and the loop support, best first, each with its "plan",
    "prediction", "name" and "iteration_us"; "passed_over": why the best plan of all isn't among them, or "";
    "if_corrected": what corrected averages would give, where that is another; "objection": what the Preserver has
    against the best candidate, where its scheme was asked for by name; "ddp_us": the prediction for ddp, None if
    there is none}. With a scheme that was asked for by name they are plans of it; {"error": why there is none}."""
    try:
        ranked = _ranked(workload, cluster, settings, beside_training)
        best, candidates, refused = ranked[0], [], ""
        if settings.scheme == "auto" and preserver is not None:
            ranked = _by_progress(ranked, workload, preserver, (_defaults("auto") | (settings.options or {}))["tolerance"])

        def objection(entry):
            return preserver.objection(entry["plan"], workload) if preserver is not None else ""

        for entry in ranked:
            refusal = _unrunnable(entry["plan"], workload, cluster, device) or loop.refusal(core.demands_of(entry["plan"]))
            if not refusal and settings.scheme == "auto":
                refusal = objection(entry)
            if not refusal:
                candidates.append(entry)
            elif entry is best:
                refused = refusal
            if len(candidates) == CANDIDATES:
                break
        if not candidates and settings.scheme != "auto":
            return {"error": f"scheme '{settings.scheme}' can't serve this loop: {refused}"}
        if settings.scheme == "auto":
            candidates.append(entry_of(STARTER, core.make_plan(workload, cluster, STARTER), workload, cluster))
        passed = f"{best['name']} is passed over, because {refused}" if refused else ""
        if not refused and candidates[0] is not best:
            passed = (f"{best['name']} would take {best['iteration_us'] / 1e3:.1f} ms, but gets only "
                      f"{preserver.progress(best['plan'], workload):.2f} times as far in an iteration as plain training")
        return {"workload": workload, "cluster": cluster, "candidates": candidates, "passed_over": passed,
                "if_corrected": best["plan"].get("finding", {}).get("if_corrected"),
                "objection": objection(candidates[0]) if settings.scheme != "auto" else "",
                "ddp_us": _ddp_us(workload, cluster)}
    except (ValueError, RuntimeError) as error:  # every rank must learn of it, or the others wait for ever
        return {"error": str(error)}


def _variants(scheme, options):
    """The options that a scheme is planned with: those asked for, then, if they say nothing of it, without slices of tensors,
    should the optimizer not support them."""
    given = dict(options or {})
    if "slices" in given or "slices" not in _defaults(scheme):
        return [given]
    return [given, given | {"slices": "off"}]


def _unrunnable(plan, workload, cluster, device):
    """What the engine can't run of a plan, with the remedy; "" if it can."""
    try:
        _native.check_runnable(json.dumps(plan), json.dumps(workload), cluster["workers"], device)
        return ""
    except _native.InvalidInput as error:
        return str(error)


def _ranked(workload, cluster, settings, beside_training):
    if settings.scheme != "auto":
        plans = [core.make_plan(workload, cluster, settings.scheme, options, beside_training=beside_training)
                 for options in _variants(settings.scheme, settings.options)]
        return [entry_of(settings.scheme, plan, workload, cluster) for plan in plans]
    return [{"name": entry["plan"]["finding"]["chosen"]["scheme"], "plan": entry["plan"], "prediction": entry["prediction"],
             "iteration_us": entry["prediction"]["iteration_us"]}
            for entry in core.ranked_plans(workload, cluster, settings.options, beside_training=beside_training)]


def _defaults(scheme):
    """{option: its default} of a scheme."""
    options = next(each["options"] for each in core.schemes() if each["name"] == scheme)
    return {option["name"]: option["default"] for option in options}


def _by_progress(ranked, workload, preserver, tolerance):
    """`ranked`, which `auto` gave, in the order in which its rule chooses by time to progress."""
    left, order = [(time_to_progress(entry, workload, preserver), entry) for entry in ranked], []
    while left:
        order.append(left.pop(core.first_within((time for time, _ in left), float(tolerance)))[1])
    return order


def time_to_progress(entry, workload, preserver):
    """Microseconds that a candidate takes to get as far as plain training in an iteration."""
    return entry["iteration_us"] / (preserver.progress(entry["plan"], workload) if preserver is not None else 1.0)


def entry_of(name, plan, workload, cluster):
    """A candidate: the plan with its prediction."""
    prediction = core.simulate(plan, workload, cluster)
    return {"name": name, "plan": plan, "prediction": prediction, "iteration_us": prediction["iteration_us"]}


def _ddp_us(workload, cluster):
    try:
        return core.simulate(core.make_plan(workload, cluster, "ddp"), workload, cluster)["iteration_us"]
    except (ValueError, RuntimeError):
        return None
