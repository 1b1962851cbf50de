"""What the ranks of on_accelerator.py do."""

import functools
import hashlib
import itertools
import os
import re
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import torch
from torch import distributed, nn

import gradweave
import jobs
import peers
from gradweave import core
from gradweave.lab import methods, training, turns
import sharded_models
from models import cluster, links_cost, make_optimizer, workload
from device_loops import FEATURES, STEPS, Loop

CLOSE = 1e-2  # kernels of an accelerator and of the processor, after six iterations
# The simulated accelerator takes no time, so that nothing tells these how often to average.
WITH_PERIOD = {"local_sgd", "partial_sgd", "dreamddp", "delayed_averaging"}
LOST_S, BUSY_S = 3.0, 5  # the timeout of an op; how far ranks of a busy machine may lie behind
WARM_UP, PROFILE, SETTLED = 2, 5, 12  # iterations
TURN, BEFORE_TURN = 6, 2
LONG_S, MOST_SAMPLES = 0.05, 1 << 16
# Timed beside the schemes as they come: what docs/choosing.md names for slow links, and DistributedDataParallel's remedies.
COMPRESSED = ("ddp compressor=int8", "delayed_averaging compressor=int4",
              "dreamddp period=1 forward_overlap=only compressor=int4")
HOOKS = [peer for peer in peers.PEERS if "hook" in peer.name]


@dataclass
class Outcome:
    well: bool
    said: str
    refused: bool = False
    digest: str = ""  # of the parameters, which all ranks have alike


def device():
    """The device of this rank."""
    kind = os.environ["JOB_BACKEND"].rpartition(",")[2].partition(":")[0]
    if kind == "gloo":
        return torch.device("cpu")
    if kind == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    if (devices := int(os.environ.get("DEVICES", 1))) > 1:
        torch.accelerator.set_device_index(distributed.get_rank() % devices)
    return torch.device(kind)


def reports(of):
    """What the simulated accelerator has found wrong."""
    if of.type != "sim":
        return []
    from accelerator import native

    return native.take_reports()


def together(outcomes):
    """One outcome of all ranks'."""
    if len({outcome.digest for outcome in outcomes}) > 1:
        return Outcome(False, "ranks differ")
    return next((outcome for outcome in outcomes if not outcome.well), outcomes[0])


def compared(of, run, expected, limit):
    """The outcome of what run() trains, beside `expected`, {name: value}."""
    try:
        found = run()
    except gradweave.InvalidInput as refusal:
        return Outcome(True, f"refused: {refusal}", refused=True)
    said = reports(of)
    trained = {name: found[name] for name, _ in jobs.net_on("cpu").named_parameters()}
    difference = max((trained[name] - expected[name]).abs().max().item() for name in trained)
    digest = digest_of(trained.values())
    if said:
        return Outcome(False, said[0], digest=digest)
    return Outcome(difference <= limit, "equal bits" if difference == 0 else f"{difference:.1e}", digest=digest)


def parity(rank, schemes):
    """{scheme: Outcome}."""
    of = device()
    model = jobs.net_on(of, seed=rank)
    jobs.train(nn.parallel.DistributedDataParallel(model), make_optimizer("sgd", model), rank, STEPS, of)
    expected = jobs.values(model)
    exact = {row["name"] for row in core.schemes() if row["consistency"] == "exact"}
    found = {}
    for scheme in schemes:
        if scheme in exact:
            limit = 0 if distributed.get_world_size() == 2 else 1e-5
            found[scheme] = compared(of, Loop(rank, of, scheme, "sgd").run, expected, limit)
        else:
            found[scheme] = beside_the_processor(rank, of, Loop, scheme)
    return found


def beside_the_processor(rank, of, loop, scheme):
    try:
        expected = loop(rank, "cpu", scheme, "sgd").run()
    except gradweave.InvalidInput as refusal:
        return Outcome(True, f"refused on the processor too: {refusal}", refused=True)
    return compared(of, loop(rank, of, scheme, "sgd").run, expected, CLOSE)


def digest_of(tensors):
    return hashlib.sha256(b"".join(tensor.contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def features(rank, features, schemes):
    """{(feature, scheme): Outcome}."""
    of = device()
    return {(feature, scheme): beside_the_processor(rank, of, FEATURES[feature], scheme)
            for feature in features for scheme in schemes}


def sharded(rank, schemes):
    """{scheme: Outcome} of two islands of two ranks, in which FSDP2 shards a model. Digests are of this rank's shards."""
    of = device()
    links_cost(halves=True)
    mesh = sharded_models.mesh_of(device=of.type)
    train = functools.partial(sharded_models.train, rank=rank, steps=sharded_models.STEPS)

    def make(seed):
        model = sharded_models.shard(sharded_models.make_stack(seed).to(of), mesh["inside"])
        return model, sharded_models.optimizer_of("sgd", model)

    def shards(model):
        return {name: shard.cpu() for name, shard in sharded_models.shards(model).items()}

    model, optimizer = make(0)
    train(model, optimizer, between=sharded_models.averaged(mesh["between"].get_group()))
    expected, found = shards(model), {}
    reports(of)  # of torch's own streams
    consistency = {row["name"]: row["consistency"] for row in core.schemes()}
    for scheme in schemes:
        options = {"period": "2"} if scheme in WITH_PERIOD else None
        model, optimizer = sharded_models.wrapped(*make(mesh["between"].get_local_rank()), scheme, options=options)
        train(model, optimizer)
        gradweave.finish(model)
        own, said = shards(model), reports(of)
        model.gradweave.close()
        differing = sharded_models.unlike(own, expected) if consistency[scheme] == "exact" else []
        wrong = said[:1] or [f"{name} has other bits than FSDP2's" for name in differing]
        found[scheme] = Outcome(not wrong, wrong[0] if wrong else "equal islands", digest=digest_of(own.values()))
    return found


def until_a_peer_is_lost(rank, scheme):
    """Trains until an error, while the host waits in a call that is not Gradweave's. Writes a file `ready{rank}`."""
    of = device()
    model = jobs.net_on(of, seed=rank)
    plan = core.make_plan(workload(), cluster(distributed.get_world_size()), scheme)
    model, optimizer = gradweave.wrap(model, make_optimizer("sgd", model), plan=plan, timeout=LOST_S, report=False)
    for step in itertools.count():
        jobs.train(model, optimizer, rank, 1, of, first=step)
        torch.accelerator.synchronize()
        if step == 5:
            Path(os.environ["JOB_FOLDER"], f"ready{rank}").touch()


def lost(start, scheme, fault):
    """What becomes of rank 0, when rank 1 gets the signal `fault`: Outcome. `start`: ranks.start() of two ranks."""
    job = start(until_a_peer_is_lost, scheme=scheme)
    try:
        for rank in range(2):
            job.wait_for_file(f"ready{rank}")
        job.processes[1].send_signal(fault)
        begin = time.monotonic()
        status = job.wait(0, 60)
        took = time.monotonic() - begin
        error = job.log(0).strip().rpartition("\n")[2]
        named = re.search(r"communication on link \S+ .*suspect: rank 1 \(no sign of life", error)
        well = status == 1 and bool(named) and took < LOST_S + 2 + BUSY_S
        return Outcome(well, f"ended after {took:.1f} s" + ("" if well else f", exit status {status}: {error}"))
    finally:
        job.end()


def timelines(rank, schemes, folder):
    """The files that were written."""
    of = device()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if of.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    written = []
    for scheme in schemes:
        loop = Loop(rank, of, scheme, "sgd")
        loop.wrap()
        for step in range(3):
            loop.step(step)
        with torch.profiler.profile(activities=activities) as profile:
            for step in range(3, 6):
                loop.step(step)
            gradweave.finish(loop.model)
        loop.model.gradweave.close()
        written.append(str(Path(folder) / f"timeline-{scheme}.json"))
        if rank == 0:
            profile.export_chrome_trace(written[-1])
    reports(of)
    return written


class Classifier:
    """A job of 34 MB (on the processor of 0.5) that tells clusters apart, in batches that take LONG_S to compute."""

    LAYERS, CLASSES = 8, 16

    def __init__(self, rank, of, samples=256):
        self.rank, self.of, self.samples = rank, of, samples
        self.width = 128 if of.type == "cpu" else 1024
        torch.manual_seed(1)
        self._centers = (6 / (2 * self.width)**0.5 * torch.randn(self.CLASSES, self.width)).to(of)

    def make(self):
        """The job from the beginning."""
        torch.manual_seed(0)
        layers = [each for _ in range(self.LAYERS) for each in (nn.Linear(self.width, self.width), nn.ReLU())]
        for layer in layers[::2]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        model = nn.Sequential(*layers, nn.Linear(self.width, self.CLASSES)).to(self.of)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        return training.Job(model, optimizer, nn.functional.cross_entropy, map(self.batch, itertools.count()))

    def batch(self, number):
        """The same of this number on the same rank for every method; no rank has another's."""
        generator = torch.Generator(self.of).manual_seed(1000003 * self.rank + number)
        y = torch.randint(self.CLASSES, (self.samples,), device=self.of, generator=generator)
        return torch.randn(self.samples, self.width, device=self.of, generator=generator) + self._centers[y], y

    def loss(self, model):
        """On data that were not trained on."""
        with torch.no_grad():
            return statistics.fmean(nn.functional.cross_entropy(model(x), y).item() for x, y in map(self.batch, range(-8, 0)))

    def calibrate(self):
        """Doubles the samples until an iteration takes LONG_S. Returns the seconds of one."""
        job = self.make()
        while True:
            training.train(job, 2)
            seconds = statistics.fmean(training.train(job, 3)[0])
            if seconds >= LONG_S or self.samples >= MOST_SAMPLES:
                return seconds
            self.samples *= 2


def compute_alone(rank):
    """(seconds of an iteration, bytes that all ranks together send in one, samples of a batch): the same on every rank."""
    classifier = Classifier(rank, device())
    seconds = classifier.calibrate()
    sent = 2 * (distributed.get_world_size() - 1) * sum(p.nbytes for p in classifier.make().model.parameters())
    seconds, samples = gradweave.ranks.largest([seconds, classifier.samples])
    return seconds, sent, int(samples)


@dataclass
class Row:
    seconds: float
    ratio: tuple  # of DistributedDataParallel's: median, smallest, largest
    loss: float


def times(rank, names, samples, rounds):
    """{method: Row} of DistributedDataParallel, its hooks and the methods of these names."""
    classifier = Classifier(rank, device(), samples)
    plain = turns.data_parallel(classifier.make(), "DistributedDataParallel")
    contestants = [plain]
    for hook in HOOKS:
        job = classifier.make()
        contestants.append(turns.Contestant(hook.name, job, job.model))
        hook.train(job, None)
    for method in map(methods.parse, names):
        try:
            contestants.append(turns.planned(classifier.make(), method.name, scheme=method.scheme, warm_up=WARM_UP,
                                             profile_iterations=PROFILE, report=False, options=method.plan_options,
                                             **method.wrap_options))
        except gradweave.InvalidInput:
            continue
    for contestant in contestants:
        training.train(contestant.job, SETTLED)
    turns.run_rounds(contestants, rounds, TURN, BEFORE_TURN)
    found = {each.name: Row(turns.iteration_seconds(each), turns.ratio(each, plain), classifier.loss(each.network))
             for each in contestants}
    for each in contestants:
        if each.close:
            each.close()
    return found
