"""The demo: the same training over a slow link with DistributedDataParallel and with Gradweave's schemes, in turns.

`run` starts the ranks (each in a host of its own where possible) and each rank executes `_compare`: measure compute
alone, set the links' rate to the coverage rate asked for, measure links and layers, plan and predict every scheme,
then train all contestants in interleaved segments and compare time and accuracy.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import distributed

from gradweave import core, profiling, ranks
from gradweave.lab import hosts, jobs, progress, report, slow_link, training, turns, methods

HAND_TUNED_MB = (1, 5, 10)  # of buckets; of models smaller than the largest, these shares:
HAND_TUNED_SHARES = (1 / 8, 1 / 2, 1)
WARM_UP = 4  # iterations of a segment that are not timed: more than the longest ramp of the delayed schemes here
CALIBRATION = 15
TURNS_S = 180.0  # of the five minutes; the rest goes into measuring the setting, the accuracies and the traces
QUIET = {"KINETO_LOG_LEVEL": "99"}  # the profiler writes to standard output
# For all contestants alike: glibc keeps freed memory. With its own limits it gives the top of the heap back and takes it
# again in every iteration of whichever contestant happens to lie there, 9 ms of page faults in 145 ms.
MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}


def run(options):
    """The whole demo; returns an exit code. Called again in each rank."""
    if "RANK" in os.environ:
        with ranks.joined("train"):
            _compare(options)
        return 0
    jobs.KINDS[options.network].load("test")  # missing data are told before anything starts
    return launch(options, ["-m", "gradweave", *sys.argv[1:]])


def launch(options, arguments):
    """Starts the Python program `arguments` once per rank, in hosts with shaped links where `options` and this machine
    allow it, and returns its exit code. `options`: links, workers, pin."""
    command = [sys.executable, *arguments]
    hosts.become_root_of_namespace(arguments)
    reason = "asked for" if options.links == "emulated" else hosts.unavailable_reason()
    if reason and options.links == "shaped":
        raise hosts.HostError(reason)
    cores = sorted(os.sched_getaffinity(0))
    cpus = [cores[rank % len(cores)] for rank in range(options.workers)] if options.pin else None
    if reason:
        print(f"links: emulated ({reason})", file=sys.stderr)
        environment = {"GLOO_SOCKET_IFNAME": "lo", slow_link.KIND: "emulated", **QUIET, **MEMORY}
        return hosts.run_ranks([[]] * options.workers, command, environment, cpus)
    print(f"links: shaped, between {options.workers} network namespaces", file=sys.stderr)
    with hosts.Hosts(options.workers) as made:
        return made.run(command, {slow_link.KIND: "shaped", **QUIET, **MEMORY}, cpus)


def _compare(options):
    torch.set_num_threads(1)
    recipe = training.recipe_of(options.network, options.optimizer, options.learning_rate, seed=options.seed)
    train_set, test_set = recipe.kind.load("train"), recipe.kind.load("test")

    def job():
        return recipe.make(train_set, ranks.rank(), ranks.world_size())

    chosen = [methods.parse(text) for text in options.schemes.split(",") if text]
    with progress.Progress(CALIBRATION * 2 + len(HAND_TUNED_MB) * 6, "measuring compute", ranks.is_first()) as bar:
        setting = measure_setting(options.network, options.coverage, job, bar)
        bar.label = "tuning DDP by hand"
        tuned_mb = tune_by_hand(job, setting, bar)
        contestants = [turns.alone(job()), turns.data_parallel(job(), "DDP (default)", setting.emulation),
                       turns.data_parallel(job(), f"DDP (tuned: {tuned_mb:.2g} MB)", setting.emulation,
                                           bucket_cap_mb=tuned_mb)]
        plans, predictions = {}, {}
        for method in chosen:
            cluster = slow_link.cluster_for(setting, method)
            plan = core.make_plan(setting.workload, cluster, method.scheme, method.plan_options)
            name = method.named_after(plan)
            plans[name] = plan
            predictions[name] = setting.simulate(plan, cluster)
            contestants.append(turns.planned(job(), name, setting.emulation, plan=plan, **method.wrap_options))
        iterations = options.iterations or _fitting(setting, predictions, options.rounds)
        bar.label, bar.total = "training in turns", bar.done + options.rounds * (iterations + WARM_UP) * len(contestants)
        turns.run_rounds(contestants, options.rounds, iterations, WARM_UP, bar.advance)
        bar.label = "measuring accuracy"
        for contestant in contestants[1:]:
            contestant.accuracy, contestant.test_loss = recipe.kind.evaluate(contestant.network, test_set, ranks.rank(),
                                                                             ranks.world_size())
        bar.label = "recording traces"
        traces = _traced(contestants[1], plans, job, setting)
        for contestant in contestants:
            if contestant.close:
                contestant.close()
    if ranks.is_first():
        results = report.results(setting, contestants, predictions, recipe, ranks.world_size())
        options.output.mkdir(parents=True, exist_ok=True)
        for name, trace in traces.items():
            (options.output / name).write_text(trace)
        (options.output / "demo.json").write_text(json.dumps(results, indent=1) + "\n")
        print(json.dumps(results, indent=1) if options.json else report.text(results, options.output))


def measure_setting(network, coverage, job, bar):
    """Compute alone, the links at the rate that follows from it, the layers: a slow_link.Setting. Collective."""
    reference = turns.alone(job())
    turns.run_segment(reference, CALIBRATION - 5, 5, bar.advance)
    compute_s = ranks.agreed(reference.segment_seconds[0])
    parameter_bytes = training.trained_bytes(reference.network)
    bar.label = "measuring the link"
    setting = slow_link.set_up(parameter_bytes, compute_s, coverage)
    bar.label = "measuring the layers"
    setting.workload, setting.rest_us = profiling.profile(job(), f"{network} network", CALIBRATION - 5, 5, bar.advance)
    setting.measure_in(job, reference)
    return setting


def _fitting(setting, predictions, rounds):
    """How many timed iterations a turn may have so that all turns take about TURNS_S. Collective."""
    slow = setting.compute_s * (1 + setting.coverage())  # DistributedDataParallel at worst, twice
    each = setting.compute_s + 2 * slow + sum(predicted["iteration_us"] / 1e6 for predicted in predictions.values())
    return max(6, min(20, int(ranks.agreed(TURNS_S / (rounds * each))) - WARM_UP))


def tune_by_hand(job, setting, bar, iterations=4, warm_up=2):
    """The bucket size in MB with which DistributedDataParallel is fastest here. Collective."""
    seconds, whole_mb = {}, setting.parameter_bytes / 2**20
    for megabytes in HAND_TUNED_MB if whole_mb > max(HAND_TUNED_MB) else [share * whole_mb for share in HAND_TUNED_SHARES]:
        trial = turns.data_parallel(job(), "trial", setting.emulation, bucket_cap_mb=megabytes)
        turns.run_segment(trial, iterations, warm_up, bar.advance)
        seconds[megabytes] = trial.segment_seconds[0]
        if trial.close:
            trial.close()
    distributed.barrier()
    return min(seconds, key=seconds.get)


def _traced(default, plans, job, setting):
    """{file name: trace of this rank for Perfetto} of a few iterations: DistributedDataParallel's by PyTorch's profiler,
    and Gradweave's schemes side by side. After the comparison, so that recording costs nothing there. Collective."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        training.train(default.job, 3)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        traces = {"trace-ddp.json": Path(file.name).read_text()}
    timelines = []
    for name, plan in plans.items():
        recorded = turns.recorded(job(), plan, 2 * len(plan["period"]) + 1, WARM_UP, setting.emulation)
        timelines.append({**recorded, "name": name})
    if timelines:
        traces["trace-gradweave.json"] = core.chrome_trace(timelines)
    return traces
