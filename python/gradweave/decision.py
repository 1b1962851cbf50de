"""Which plan a job runs: from its profile, its links and its settings. Knows no engine."""

from gradweave import _native, core, probe

STARTER = "sequential"  # runs while the job is profiled: no op disturbs the backward that is measured


def check_scheme(scheme, options):
    """What can be said before a profile. Errors: InvalidInput."""
    known = {row["name"]: [option["name"] for option in row["options"]] for row in core.schemes()}
    if scheme not in known:
        raise _native.InvalidInput(f"unknown scheme '{scheme}'; use one of {', '.join(known)}")
    for name in options or {}:
        if name not in known[scheme]:
            raise _native.InvalidInput(f"scheme '{scheme}' has no option '{name}'; it has {', '.join(known[scheme]) or 'none'}")


def starter(workload, links, workers):
    """The plan that runs while nothing is measured yet."""
    unknown = [{"name": name, "startup_us": 1, "us_per_byte": 0.001, "concurrency": 1} for name in links]
    return core.make_plan(workload, probe.cluster_of(unknown, workers, ""), STARTER)


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
                measured = probe.measure(channel.group, seconds=2.0, device=device)
            link, _ = probe.describe_link(channel.name, measured)
        links.append(link)
    return probe.cluster_of(links, control.size, f"{control.size} workers")


def decide(workload, cluster, settings):
    """{"plan", "workload", "cluster", "prediction"}, or {"error": why there is none}."""
    try:
        plan = core.make_plan(workload, cluster, settings.scheme, settings.options)
        return {"plan": plan, "workload": workload, "cluster": cluster, "prediction": core.simulate(plan, workload, cluster)}
    except (ValueError, RuntimeError) as error:  # every rank must learn of it, or the others wait for ever
        return {"error": str(error)}
