"""`python -m gradweave probe|profile|train|doctor`: the commands that need torch."""

import argparse
import dataclasses
import importlib.util
import json
import operator
import os
import sys
from pathlib import Path

from gradweave import releases
from gradweave.usage import UsageError

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main(arguments):
    """Run one command; returns its exit code: 0 success, 1 a failed check or run, 2 bad usage or input."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return EXIT_USAGE
    if importlib.util.find_spec("torch") is None:
        print(f"python -m gradweave {options.command}: PyTorch is not installed here: pip install '{releases.RANGE}'. "
              "Planning and simulation work without it by the command 'gradweave'", file=sys.stderr)
        return EXIT_USAGE
    # torch is imported here and by the commands, so that --help and usage errors are quick.
    refusals: tuple[type[Exception], ...] = (UsageError,)
    try:
        if options.command != "doctor":  # which looks for itself
            from gradweave import _native
            refusals += (_native.InvalidInput,)
    except ImportError as error:
        if error.name != "gradweave._native":
            raise
        print(error, file=sys.stderr)  # names gradweave and the remedy
        return EXIT_USAGE
    try:
        return options.run(options)
    except refusals as error:
        print(f"python -m gradweave {options.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return 130


def _parser():
    parser = argparse.ArgumentParser(prog="python -m gradweave", description=__doc__.strip(),
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="Planning and simulation without torch: the command 'gradweave'.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_doctor(commands)
    _add_probe(commands)
    _add_profile(commands)
    _add_train(commands)
    return parser


def _add(commands, name, run, summary, example):
    command = commands.add_parser(name, help=summary, description=summary, epilog=f"example:\n  {example}",
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=run)
    return command


def _add_doctor(commands):
    _add(commands, "doctor", _doctor, "check an installation", "python -m gradweave doctor")


def _doctor(options):
    from gradweave import doctor
    findings = doctor.examine()
    if options.json:
        print(json.dumps({"findings": [dataclasses.asdict(finding) for finding in findings]}, indent=2))
    else:
        for finding in findings:
            print(f"{finding.state:8} {finding.name:11} {finding.what}")
            if finding.remedy:
                print(f"{'':20} -> {finding.remedy}")
    return EXIT_FAILED if any(finding.state == doctor.FAILED for finding in findings) else EXIT_OK


def _add_probe(commands):
    command = _add(commands, "probe", _probe, "measure the links between the ranks and write a cluster file",
                   "torchrun --nproc-per-node 1 --nnodes 2 ... -m gradweave probe -o cluster.json")
    command.add_argument("-o", "--output", type=Path, help="the cluster file (default: standard output)")
    command.add_argument("--interfaces",
                         help="one link for each, e.g. eth0,eth1 (default: GLOO_SOCKET_IFNAME, else Gloo's choice)")
    command.add_argument("--seconds", type=_positive, default=4.0, help="how long to measure each link (default: 4)")


def _probe(options):
    from gradweave import probe, ranks
    _check_writable(options.output)
    for name in _names(options.interfaces):
        if reason := ranks.reason_against(name):
            raise UsageError(f"--interfaces: {reason}")
    with ranks.joined("probe"):
        cluster, lines = probe.probe(_names(options.interfaces), options.seconds)
        if ranks.is_first():
            for line in lines:
                print(line, file=sys.stderr)
            _write(cluster.to_dict(), options.output)
    return EXIT_OK


def _add_profile(commands):
    command = _add(commands, "profile", _profile, "profile a model's layers and write a workload file",
                   "python -m gradweave profile demo -o workload.json")
    command.add_argument("job",
                         help="demo, wide, small, gpt, resnet18, vit, lora, or MODULE:FUNCTION that returns "
                         "(model, optimizer, loss, batches)")
    command.add_argument("-o", "--output", type=Path, help="the workload file (default: standard output)")
    command.add_argument("--iterations", type=int, default=20, help="iterations that are timed (default: 20)")
    command.add_argument("--batch-size", type=int, help="for the example jobs (default: the job's own, 64, 32 or 16)")
    command.add_argument("--accumulate", type=int, default=1, metavar="PASSES",
                         help="forward and backward passes of an iteration, whose gradients accumulate (default: 1)")


def _profile(options):
    import torch

    from gradweave import profiling, ranks
    if options.iterations < 1 or options.accumulate < 1 or (options.batch_size is not None and options.batch_size < 1):
        raise UsageError("--iterations, --batch-size and --accumulate must be at least 1")
    _check_writable(options.output)
    if "RANK" not in os.environ and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    job = _job(options.job, options.batch_size)
    with ranks.joined_if_launched():
        workload, rest_us = profiling.profile(job, options.job, options.iterations, passes=options.accumulate)
        if ranks.is_first():
            compute = sum(layer["forward_us"] + layer["backward_us"] for layer in workload["layers"])
            print(f"{len(workload['layers'])} layers, forward and backward {compute / 1e3:.1f} ms, "
                  f"rest of an iteration {rest_us / 1e3:.1f} ms, {torch.get_num_threads()} thread(s)", file=sys.stderr)
            _write(workload.to_dict(), options.output)
    return EXIT_OK


def _job(name, batch_size):
    from gradweave.job import Job, repeated
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        jobs, training = _laboratory("jobs", "training")
        kind = jobs.KINDS.get("wide" if name == "demo" else name)
        if kind:
            return training.recipe_of(kind.name, batch_size=batch_size).make(kind.load("train"))
        raise UsageError(f"job '{name}': choose demo, {', '.join(jobs.KINDS)}, or MODULE:FUNCTION")
    sys.path.insert(0, os.getcwd())
    try:
        make = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, TypeError) as error:
        raise UsageError(f"job '{name}': {error}") from None
    made = make()
    if not isinstance(made, tuple) or len(made) != 4:
        raise UsageError(f"job '{name}': {function}() must return (model, optimizer, loss, batches), "
                         f"not {type(made).__name__}")
    model, optimizer, loss, batches = made
    if operator.length_hint(batches, 1) == 0:
        raise UsageError(f"job '{name}': {function}() returned no batches")
    return Job(model, optimizer, loss, repeated(batches))


def _laboratory(*names):
    """Modules of the demo and its jobs. Errors: UsageError in a wheel."""
    try:
        return [importlib.import_module(f"gradweave.lab.{name}") for name in names]
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("gradweave.lab"):
            raise
        raise UsageError("the demo and its jobs are not in the installed package, but in a clone of the repository: there run "
                         "`make demo`, or this command") from None


def _add_train(commands):
    command = _add(commands, "train", _train, "train an example job over a slow link between local workers",
                   "python -m gradweave train demo")
    command.add_argument("job", choices=["demo"], help="demo: DistributedDataParallel against Gradweave, in turns")
    command.add_argument("--workers", type=int, default=2, help="(default: 2)")
    command.add_argument("--links", choices=["auto", "shaped", "emulated"], default="auto",
                         help="shaped: network namespaces with token buckets; emulated: ops take the time of a cost model; "
                              "auto: shaped where this user may make namespaces (default)")
    command.add_argument("--coverage", type=_positive, default=2.0,
                         help="communication time over compute time; the links' rate follows from it (default: 2)")
    command.add_argument("--schemes", default="wfbp,ddp,auto,deft,delayed_averaging,delayed_averaging compressor=int4",
                         help="comma-separated, each with its options: 'ddp,delayed_averaging compressor=int4' "
                         "(default: %(default)s)")
    command.add_argument("--rounds", type=int, default=4, help="turns of each method (default: 4)")
    command.add_argument("--iterations", type=int, help="timed iterations in a turn (default: as many as keep the whole "
                         "below five minutes, 6 to 20)")
    command.add_argument("--network", choices=["wide", "small", "gpt", "resnet18", "vit", "lora"], default="wide",
                         help="convolutional networks of 13.2 MB and 0.4 MB, a GPT on PyTorch's sources, ResNet-18 with "
                              "batch norm, a vision transformer, low-rank adapters of that GPT (default: wide)")
    command.add_argument("--optimizer", choices=["sgd", "adamw", "muon"], default="sgd",
                         help="muon: for the matrices between layers, and AdamW for the rest (default: sgd)")
    command.add_argument("--learning-rate", type=_positive,
                         help="(default: the job's own, such as 0.05 for sgd, 0.001 for adamw, 0.02 for muon)")
    command.add_argument("--seed", type=int, default=0, help="of parameters and batches (default: 0)")
    command.add_argument("--pin", action="store_true", help="pin each worker to a processor of its own")
    command.add_argument("--output", type=Path, default=Path("out"), help="folder for results and traces (default: out)")


def _train(options):
    from gradweave import core
    demo, methods = _laboratory("demo", "methods")
    if options.workers < 2:
        raise UsageError("--workers: at least 2, since one worker has nothing to communicate")
    if options.rounds < 1 or (options.iterations is not None and options.iterations < 1):
        raise UsageError("--rounds and --iterations must be at least 1")
    if options.output.exists() and not options.output.is_dir():
        raise UsageError(f"--output: {options.output} is no folder; give one, or a new one's name")
    for text in filter(None, options.schemes.split(",")):
        try:
            method = methods.parse(text)
            core.check_options(method.scheme, method.plan_options)
        except ValueError as error:
            raise UsageError(f"--schemes: {error}") from None
    return demo.run(options)


def _positive(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return value


def _names(text):
    return [name for name in (text or "").split(",") if name]


def _check_writable(path):
    # Before minutes of measuring, not after.
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write {path}: {'no such folder' if not path.parent.is_dir() else 'no permission'}")


def _write(content, path):
    text = json.dumps(content, indent=1)
    if path is None:
        print(text)
        return
    try:
        path.write_text(text + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
