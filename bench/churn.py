"""Islands that come and go, and islands of unequal speed: accuracy, goodput, time to an accuracy, what joining costs others.

Each run starts `gradweave meet` and islands of one process on this machine, which train the small network on Fashion-MNIST. A
step takes a time that is told: an island sleeps until it is over, so that islands that share processors have each the speed of
its own, and each is as slow as it is told to be. Results are lines of JSON, one for each run; runs whose line exists are
skipped.

    .venv/bin/python bench/churn.py               # all runs: 2.4 hours; --list says which are missing
    .venv/bin/python bench/churn.py --only 'churn/*adamw*'
    .venv/bin/python bench/churn.py --only 'joining/*'       # as root: hosts with slow links between them
    .venv/bin/python bench/churn.py --page        # docs/results/churn.md from what was measured

Runs of part `torchft` are left out where it is not: in an environment of its own, pip install torchft==0.2.0.
"""

import argparse
import contextlib
import fnmatch
import hashlib
import importlib.util
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import types
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import distributed, nn

import gradweave
import runs
from gradweave.lab import fashion_mnist, hosts, training
from gradweave.lab.meeting import Meeting
from training_tables import markdown, replace_section

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs/results/churn.jsonl"
PAGE = ROOT / "docs/results/churn.md"
LEASE = "10s"  # of `gradweave meet` as it comes
BATCH = 32
PATIENCE_S = 120.0

# Accuracy and goodput
ISLANDS, STEP_S = 4, 0.05
SAMPLES = 3000 * ISLANDS * BATCH  # that a training ends with, all islands together: 6.4 times the images
# An island is lost so often, and started again as much later. Where one is always away, as three train undisturbed.
CHURN = {"nobody": 0.0, "every 30 s": 30.0, "nobody, of three islands": 0.0, "every 30 s, rate by islands": 30.0}
BETWEEN = {"exact": {"average": "gradients"}}  # by part
# Other numbers of islands, of which one is lost every 30 s, and their step; two processors are too few for eight with STEP_S.
COUNTS = {"three islands": (3, STEP_S), "eight islands": (8, 0.1)}
SYNC_EVERY = 8                    # torchft's steps between averages: as many as islands' default
RESTARTS_S = 180.0                # how long the job that starts anew is watched
CHECKPOINTS = {"checkpoint every 2 s": 2.0, "checkpoint every 10 s": 10.0}

# Unequal islands
SPEEDS = (1, 2, 4)  # how long a step takes on each
UNIT_S = 0.04
UNEQUAL = {"as they are": 2800, "wait at each average": 1800, "wait at each step": 1800}  # steps of the fastest
SNAPSHOT = {"as they are": 80, "wait at each average": 40, "wait at each step": 40}       # so many steps of it apart
TARGETS = (86.0, 87.0, 88.0)

# Joining
LINK_BITS_PER_S, JOINS, BEFORE_S = 200e6, 5, 5.0
WIDE_STEP_S = 0.2

# Exact gradients beside DistributedDataParallel
PACES = {"200 Mb/s": 200e6, "1 Gb/s": 1e9}
PACED = ("compute alone", "DistributedDataParallel", "islands, exact gradients")
TURNS, PACED_STEPS, PACED_BATCH = 3, 12, 256


@dataclass(frozen=True)
class Run:
    """Its fields identify it in the results."""

    part: str
    how: str
    optimizer: str
    seed: int = 0

    @property
    def name(self):
        return f"{self.part}/{self.how}/{self.optimizer}/seed {self.seed}"


def all_runs(seeds=3):
    found = [Run(part, how, optimizer, seed) for part in ("churn", "exact") for how in ("nobody", "every 30 s")
             for seed in range(seeds) for optimizer in ("sgd", "adamw")]
    found += [Run("unequal", how, optimizer, seed) for optimizer in ("adamw", "sgd") for seed in range(seeds)
              for how in UNEQUAL]
    found += [Run("restarting", how, "sgd") for how in CHECKPOINTS]
    found += [Run("joining", "200 Mb/s", optimizer) for optimizer in ("sgd", "adamw")]
    found += [Run("counts", how, "sgd") for how in COUNTS]
    found += [Run("pace", how, "sgd") for how in PACES]
    found += [Run("torchft", how, "sgd") for how in ("nobody", "every 30 s")]
    return found + [Run("churn", how, "sgd", seed) for how in ("nobody, of three islands", "every 30 s, rate by islands")
                    for seed in range(seeds)]


# ---- in a process of an island

DONE, LANDED, LOST, STEPS, JOINED = range(5)  # of the numbers that the driver reads, also of a process that was killed


def shared_numbers(path):
    return torch.from_file(str(path), shared=True, size=8, dtype=torch.int64)


def random_batches(given):
    """Endless; others in each life of each island."""
    images, labels = fashion_mnist.load("train")
    generator = torch.Generator().manual_seed(100_000 * given["seed"] + 1000 * given["number"] + given["life"])
    while True:
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        yield fashion_mnist.normalised(images[chosen]), labels[chosen].long()


def wait_for(begin, seconds):
    time.sleep(max(0.0, begin + seconds - time.perf_counter()))


def hash_of(model):
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def loop(given, job, model, ends, count):
    """Trains while not ends(steps done); count(them) after each. Returns snapshots of the job's model."""
    snapshots, done, batches = [], 0, random_batches(given)
    while not ends(done):
        begin = time.perf_counter()
        x, y = next(batches)
        job.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        job.step()
        done += 1
        count(done)
        if given["snapshot"] and done % given["snapshot"] == 0:
            snapshots.append((done, {name: value.clone() for name, value in job.model.state_dict().items()}))
        wait_for(begin, given["step_s"])
    return snapshots


def make_job(given):
    recipe = training.recipe_of("small", given["optimizer"], batch_size=BATCH, seed=given["seed"])
    return recipe.make(fashion_mnist.load("train"))


def island(given):
    numbers, job = shared_numbers(given["numbers"]), make_job(given)
    job.model, job.optimizer = gradweave.wrap(job.model, job.optimizer, islands=given["islands"], key=given["key"],
                                              island=f"island{given['number']}", between=given["between"], report=False)
    islands, end = job.model.gradweave.islands, Path(given["folder"]) / "end"
    if given["scales"]:  # a newcomer takes the rate with the optimizer's state
        rate = training.recipe_of("small", given["optimizer"]).learning_rate
        islands.on_change(lambda names: [group.update(lr=rate * len(names) / ISLANDS) for group in job.optimizer.param_groups])
    train = islands._train

    def train_anew(command):
        """It was left out though it lives, and takes the state again."""
        numbers[LOST] += int(max(islands._samples))
        train(command)

    def count(done):
        numbers[DONE], numbers[STEPS] = done, islands.steps
        numbers[LANDED] = done - int(max(islands._samples)) - numbers[LOST]

    islands._train = train_anew
    numbers[JOINED] = 1
    snapshots = loop(given, job, job.model, lambda _: end.exists(), count)
    numbers[STEPS] = islands.steps
    gradweave.finish(job.model)
    result = {"hash": hash_of(job.model), "with": islands.finished_with, "averages": islands.averages,
              "bytes_sent": islands.bytes_sent}
    job.model.gradweave.close()
    torch.save((result, dict(job.model.state_dict()), snapshots), given["result"])


def torchft_replica(given):
    """torchft's LocalSGD with its defaults, and a synchronous quorum, as it asks for."""
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import LocalSGD

    numbers, job, end = shared_numbers(given["numbers"]), make_job(given), Path(given["folder"]) / "end"
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    healed, state, before = [False], {}, [0]

    def load(taken):
        healed[0] = True
        job.model.load_state_dict(taken["model"])
        job.optimizer.load_state_dict(taken["optimizer"])

    manager = Manager(pg=ProcessGroupGloo(), load_state_dict=load, min_replica_size=1, use_async_quorum=False,
                      state_dict=lambda: {"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()},
                      store_addr="127.0.0.1", store_port=store.port, rank=0, world_size=1, hostname="127.0.0.1",
                      lighthouse_addr=given["lighthouse"], replica_id=f"island{given['number']}")

    def count(done):
        numbers[DONE] = done
        if manager.current_step() == before[0]:
            return
        before[0] = manager.current_step()
        if healed[0]:  # what it has trained is gone
            numbers[LOST] = done - numbers[LANDED]
        healed[0], numbers[JOINED] = False, 1
        numbers[LANDED], numbers[STEPS] = done - numbers[LOST], SYNC_EVERY * before[0]
        state.update({name: value.clone() for name, value in job.model.state_dict().items()})

    with LocalSGD(manager, job.model, job.optimizer, sync_every=SYNC_EVERY):
        loop(given, job, job.model, lambda _: end.exists(), count)
    torch.save(({}, state, []), given["result"])
    os._exit(0)  # the others go on without it


def rank(given):
    """Of a job with DistributedDataParallel, which begins at its checkpoint if there is one."""
    numbers, job, saved = shared_numbers(given["numbers"]), make_job(given), Path(given["folder"]) / "checkpoint"
    distributed.init_process_group("gloo")
    if saved.exists():
        state = torch.load(saved)
        job.model.load_state_dict(state["model"])
        job.optimizer.load_state_dict(state["optimizer"])
    model, last = nn.parallel.DistributedDataParallel(job.model), time.monotonic()

    def count(done):
        nonlocal last
        numbers[DONE] = done
        if given["number"] == 0 and given["checkpoint_s"] and time.monotonic() - last > given["checkpoint_s"]:
            torch.save({"model": job.model.state_dict(), "optimizer": job.optimizer.state_dict()}, f"{saved}.new")
            os.replace(f"{saved}.new", saved)
            numbers[LANDED], last = done, time.monotonic()

    numbers[JOINED] = 1
    snapshots = loop(given, job, model, lambda done: done == given["steps"], count)
    torch.save(({}, dict(job.model.state_dict()), snapshots), given["result"])


def wide_model():
    """Of 21 MB."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(5) for layer in (nn.Linear(1024, 1024), nn.Tanh())))


def paced(given):
    """One of two workers that train the wide model, as PACED says. Writes the seconds of each step."""
    model, how, seconds = wide_model(), given["how"], []
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    if how == PACED[1]:
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    elif how == PACED[2]:
        model, optimizer = gradweave.wrap(model, optimizer, islands=given["islands"], key=given["key"], report=False,
                                          island=f"island{given['number']}", between=BETWEEN["exact"])
        while len(model.gradweave.islands.names) < 2:
            model(torch.randn(1, 1024)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    x = torch.randn(PACED_BATCH, 1024)
    for _ in range(PACED_STEPS):
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    torch.save(seconds, given["result"])
    if how == PACED[2]:
        gradweave.finish(model)
        model.gradweave.close()


def newcomer(given):
    """An island with the wide model: joins once told, and trains until it is killed. It tells of each step."""
    model = wide_model()
    parameters = model.parameters()
    optimizer = torch.optim.AdamW(parameters) if given["optimizer"] == "adamw" else torch.optim.SGD(parameters, 0.01, 0.9)
    ready, go = Path(f"{given['numbers']}.ready"), Path(f"{given['numbers']}.go")
    ready.touch()
    while not go.exists():
        time.sleep(0.01)
    with open(given["result"], "a") as told:
        print(json.dumps({"joins": time.time()}), file=told, flush=True)
        model, optimizer = gradweave.wrap(model, optimizer, islands=given["islands"], key=given["key"],
                                          island=f"island{given['number']}", report=False)
        print(json.dumps({"joined": time.time()}), file=told, flush=True)
        islands, spent = model.gradweave.islands, [0.0, 0.0]
        step_ended = islands.step_ended

        def timed():
            begin, processor = time.perf_counter(), time.thread_time()
            step_ended()
            spent[:] = time.perf_counter() - begin, time.thread_time() - processor

        islands.step_ended = timed
        x = torch.randn(1, 1024)
        while True:
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            time.sleep(given["step_s"])
            print(json.dumps({"time": time.time(), "step": time.perf_counter() - begin, "islands": spent[0],
                              "processor": spent[1], "names": len(islands.names)}), file=told, flush=True)


# ---- the driver

class Process:
    """One life of an island, or a rank."""

    def __init__(self, what, folder, prefix=(), environment=None, **given):
        self.number, self.life = given["number"], given["life"]
        stem = Path(folder) / f"{self.number}-{self.life}"
        self.numbers_at, self.result_at, self.log_at = f"{stem}.numbers", f"{stem}.result", f"{stem}.log"
        self.numbers = shared_numbers(self.numbers_at)
        given |= {"numbers": self.numbers_at, "result": self.result_at, "folder": str(folder)}
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | (environment or {})
        with open(self.log_at, "w") as log:
            self.process = subprocess.Popen([*prefix, sys.executable, __file__, "--process", what, json.dumps(given)],
                                            env=environment, stdout=log, stderr=subprocess.STDOUT)

    @property
    def joined(self):
        return bool(self.numbers[JOINED])

    @property
    def landed(self):
        """Samples of a life that is over, in what the others have."""
        return BATCH * int(self.numbers[LANDED])

    @property
    def trained(self):
        """Samples of a life that goes on."""
        return BATCH * int(self.numbers[DONE] - self.numbers[LOST])

    def kill(self):
        self.process.kill()
        self.process.wait()

    def result(self):
        if code := self.process.wait(PATIENCE_S):
            raise RuntimeError(f"island {self.number} has ended with {code}:\n{Path(self.log_at).read_text()}")
        return torch.load(self.result_at)


@contextlib.contextmanager
def lighthouse():
    """torchft's meeting point."""
    from torchft.coordination import LighthouseServer

    # As its README starts it. In a tenth of a second, Python's default, replicas that ask 10 ms apart leave each other out.
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, quorum_tick_ms=100, join_timeout_ms=10_000)
    try:
        yield types.SimpleNamespace(given={"lighthouse": server.address()})
    finally:
        server.shutdown()


class Islands:
    """All lives of all islands of a run."""

    def __init__(self, count, folder, given, what="island"):
        self._folder, self._given, self._what = folder, given, what
        self.lives = [[] for _ in range(count)]
        self.gone = [False] * count

    def start(self, number, **more):
        lives = self.lives[number]
        lives.append(Process(self._what, self._folder, number=number, life=len(lives), **self._given | more))
        self.gone[number] = False

    def kill(self, number):
        self.lives[number][-1].kill()
        self.gone[number] = True

    def there(self):
        """The numbers of those that train."""
        return [number for number, lives in enumerate(self.lives) if not self.gone[number] and lives[-1].joined]

    def until_all_are_there(self):
        deadline = time.monotonic() + PATIENCE_S
        while len(self.there()) < len(self.lives):
            self.check(time.monotonic() < deadline, "the islands have not met")

    def check(self, well=True, otherwise=""):
        for number, lives in enumerate(self.lives):
            if not self.gone[number] and lives and lives[-1].process.poll() is not None:
                well, otherwise = False, f"island {number} has ended: {Path(lives[-1].log_at).read_text()}"
        if not well:
            raise RuntimeError(otherwise)
        time.sleep(0.02)

    def samples(self):
        """Trained, of all islands together, without what was lost."""
        return sum(lives[-1].trained for number, lives in enumerate(self.lives) if not self.gone[number]) + sum(
            life.landed for number, lives in enumerate(self.lives) for life in (lives if self.gone[number] else lives[:-1]))

    def lost(self):
        """Samples of islands that were killed, in no average; of an average under way it may be too many."""
        dead = [life for number, lives in enumerate(self.lives) for life in (lives if self.gone[number] else lives[:-1])]
        return (BATCH * sum(int(life.numbers[DONE]) for life in dead) - sum(life.landed for life in dead)
                + BATCH * sum(int(lives[-1].numbers[LOST]) for lives in self.lives))

    def end(self):
        """All that are there finish. Returns ({number: its result}, the model of one, its snapshots)."""
        there = self.there()
        for number in range(len(self.lives)):
            if number not in there and not self.gone[number]:
                self.kill(number)  # in the middle of joining
        Path(self._folder, "end").touch()
        found = {number: self.lives[number][-1].result() for number in there}
        return {number: each[0] for number, each in found.items()}, *found[there[0]][1:]

    def close(self):
        for number, lives in enumerate(self.lives):
            if lives and not self.gone[number]:
                self.kill(number)


def evaluate(state, test):
    network = fashion_mnist.small_network()
    network.load_state_dict(state)
    with torch.no_grad():
        return fashion_mnist.evaluate(network, test)


def churn(run, folder, test):
    every, chance = CHURN.get(run.how, CHURN["every 30 s"]), random.Random(run.seed)
    count, step_s = COUNTS.get(run.how, (3 if "three" in run.how else ISLANDS, STEP_S))
    given = {"optimizer": run.optimizer, "seed": run.seed, "step_s": step_s, "snapshot": 0, "scales": "rate" in run.how,
             "between": BETWEEN.get(run.part)}
    what = "torchft" if run.part == "torchft" else "island"
    with lighthouse() if what == "torchft" else Meeting(folder, LEASE) as meeting:
        islands = Islands(count, folder, given | meeting.given, what)
        try:
            for number in range(count):
                islands.start(number)
            islands.until_all_are_there()
            begin = now = time.monotonic()
            before, loss_at, again, losses, present = islands.samples(), begin + every, [], 0, 0.0
            while islands.samples() < SAMPLES:
                islands.check()
                last, now = now, time.monotonic()
                present += len(islands.there()) * (now - last)
                for due, number in [each for each in again if each[0] <= now]:
                    again.remove((due, number))
                    islands.start(number)
                if every and now >= loss_at:
                    # One that has come for a while is among those that it may be.
                    number = chance.choice(islands.there())
                    islands.kill(number)
                    again.append((now + every, number))
                    losses, loss_at = losses + 1, loss_at + every
            seconds, useful = time.monotonic() - begin, islands.samples() - before
            steps = max(int(islands.lives[number][-1].numbers[STEPS]) for number in islands.there())
            results, model, _ = islands.end()
            accuracy, loss = evaluate(model, test)
            return {"accuracy": accuracy, "test_loss": loss, "samples": islands.samples(), "lost": islands.lost(),
                    "losses": losses, "steps": steps, "seconds": seconds, "samples_per_s": useful / seconds,
                    "islands": present / seconds} | ({} if what == "torchft" else {
                        "equal": len({each["hash"] for each in results.values()}) == 1,
                        "finished": sorted(len(each["with"]) for each in results.values())})
        finally:
            islands.close()


def unequal(run, folder, test):
    """Of islands that wait, those that have waited are as slow as the slowest: all sleep as long."""
    steps, every = UNEQUAL[run.how], SNAPSHOT[run.how]
    given = {"optimizer": run.optimizer, "seed": run.seed, "step_s": UNIT_S, "scales": False, "between": None}
    waits = run.how != "as they are"
    if run.how == "wait at each step":
        ranks = start_ranks(len(SPEEDS), folder, given | {"snapshot": every, "steps": steps, "checkpoint_s": 0.0, "life": 0})
        try:
            snapshots = ranks[0].result()[2]
            counts = [steps] * len(SPEEDS)
        finally:
            for each in ranks:
                each.kill()
    else:
        with Meeting(folder, LEASE) as meeting:
            islands = Islands(len(SPEEDS), folder, given | meeting.given)
            try:
                for number, speed in enumerate(SPEEDS):
                    islands.start(number, step_s=UNIT_S * (1 if waits else speed), snapshot=0 if number else every)
                islands.until_all_are_there()
                while islands.lives[0][0].numbers[DONE] < steps:
                    islands.check()
                _, _, snapshots = islands.end()
                counts = [int(lives[0].numbers[DONE]) for lives in islands.lives]
            finally:
                islands.close()
    unit = UNIT_S * (max(SPEEDS) if waits else 1)
    return {"steps": counts, "curve": [(round(done * unit, 3), *evaluate(state, test)) for done, state in snapshots]}


def start_ranks(count, folder, given):
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(hosts.free_port()), "WORLD_SIZE": str(count)}
    return [Process("rank", folder, environment=environment | {"RANK": str(number)}, number=number, **given)
            for number in range(count)]


def restarting(run, folder, _):
    """A job that the loss of one ends, and that starts anew at once with those that are left and those that are back."""
    given = {"optimizer": run.optimizer, "seed": run.seed, "step_s": STEP_S, "snapshot": 0, "steps": -1,
             "checkpoint_s": CHECKPOINTS[run.how]}
    every, useful, life, restarts = CHURN["every 30 s"], 0, 0, []
    ranks = start_ranks(ISLANDS, folder, given | {"life": life})
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not all(each.numbers[DONE] for each in ranks):
            if time.monotonic() > deadline or any(each.process.poll() is not None for each in ranks):
                raise RuntimeError(f"a rank has not begun: {Path(ranks[0].log_at).read_text()}")
            time.sleep(0.02)
        begin = time.monotonic()
        before, ends, struck = int(ranks[0].numbers[DONE]), begin + RESTARTS_S, None
        loss_at = begin + every
        while (now := time.monotonic()) < ends:
            time.sleep(0.02)
            if struck is not None and all(each.numbers[DONE] for each in ranks):
                restarts.append(now - struck)
                struck = None
            if now < loss_at:
                continue
            for each in ranks:
                each.kill()
            useful += int(ranks[0].numbers[LANDED]) * len(ranks)
            life, loss_at, struck = life + 1, loss_at + every, now
            ranks = start_ranks(ISLANDS - 1, folder, given | {"life": life})
        useful += int(ranks[0].numbers[DONE]) * len(ranks) - before * ISLANDS
        return {"samples_per_s": useful * BATCH / RESTARTS_S, "losses": life, "restart_s": statistics.median(restarts)}
    finally:
        for each in ranks:
            each.kill()


def joining(run, folder, _):
    """Four hosts with an island each; a fifth has the meeting point. The last one comes several times."""
    given = {"optimizer": run.optimizer, "step_s": WIDE_STEP_S, "snapshot": 0}
    with hosts.Hosts(5) as made, Meeting(folder, LEASE, hosts.address_of(4), made.inside(4)) as meeting:
        made.shape(LINK_BITS_PER_S)
        started = []

        def start(number, life):
            made_one = Process("newcomer", folder, prefix=made.inside(number), number=number, life=life,
                               **given | meeting.given)
            started.append(made_one)
            until(lambda: Path(f"{made_one.numbers_at}.ready").exists(), made_one)
            return made_one

        def until(holds, process):
            deadline = time.monotonic() + PATIENCE_S
            while not holds():
                if time.monotonic() > deadline or process.process.poll() is not None:
                    raise RuntimeError(f"island {process.number}: {Path(process.log_at).read_text()}")
                time.sleep(0.01)

        def told(process):
            path = Path(process.result_at)
            return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

        try:
            old = [start(number, 0) for number in range(3)]
            for each in old:
                Path(f"{each.numbers_at}.go").touch()
            until(lambda: all(told(each) and told(each)[-1].get("names") == 3 for each in old), old[0])
            joins = []
            for life in range(JOINS):
                new = start(3, life)
                time.sleep(BEFORE_S + 2)
                Path(f"{new.numbers_at}.go").touch()
                until(lambda: len(told(new)) > 1, new)
                time.sleep(3 * WIDE_STEP_S)
                begin, end = told(new)[0]["joins"], told(new)[1]["joined"]
                new.kill()
                steps = [[step for step in told(each) if "step" in step] for each in old]
                joins.append({"seconds": end - begin, "islands": [
                    {when: {what: [round(step[what], 6) for step in of if low < step["time"] <= high + step["step"]]
                            for what in ("step", "islands", "processor")}
                     for when, low, high in (("before", begin - BEFORE_S, begin - WIDE_STEP_S), ("during", begin, end))}
                    for of in steps]})
            return {"joins": joins, "parameter_bytes": 4 * 5 * 1024 * 1025}
        finally:
            for each in started:
                each.kill()


def pace(run, folder, _):
    """Two hosts with a worker each; a third has the meeting point. What is compared runs in turns."""
    found = {how: [] for how in PACED}
    with hosts.Hosts(3) as made:
        made.shape(PACES[run.how])
        for turn in range(TURNS):
            for how in PACED:
                with Meeting(Path(tempfile.mkdtemp(dir=folder)), LEASE, hosts.address_of(2), made.inside(2)) as meeting:
                    environment = {"MASTER_ADDR": hosts.address_of(0), "MASTER_PORT": "29800", "WORLD_SIZE": "2",
                                   "GLOO_SOCKET_IFNAME": "gw0"}
                    workers = [Process("paced", folder, made.inside(number), environment | {"RANK": str(number)},
                                       number=number, life=f"{turn}{PACED.index(how)}", how=how, **meeting.given)
                               for number in range(2)]
                    try:
                        steps = [each.result() for each in workers]
                    finally:
                        for each in workers:
                            each.kill()
                found[how].append([statistics.median(of[2:]) for of in steps])
    return {"seconds": {how: [max(of) for of in turns] for how, turns in found.items()},
            "parameter_bytes": 4 * 5 * 1024 * 1025}


PROCESSES = {"paced": paced, "island": island, "rank": rank, "newcomer": newcomer, "torchft": torchft_replica}
PARTS = {"churn": churn, "exact": churn, "counts": churn, "pace": pace, "torchft": churn, "unequal": unequal,
         "restarting": restarting, "joining": joining}


def measure(run, test):
    with tempfile.TemporaryDirectory(prefix="gradweave-churn-") as folder:
        return {"run": asdict(run), **PARTS[run.part](run, folder, test), "torch": torch.__version__}


# ---- the page

NOMINAL = ISLANDS * BATCH / STEP_S  # samples a second, if nothing but steps took time


def pick(done, part, how, optimizer):
    """Results by seed."""
    return {run.seed: result for run, result in done.items() if (run.part, run.how, run.optimizer) == (part, how, optimizer)}


def mean_of(results, name):
    return statistics.mean(result[name] for result in results.values())


def accuracy_table(done):
    table = []
    for optimizer, part in itertools.product(("sgd", "adamw"), ("churn", "exact")):
        calm = pick(done, part, "nobody", optimizer)
        for how in CHURN:
            found = pick(done, part, how, optimizer)
            if not found:
                continue
            differences = [found[seed]["accuracy"] - calm[seed]["accuracy"] for seed in sorted(found)]
            per_1000 = 1000 * sum(each["losses"] for each in found.values()) / sum(each["steps"] for each in found.values())
            name = how + (", exact gradients" if part == "exact" else "")
            table.append([
                optimizer, name, " ".join(f"{found[seed]['accuracy']:.2f}" for seed in sorted(found)),
                f"{mean_of(found, 'accuracy'):.2f}", *([f"{statistics.mean(differences):+.2f}", " ".join(
                    f"{each:+.2f}" for each in differences)] if how != "nobody" else ["", ""]),
                f"{mean_of(found, 'test_loss'):.4f}", " ".join(str(found[seed]["losses"]) for seed in sorted(found)),
                f"{per_1000:.1f}", f"{100 * mean_of(found, 'lost') / (SAMPLES + mean_of(found, 'lost')):.2f}",
                f"{mean_of(found, 'islands'):.2f}"])
    return markdown(["optimizer", "an island is lost", "test accuracy by seed, %", "mean", "minus nobody, mean", "by seed",
                     "test loss", "losses", "in 1,000 steps", "samples lost, %", "islands there"], table)


def goodput_table(done):
    """All of one optimizer: it doesn't matter here."""
    table = []

    def add(name, results, losses):
        rate = mean_of(results, "samples_per_s")
        there = mean_of(results, "islands") if all("islands" in each for each in results.values()) else None
        table.append([name, losses, f"{rate:.0f}", f"{100 * rate / NOMINAL:.1f}",
                      f"{100 * rate / (NOMINAL * there / ISLANDS):.1f}" if there else ""])

    for part, name in (("churn", "islands"), ("torchft", "torchft, LocalSGD")):
        for how in ("nobody", "every 30 s"):
            if found := pick(done, part, how, "sgd"):
                add(name, found, how)
    for how in CHECKPOINTS:
        if found := pick(done, "restarting", how, "sgd"):
            add(f"starts anew, {how}", found, "every 30 s")
    return markdown(["", "an island is lost", "useful samples/s", "of 4 islands that never stop, %",
                     "of the islands that were there, %"], table)


def seconds_to(curve, target):
    """When the line through the snapshots' accuracies has passed the target for good in two of them; None if it has not."""
    before = (0.0, 10.0)
    for place, (when, accuracy, _) in enumerate(curve):
        if accuracy >= target and (place + 1 == len(curve) or curve[place + 1][1] >= target):
            return before[0] + (when - before[0]) * (target - before[1]) / (accuracy - before[1])
        before = (when, accuracy)
    return None


def unequal_table(done):
    table = []
    for optimizer in ("adamw", "sgd"):
        times = {how: {target: {seed: seconds_to(result["curve"], target)
                                for seed, result in pick(done, "unequal", how, optimizer).items()} for target in TARGETS}
                 for how in UNEQUAL}
        free = times["as they are"]
        if not free[TARGETS[0]]:
            continue
        for how in UNEQUAL:
            if not times[how][TARGETS[0]]:
                continue
            cells = []
            for target in TARGETS:
                found = times[how][target]
                ratios = [found[seed] / free[target][seed] for seed in sorted(found)
                          if found[seed] and free[target].get(seed)]
                cells += [" ".join(f"{found[seed]:.0f}" if found[seed] else "-" for seed in sorted(found)),
                          f"{statistics.mean(ratios):.2f}" if ratios and how != "as they are" else ""]
            table.append([optimizer, how, *cells])
    return markdown(["optimizer", "islands", *(title for target in TARGETS for title in
                                               (f"s to {target:g} % by seed", "times as they are"))], table)


def joining_table(done):
    table = []
    for optimizer in ("sgd", "adamw"):
        for result in pick(done, "joining", "200 Mb/s", optimizer).values():
            for number in range(3):
                of = [join["islands"][number] for join in result["joins"]]
                share = {when: [sum(each[when]["islands"]) / sum(each[when]["step"]) for each in of]
                         for when in ("before", "during")}
                wall = [statistics.mean(each["during"]["step"]) / statistics.mean(each["before"]["step"]) - 1 for each in of]
                more = [during - before for during, before in zip(share["during"], share["before"])]
                worst = [max(each["during"]["islands"]) for each in of]
                table.append([
                    optimizer, "gives the state" if number == 0 else "",
                    f"{statistics.median(join['seconds'] for join in result['joins']):.1f}",
                    f"{1e3 * statistics.median(s for each in of for s in each['before']['step']):.0f}",
                    f"{100 * statistics.mean(share['before']):.2f}", f"{100 * statistics.mean(share['during']):.2f}",
                    f"{100 * statistics.mean(more):+.2f}", f"{1e3 * statistics.median(worst):.0f}",
                    f"{100 * statistics.median(wall):+.1f}"])
    return markdown(["optimizer", "", "s to join", "step, ms", "of it in islands' code before, %", "while one joins, %",
                     "difference, points", "longest such pause, ms", "step while one joins, %"], table)


def pace_table(done):
    table = []
    for how in PACES:
        for result in pick(done, "pace", how, "sgd").values():
            alone, ddp, exact = (result["seconds"][each] for each in PACED)
            ratios = [a / b for a, b in zip(exact, ddp)]
            table.append([how, *(f"{1e3 * statistics.median(each):.0f}" for each in (alone, ddp, exact)),
                          f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} - {max(ratios):.2f}"])
    return markdown(["link", *(f"{each}, ms" for each in PACED), "times DistributedDataParallel", "by turns"], table)


def sections(results):
    done = runs.done(results, Run)
    return [(PAGE, name, table(done)) for name, table in (
        ("accuracy", accuracy_table), ("goodput", goodput_table), ("unequal", unequal_table), ("joining", joining_table),
        ("pace", pace_table))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", default="*", help="pattern of PART/HOW/OPTIMIZER/seed N, as --list prints them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--list", action="store_true", help="list the runs and whether they are done")
    parser.add_argument("--page", action="store_true", help="write the tables into docs/results/churn.md")
    parser.add_argument("--process", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.process:
        torch.set_num_threads(1)
        what, given = options.process
        return PROCESSES[what](json.loads(given))
    if options.page:
        for section in sections(options.results):
            replace_section(*section)
        return 0
    done = runs.done(options.results, Run)
    chosen = [run for run in all_runs(options.seeds) if fnmatch.fnmatch(run.name, options.only)]
    if options.list:
        for run in chosen:
            print(f"{'done' if run in done else '-':5} {run.name}")
        return 0
    torch.set_num_threads(1)
    test = fashion_mnist.load("test")
    for run in chosen:
        if run in done:
            continue
        if run.part == "torchft" and importlib.util.find_spec("torchft") is None:
            print(f"{run.name}: left out, torchft is not there: pip install torchft==0.2.0")
            continue
        result = measure(run, test)
        runs.add(options.results, result)
        told = {name: value for name, value in result.items() if name not in ("run", "curve", "joins")}
        print(f"{run.name}: {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
