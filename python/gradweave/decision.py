"""Which plan a job runs: from its profile, its links and its settings. Knows no engine."""

from gradweave import _native, core, probe

STARTER = "sequential"  # runs while the job is profiled: no op disturbs the backward that is measured
CANDIDATES = 4  # plans that are tried one after another, should one of them not go into force


def check_scheme(scheme, options):
    """What can be said before a profile. Errors: InvalidInput."""
    core.check_options(scheme, options)
    compressor = (options or {}).get("compressor", "none")
    if compressor != "none":
        raise _native.InvalidInput(f"the engine has no compressed collectives, and the options ask for compressor={compressor}; "
                                   "leave it out (planning and simulation know its cost)")


def expected_demands(scheme, options, workload, links, workers):
    """What the plan of a scheme that was asked for by name will ask of the loop, as far as that can be known before a
    profile; None if it can't."""
    if scheme == "auto":  # takes what the loop bears
        return None
    guess = {**workload, "layers": [{**layer, "forward_us": 1000.0, "backward_us": 2000.0} for layer in workload["layers"]]}
    size = sum(tensor["numel"] for layer in workload["layers"] for tensor in layer["tensors"])
    try:
        # As long as the compute: overlap is worth while, and not hopeless.
        cluster = _guessed(links, workers, 3000.0 * len(workload["layers"]) / (4 * size))
        return core.demands_of(core.make_plan(guess, cluster, scheme, options))
    except (ValueError, RuntimeError):
        return None


def starter(workload, links, workers):
    """The plan that runs while nothing is measured yet."""
    return core.make_plan(workload, _guessed(links, workers, 0.001), STARTER)


def _guessed(links, workers, us_per_byte):
    unknown = [{"name": name, "startup_us": 1, "us_per_byte": us_per_byte, "concurrency": 1} for name in links]
    return probe.cluster_of(unknown, workers, "")


def cluster_of(channels, control, device):
    """The cluster that the job runs on: what each link costs, measured where it isn't given. Collective."""
    links = []
    for channel in channels:
        if channel.emulated:
            link = {"name": channel.name, "startup_us": channel.cost[0], "us_per_byte": channel.cost[1], "concurrency": 1}
        elif control.size == 1:
            link = {"name": channel.name, "startup_us": 1, "us_per_byte": 0, "concurrency": 1}
        else:
            with control.together(f"the probe of link {channel.name}"):
                link, _ = probe.measure_link(channel.name, channel.group, seconds=3.0, device=device)
        links.append(link)
    return probe.cluster_of(links, control.size, f"{control.size} workers")


def decide(workload, cluster, settings, loop):
    """{"workload", "cluster", "candidates": plans that the loop bears, best first, each with its "plan", "prediction",
    "name" and "iteration_us"; "passed_over": why the best plan of all isn't among them, or ""; "if_corrected": what
    corrected averages would give, where that is another; "ddp_us": the prediction for ddp, None if there is none}. With a
    scheme that was asked for by name there is one candidate; {"error": why there is none}."""
    try:
        ranked = _ranked(workload, cluster, settings)
        refusals = [loop.refusal(core.demands_of(entry["plan"])) for entry in ranked]
        candidates = [entry for entry, refusal in zip(ranked, refusals) if not refusal][:CANDIDATES]
        if not candidates and settings.scheme != "auto":
            return {"error": f"scheme '{settings.scheme}' can't serve this loop: {refusals[0]}"}
        best = ranked[0]
        if settings.scheme == "auto":
            candidates.append(_entry(STARTER, core.make_plan(workload, cluster, STARTER), workload, cluster))
        passed = f"{best['name']} is passed over, because {refusals[0]}" if refusals[0] else ""
        return {"workload": workload, "cluster": cluster, "candidates": candidates, "passed_over": passed,
                "if_corrected": best["plan"].get("finding", {}).get("if_corrected"),
                "ddp_us": _ddp_us(workload, cluster)}
    except (ValueError, RuntimeError) as error:  # every rank must learn of it, or the others wait for ever
        return {"error": str(error)}


def _ranked(workload, cluster, settings):
    if settings.scheme != "auto":
        plan = core.make_plan(workload, cluster, settings.scheme, settings.options)
        return [_entry(settings.scheme, plan, workload, cluster)]
    return [{"name": entry["plan"]["finding"]["chosen"]["scheme"], "plan": entry["plan"], "prediction": entry["prediction"],
             "iteration_us": entry["prediction"]["iteration_us"]}
            for entry in core.ranked_plans(workload, cluster, settings.options)]


def _entry(name, plan, workload, cluster):
    prediction = core.simulate(plan, workload, cluster)
    return {"name": name, "plan": plan, "prediction": prediction, "iteration_us": prediction["iteration_us"]}


def _ddp_us(workload, cluster):
    try:
        return core.simulate(core.make_plan(workload, cluster, "ddp"), workload, cluster)["iteration_us"]
    except (ValueError, RuntimeError):
        return None
