"""What scripts/on-accelerator does."""

import argparse
import functools
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import conftest  # noqa: F401  the paths of what is imported below

import torch
from torch import distributed

import accelerator_trials as trials
import device_loops
import ranks
from gradweave import __version__, core
from gradweave.lab import hosts

FEATURES = [name for name, loop in device_loops.FEATURES.items() if not loop.options and name != "plain"]
CODECS = [name for name, loop in device_loops.FEATURES.items() if loop.options]
FEW = ("ddp", "dear", "delayed_averaging")  # that update at the end, in the forward, and by averages
LINK = "lo"


@dataclass
class Machine:
    """Where ranks run. `device`: the type; `backend`: of init_process_group()."""

    device: str
    devices: int
    backend: str
    said: list  # of the backend

    @classmethod
    def found(cls, device, backend, size):
        """`backend`: that of the device's tensors, or None for the device's own. Errors: SystemExit."""
        if device == "cpu":
            return cls("cpu", 1, "gloo", ["which tries this program, not an accelerator"])
        if device == "sim":
            return cls("sim", 1, "cpu:gloo,sim:sim", ["simulated on the processor: bits and order count, times do not"])
        if not torch.accelerator.is_available():
            sys.exit("on-accelerator: torch sees no accelerator here; --device sim tries the simulated one")
        found, devices = torch.accelerator.current_accelerator().type, torch.accelerator.device_count()
        if device not in (None, found):
            sys.exit(f"on-accelerator: --device {device}: torch's accelerator here is {found}")
        backend = backend or distributed.get_default_backend_for_device(found)
        said = []
        if backend == "nccl":
            said.append(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
            if devices < size:
                said.append("ranks share devices, as if on hosts of their own")
        return cls(found, devices, f"cpu:gloo,{found}:{backend}", said)

    def environment(self, size, rank):
        environment = {"JOB_BACKEND": self.backend, "DEVICES": str(self.devices), "NCCL_SOCKET_IFNAME": LINK}
        if self.devices < size:  # NCCL refuses two ranks on one device, unless it takes them for ranks of several hosts
            environment["NCCL_HOSTID"] = f"rank {rank}"
        return environment

    def lines(self):
        named = torch.cuda.get_device_name() if self.device == "cuda" else self.device
        return [f"- {named}, {self.devices} of them; backend `{self.backend}`" + "".join(f"; {each}" for each in self.said),
                f"- torch {torch.__version__}, CUDA {torch.version.cuda or '-'}, gradweave {__version__}",
                f"- {platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} processors"]


def table(columns, rows):
    return ["", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns),
            *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows), ""]


def parity(run, schemes, size):
    """The lines of the report, and whether all is as it should be."""
    found = run(trials.parity, schemes=schemes)
    rows, well = [], True
    for scheme in schemes:
        outcome = trials.together([rank[scheme] for rank in found])
        well &= outcome.well
        rows.append((f"`{scheme}`", outcome.said))
    heading = "## Every scheme beside DistributedDataParallel"
    note = ("Six iterations of a small network with SGD. Exact schemes: by how much parameters differ from "
            f"DistributedDataParallel's{'' if size == 2 else ', whose sums may have another order'}. The others: from the "
            "same training on the processor, whose kernels have other bits.")
    return [heading, "", note, *table(("scheme", "outcome"), rows)], well


def features(run, schemes, names, heading):
    found = run(trials.features, features=names, schemes=schemes)
    rows, well = [], True
    for feature in names:
        outcomes = {scheme: trials.together([rank[feature, scheme] for rank in found]) for scheme in schemes}
        bad = [f"`{scheme}`: {outcome.said}" for scheme, outcome in outcomes.items() if not outcome.well]
        refused = [f"`{scheme}`" for scheme, outcome in outcomes.items() if outcome.refused]
        well &= not bad
        said = "; ".join(bad) or f"{len(schemes) - len(refused)} of {len(schemes)} schemes as on the processor"
        rows.append((feature, said, ", ".join(refused) or "-"))
    return [heading, "", "Six iterations with SGD, compared with the processor's.",
            *table(("feature", "outcome", "refused"), rows)], well


def sharded(run, schemes):
    found = run(trials.sharded, schemes=schemes)
    rows, well = [], True
    for scheme in schemes:
        outcomes = [trials.together([rank[scheme] for rank in same]) for same in (found[0::2], found[1::2])]
        well &= all(outcome.well for outcome in outcomes)
        rows.append((f"`{scheme}`", next((outcome for outcome in outcomes if not outcome.well), outcomes[0]).said))
    note = ("A model that FSDP2 shards inside two islands of two ranks: islands have to be equal, shard by shard, and under "
            "exact schemes equal to FSDP2 with gradients averaged between islands.")
    return ["## Sharded models", "", note, *table(("scheme", "outcome"), rows)], well


def lost_peers(start, schemes):
    rows, well = [], True
    for scheme in schemes:
        for fault in (signal.SIGKILL, signal.SIGSTOP):
            outcome = trials.lost(start, scheme, fault)
            well &= outcome.well
            rows.append((f"`{scheme}`", fault.name, outcome.said))
    note = f"Rank 1 of two is killed or stopped; an op may take {trials.LOST_S:g} s. Rank 0 has to raise and to name it."
    return ["## Lost peers", "", note, *table(("scheme", "fault", "rank 0"), rows)], well


def timelines(run, schemes, folder):
    written = run(trials.timelines, schemes=schemes, folder=str(folder))[0]
    return ["## Timelines", "", "Three iterations on rank 0 by torch's profiler; open them in https://ui.perfetto.dev.", "",
            *(f"- [{Path(path).name}]({Path(path).name})" for path in written), ""]


def times(run, methods, rounds):
    """Beside DistributedDataParallel over a link that takes twice as long as compute."""
    alone_s, sent_bytes, samples = run(trials.compute_alone)[0]
    bits_per_second = 8 * sent_bytes / (2 * alone_s)
    hosts.shape_interface(LINK, bits_per_second)
    try:
        found = run(trials.times, names=methods, samples=samples, rounds=rounds, timeout=3000)[0]
    finally:
        hosts.shape_interface(LINK, None)
    rows = [(name, f"{1e3 * row.seconds:.1f} ms", "{:.2f} [{:.2f} - {:.2f}]".format(*row.ratio), f"{row.loss:.3f}")
            for name, row in found.items()]
    return ["## Times over a shaped link", "",
            f"Compute alone takes {1e3 * alone_s:.1f} ms an iteration; all ranks share a link of {bits_per_second / 1e6:.0f} "
            "Mb/s, so that communication takes twice as long (coverage rate 2). Interleaved; x: how many times as fast as "
            "DistributedDataParallel, median of the rounds [smallest - largest]; the loss is that of data that were not "
            "trained on, after the same number of iterations.", *table(("method", "iteration", "x", "loss"), rows)]


def in_own_network(arguments):
    """Go on in a network namespace of this program's own, where the loopback may be shaped. Returns why not, or None there."""
    if os.environ.get("GRADWEAVE_OWN_NETWORK") == "1":
        # Packets of the loopback's usual size would be larger than what a shaped link lets pass at once.
        subprocess.run(["ip", "link", "set", LINK, "up", "mtu", "1500"], check=True)
        return None
    if reason := hosts.unavailable_reason():
        return reason
    program = [sys.executable, __file__, *arguments]
    hosts.become_root_of_namespace(program[1:])
    os.execvpe("unshare", ["unshare", "--net", "--", *program], os.environ | {"GRADWEAVE_OWN_NETWORK": "1"})


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/on-accelerator", description=__doc__)
    parser.add_argument("--device", help="the accelerator's type (default: torch's own), or sim")
    parser.add_argument("--backend", help="what communicates the accelerator's tensors (default: its own, as nccl)")
    parser.add_argument("--ranks", type=int, help="how many processes (default: one for each device, at least 2)")
    parser.add_argument("--schemes", nargs="+", metavar="SCHEME", help="these only (default: all)")
    parser.add_argument("--rounds", type=int, default=3, help="of the times (default: 3); 0: no times")
    parser.add_argument("-o", "--output", default="out/on-accelerator", metavar="FOLDER",
                        help="where report.md and the timelines go (default: out/on-accelerator)")
    given = parser.parse_args(arguments)
    known = [row["name"] for row in core.schemes() if row["name"] != "auto"]
    schemes = given.schemes or known
    if unknown := set(schemes) - set(known):
        parser.error(f"--schemes: there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    no_times = None if given.rounds else "not asked for"
    if given.device == "sim":
        no_times = "the simulated accelerator computes when the processor does"
    if not no_times:
        no_times = in_own_network(sys.argv[1:])
    size = given.ranks or max(2, torch.accelerator.device_count() if torch.accelerator.is_available() else 2)
    machine = Machine.found(given.device, given.backend, size)

    def of_ranks(count, how=ranks.run):
        return functools.partial(how, world_size=count, environment=functools.partial(machine.environment, count))

    run = of_ranks(size)
    folder = Path(given.output).absolute()
    folder.mkdir(parents=True, exist_ok=True)

    lines = [f"# Gradweave on {machine.device}", "", *machine.lines(), f"- {size} ranks", ""]
    well = True

    def add(part, *parameters, by=run):
        nonlocal well
        begin = time.monotonic()
        try:
            result = part(by, *parameters)
        except AssertionError as failure:  # a rank's; the other parts may work
            result = [f"**Failed**, {part.__name__}:", "", "```", str(failure), "```", ""], False
        added, is_well = result if isinstance(result, tuple) else (result, True)
        well &= is_well
        lines.extend(added)
        (folder / "report.md").write_text("\n".join(lines))
        print("\n".join(added), f"({time.monotonic() - begin:.0f} s)\n", flush=True)

    print("\n".join(lines), flush=True)
    add(parity, schemes, size)
    add(features, schemes, FEATURES, "## What loops do")
    few = [scheme for scheme in FEW if scheme in schemes] or schemes[:1]
    add(features, few, CODECS, "## Compressed gradients")
    add(sharded, schemes, by=of_ranks(4))
    add(lost_peers, few, by=of_ranks(2, ranks.start))
    add(timelines, few, folder)
    if no_times:
        add(lambda run: ["## Times over a shaped link", "", f"None: {no_times}.", ""])
    else:
        add(times, schemes if given.schemes else [*schemes, *trials.COMPRESSED], given.rounds)
    add(lambda run: ["All as it should be." if well else "**Not all is as it should be.**", ""])
    print(f"report: {folder / 'report.md'}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
