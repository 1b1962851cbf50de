"""What averages do where workers have different data, and remedies: all workers in one process, by plain PyTorch.

Two epochs of Fashion-MNIST, split by class, as bench/slow_links.py trains; the first iterations are synchronous, as in a job
of Gradweave. Results are lines of JSON, one for each run; runs whose line exists are skipped.

    .venv/bin/python bench/unlike_data.py            # all runs: about an hour and a half of one core; --list says how many
    .venv/bin/python bench/unlike_data.py --only 'linear/2 workers/sgd/apart/*'
    .venv/bin/python bench/unlike_data.py --page     # the tables from what was measured
"""

import dataclasses
import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import accuracy
import slow_links
from training_tables import markdown, replace_section

RESULTS = Path(__file__).parent.parent / "docs/results/unlike_data.jsonl"
PAGE = RESULTS.with_name("accuracy.md")
EPOCHS = 2
COMPARED = 12  # iterations in which the Preserver compares gradients, all of them synchronous
SURE = 4.30    # Student's t beyond which a logarithm is above 0 at its error rate of 0.001, of two iterations less than these
CLASSES = 10
SYNCHRONOUS, LATE, COMMON = "synchronous", "late averages", "common state"
WATCHED = "first iterations"  # alone, in which the Preserver compares gradients
DATA = ("shuffled", "dirichlet 0.5", "dirichlet 0.1", "apart")
PERIODS = (2, 8)


@dataclass(frozen=True)
class Run(slow_links.Run):
    """One training run; its fields identify it in the results. With an outer momentum workers have none of their own."""

    codec: str = "none"
    optimizer: str = "sgd"
    workers: int = 2
    data: str = "apart"     # or shuffled, or "dirichlet ALPHA"
    method: str = LATE      # of METHODS
    strength: float = 0.0   # of the method
    on_time: bool = False   # averages land as they are sent

    @property
    def name(self):
        return (f"{self.job}/{self.workers} workers/{self.optimizer}/{self.data}/{told(self)}/period {self.period}/"
                f"seed {self.seed}")


def told(run):
    return (run.method + (f" {run.strength:g}" if run.strength else "") + (f", outer {run.outer:g}" if run.outer else "")
            + (", on time" if run.on_time else ""))


def all_runs(seeds):
    """Remedies for two workers with classes apart; the best of them for each split of the data."""
    both, found = ("sgd", "adamw"), []
    for seed in range(seeds):
        for optimizer in both:
            for data, workers in [(data, workers) for data in DATA for workers in (2, 4)]:
                like = Run(optimizer=optimizer, data=data, workers=workers, seed=seed)
                found += [dataclasses.replace(like, method=SYNCHRONOUS, period=1)]
                found += [dataclasses.replace(like, period=period, method=method, strength=strength) for period in PERIODS
                          for method, strength in ((LATE, 0.0), (COMMON, 1.0))]
            found += [Run(optimizer=optimizer, seed=seed, period=1)]
            found += [Run(optimizer=optimizer, seed=seed, period=period, **remedy) for period in PERIODS
                      for remedy in remedies(optimizer)]
    found += [Run(job="small", data=data, workers=workers, seed=seed, period=1, method=WATCHED) for data in DATA
              for workers in (2, 4) for seed in range(seeds)]
    small = [Run(optimizer=optimizer, job="small", seed=seed) for seed in range(2) for optimizer in both]
    return found + [dataclasses.replace(run, **more) for run in small for more in (
        {"method": SYNCHRONOUS, "period": 1}, {"period": 2}, {"period": 2, "method": COMMON, "strength": 1.0}, {"period": 8},
        {"period": 8, "method": COMMON, "strength": 1.0})]


def remedies(optimizer):
    """Beside late averages as they are and the best remedy."""
    found = [{"on_time": True}, {"method": COMMON}, {"method": COMMON, "strength": 1.0, "on_time": True},
             {"method": "momentum sent"}, {"method": "momentum moved", "strength": 1.0}]
    for method, strengths in (("proximal", (0.01, 0.1, 1.0)), ("control", (0.1, 0.3, 1.0)), ("drift", (0.1, 0.3))):
        found += [{"method": method, "strength": strength} for strength in strengths]
    return found + ([{"outer": 0.9}, {"outer": 0.9, "method": "control", "strength": 0.3}] if optimizer == "sgd" else [])


# ---- who has what

def shares_of(run, train_set):
    """What recipes take of each worker: (data, which part of them, of how many). Equally many pictures each."""
    images, labels = train_set
    if run.data == "shuffled":
        return [(train_set, rank, run.workers) for rank in range(run.workers)]
    if run.data == "apart":  # as in bench/preserving.py
        halves = [(images[own], labels[own]) for own in (labels // 5 == half for half in range(2))]
        return [(halves[rank % 2], rank // 2, run.workers // 2) for rank in range(run.workers)]
    return [((images[own], labels[own]), 0, 1) for own in dealt(labels, float(run.data.split()[1]), run.workers, run.seed)]


def dealt(labels, alpha, workers, seed):
    """The places of each worker's pictures. Each class is dealt out by proportions that a Dirichlet distribution gives, scaled
    until all workers have equally many."""
    torch.manual_seed(seed)
    shares = torch.distributions.Gamma(alpha, 1.0).sample((workers, CLASSES)).double().clamp(min=1e-6)
    sizes = labels.bincount(minlength=CLASSES)
    for _ in range(2000):
        shares *= sizes / shares.sum(0)
        shares *= len(labels) / workers / shares.sum(1, keepdim=True)
    ends = (shares.cumsum(0) / shares.sum(0) * sizes).round().long()
    owned = [[] for _ in range(workers)]
    for kind in range(CLASSES):
        places = (labels == kind).nonzero()[:, 0]
        places = places[torch.randperm(len(places))]
        for own, part in zip(owned, places.tensor_split(ends[:-1, kind])):
            own.append(part)
    return [torch.cat(own) for own in owned]


# ---- methods

class Late(slow_links.Averages):
    """Averages as they are, of the workers of run `number` of a fleet."""

    def __init__(self, run, fleet, number):
        count = fleet.values.shape[2]
        messages, period = (([slow_links.Message(torch.arange(count), run.period - 1, 0)], run.period) if run.on_time else
                            slow_links.messages_of(run, fleet))
        super().__init__(run, fleet.values.detach()[number], messages, period)
        self.fleet, self.number, self.rule = fleet, number, fleet.rule
        # Iterations from one average of a value to its next.
        self.interval = period / torch.cat([message.places for message in messages]).bincount(minlength=count)

    def synchronous_step(self, gradients):
        gradients.copy_(gradients.mean(0).expand_as(gradients))

    def before_step(self, gradients):
        pass

    def after_step(self):
        pass

    def at_end_of(self, iteration):
        super().at_end_of(iteration)
        for places, sent in self.under_way.pop(iteration, []):  # that are on time
            self.land(places, sent)

    def state(self, name):
        return self.fleet.optimizer.state[self.fleet.values][name][self.number]

    def deviation(self, places, sent):
        """How far a worker goes in one iteration beyond the mean."""
        return (sent - sent.mean(0)) / self.interval[places]

    def step_by_one(self, places):
        """The step that a momentum of 1 makes."""
        if "betas" not in self.rule:
            return -self.rule["lr"]
        unbiased = 1 - self.rule["betas"][1] ** self.fleet.optimizer.state[self.fleet.values]["step"]
        return -self.rule["lr"] / ((self.state("exp_avg_sq")[:, places] / unbiased).sqrt() + self.rule["eps"])


class Proximal(Late):
    """Gradients draw a worker to the last common point (FedProx)."""

    def before_step(self, gradients):
        gradients += self.run.strength * (self.values - self.anchor)


class Control(Late):
    """From a gradient is taken what is the worker's own, as its deviations from the mean show it (SCAFFOLD, VRL-SGD)."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.own = torch.zeros_like(self.values)
        self.gain = 1 / (1 - self.rule.get("momentum", 0.0))  # of momentum

    def before_step(self, gradients):
        gradients -= self.own

    def land(self, places, sent):
        self.own[:, places] += self.run.strength * self.deviation(places, sent) / (self.gain * self.step_by_one(places))
        super().land(places, sent)


class Drift(Late):
    """After its step a worker takes back what it deviates by in an iteration, as the last averages have shown."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.drift = torch.zeros_like(self.values)

    def after_step(self):
        self.values -= self.drift

    def land(self, places, sent):
        self.drift[:, places] += self.run.strength * self.deviation(places, sent)
        super().land(places, sent)


class MomentumSent(Late):
    """Momentum is averaged too, just as late: twice the bytes."""

    def at_end_of(self, iteration):
        if not hasattr(self, "momentum"):
            self.momentum = slow_links.Averages(self.run, self.state(momentum_of(self.run)), self.messages, self.period)
        self.momentum.at_end_of(iteration)
        super().at_end_of(iteration)


class MomentumMoved(Late):
    """What corrects the parameters also corrects the momentum that has brought them there."""

    def land(self, places, sent):
        self.state(momentum_of(self.run))[:, places] -= (
            self.run.strength * self.deviation(places, sent) / self.step_by_one(places))
        super().land(places, sent)


def momentum_of(run):
    return {"sgd": "momentum_buffer", "adamw": "exp_avg"}[run.optimizer]


class Common(Late):
    """The optimizer's moments are made of averages alone, so all workers have the same (after quasi-global momentum, Lin et
    al. 2021). A worker's own step adds its gradient, less `strength` times what is its own. So a gain is linear in its
    gradients, by factors that all know, and the mean gain tells the mean gradient."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.own = torch.zeros_like(self.values)
        # Means of gradients and, for Adam, of their squares.
        self.first, self.second, self.updates = (torch.zeros_like(self.anchor) for _ in range(3))
        # Sums since a value was last sent: steps without the gradient's part, that part's factor, momentum, iterations.
        self.sums = torch.zeros(4, len(self.anchor))
        self.sums_sent = torch.zeros_like(self.sums)
        self.beta = self.rule["betas"][0] if "betas" in self.rule else self.rule["momentum"]

    def update(self, places, momentum, gradient, iterations):
        """Moments by the mean gradient of some iterations; Adam's begin as plain means, which have no bias."""
        if "betas" not in self.rule:
            self.first[places] = torch.lerp(momentum, gradient, 1 - self.beta)
            return
        self.updates[places] += 1
        begin = 1 / self.updates[places]
        self.first[places] = torch.lerp(momentum, gradient, begin.clamp(min=1 - self.beta))
        part = torch.maximum(begin, 1 - self.rule["betas"][1] ** iterations)
        self.second[places] = torch.lerp(self.second[places], gradient.square(), part)

    def scale(self):
        """What a step is, over learning rate and momentum."""
        if "betas" in self.rule:
            return 1 / (self.second.sqrt() + self.rule["eps"])
        return torch.full_like(self.anchor, 1 / (1 - self.beta))

    def synchronous_step(self, gradients):
        self.update(slice(None), self.first, gradients.mean(0), torch.ones_like(self.anchor))
        gradients.copy_((self.scale() * self.first + self.rule["weight_decay"] * self.anchor).expand_as(gradients))

    def before_step(self, gradients):
        scale = self.scale()
        common = scale * self.beta * self.first + self.rule["weight_decay"] * self.anchor
        factor = scale * (1 - self.beta)
        self.sums += torch.stack([common, factor, self.first, torch.ones_like(factor)])
        gradients.sub_(self.own).mul_(factor).add_(common)

    def send(self, places):
        self.sums_sent[:, places] = self.sums[:, places]
        self.sums[:, places] = 0
        return super().send(places)

    def land(self, places, sent):
        common, factor, momentum, iterations = self.sums_sent[:, places]
        moved = sent / -self.rule["lr"]
        mean = moved.mean(0)
        self.own[:, places] += self.run.strength * (moved - mean) / factor
        self.update(places, momentum / iterations, (mean - common) / factor, iterations)
        super().land(places, sent)


METHODS = {LATE: Late, "proximal": Proximal, "control": Control, "drift": Drift, "momentum sent": MomentumSent,
           "momentum moved": MomentumMoved, COMMON: Common, SYNCHRONOUS: Late, WATCHED: Late}


# ---- training

class Fleet(slow_links.Fleet):
    """The workers of runs whose optimizer works alike. `rule`: its hyperparameters."""

    def __init__(self, like, count, train_set):
        super().__init__(like, count, shares_of(like, train_set))
        if like.outer:
            self.group["momentum"] = 0.0
        self.rule = self.group
        if like.method == COMMON:  # whose "gradients" are steps
            self.optimizer = torch.optim.SGD([self.values], self.rule["lr"])
            self.group, = self.optimizer.param_groups


def kind_of(run):
    """What runs of one fleet have in common."""
    alone = run.method if run.method in (SYNCHRONOUS, COMMON, WATCHED) else ""
    return run.job, run.optimizer, run.workers, run.seed, run.data, bool(run.outer), alone


class Watch:
    """What the Preserver compares (include/gradweave/estimate.h): how far gradients of workers are apart, and what of it
    changes from batch to batch, iteration by iteration."""

    def __init__(self):
        self.seen, self.apart, self.changing = [], [], []

    def see(self, gradients):
        self.seen.append(gradients - gradients.mean(0))
        if len(self.seen) > 2:
            _, before, own = self.seen = self.seen[-3:]
            self.apart.append((own.square().sum().item() + before.square().sum().item()) / 2)
            self.changing.append((own - before).square().sum().item() / 2)

    def told(self):
        """The ratio of both, and Student's t of the logarithms of each iteration's."""
        return {"dissimilarity": sum(self.apart) / sum(self.changing),
                "t": student([math.log(apart / changing) for apart, changing in zip(self.apart, self.changing)])}


def student(values):
    return statistics.mean(values) / statistics.stdev(values) * len(values) ** 0.5


def train(together, train_set, test_set):
    """The results of runs of one fleet."""
    begin, like, watch = time.perf_counter(), together[0], Watch()
    fleet = Fleet(like, len(together), train_set)
    each = [METHODS[run.method](run, fleet, number) for number, run in enumerate(together)]
    for iteration in range(COMPARED if like.method == WATCHED else EPOCHS * accuracy.ITERATIONS["small"]):
        fleet.backward()
        if iteration < COMPARED:
            watch.see(fleet.values.grad[0])
        if iteration < COMPARED or like.method == SYNCHRONOUS:
            synchronous_iteration(fleet, each)
        else:
            late_iteration(fleet, each, iteration)
    spreads = [method.drain() for method in each]
    seconds = round((time.perf_counter() - begin) / len(together), 1)
    results = []
    for number, (run, method, spread) in enumerate(zip(together, each, spreads)):
        right, loss = slow_links.KINDS[like.job].evaluate(fleet.model_of(number), test_set)
        results.append({"run": asdict(run), "period": method.period, "spread": spread, "accuracy": right, "test_loss": loss,
                        "seconds": seconds} | (watch.told() if like.method == WATCHED else {}))
    return results


@torch.no_grad()
def synchronous_iteration(fleet, each):
    for gradients, method in zip(fleet.values.grad, each):
        method.synchronous_step(gradients)
    fleet.workers = 1  # whose batch is the whole one
    fleet.step()
    for method in each:
        method.anchor.copy_(method.values[0])


@torch.no_grad()
def late_iteration(fleet, each, iteration):
    for gradients, method in zip(fleet.values.grad, each):
        method.before_step(gradients)
    fleet.workers = each[0].run.workers
    fleet.step()
    for method in each:
        method.after_step()
        method.at_end_of(iteration)


# ---- what the page has

def compared(found, run):
    """Points above or below synchronous training on the same data and seeds, and of how many seeds; "" without any."""
    reference = found.get(dataclasses.replace(run, method=SYNCHRONOUS, strength=0.0, period=1, outer=0.0, on_time=False), {})
    points = [result["accuracy"] - reference[seed]["accuracy"] for seed, result in found.get(run, {}).items()
              if seed in reference]
    return f"{statistics.mean(points):+.2f} ({len(points)})" if points else ""


def split_table(found):
    """A row for each split of the data: synchronous training, averages as they are and the remedy."""
    rows = []
    for job, workers, optimizer, data in ((job, workers, optimizer, data) for job in ("linear", "small") for workers in (2, 4)
                                          for optimizer in ("sgd", "adamw") for data in DATA):
        like = Run(job=job, workers=workers, optimizer=optimizer, data=data, method=SYNCHRONOUS, period=1)
        if like not in found:
            continue
        mean = statistics.mean(result["accuracy"] for result in found[like].values())
        late = [compared(found, dataclasses.replace(like, method=method, strength=strength, period=period))
                for period in PERIODS for method, strength in ((LATE, 0.0), (COMMON, 1.0))]
        rows.append([job, str(workers), optimizer, data, f"{mean:.2f}", *late])
    return markdown(["job", "workers", "optimizer", "data", "synchronous, %",
                     *(f"{what}, K = {period}" for period in PERIODS for what in (LATE, COMMON))], rows)


def preserver_table(found):
    """What the Preserver sees of each split, and how many it refuses."""
    rows = []
    for run in sorted((run for run in found if run.method == WATCHED), key=lambda run: (run.workers, DATA.index(run.data))):
        seen = found[run].values()
        refused = sum(each["dissimilarity"] > 1.5 and each["t"] > SURE for each in seen)
        rows.append([str(run.workers), run.data, *(span([each[name] for each in seen], digits) for name, digits in (
            ("dissimilarity", 2), ("t", 1))), f"{refused} of {len(seen)}"])
    return markdown(["workers", "data", "ratio", "t of its logarithm", "refused"], rows)


def span(values, digits):
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def remedy_table(found):
    """A row for each method on two workers with classes apart."""
    tried = {"adamw": remedies("adamw"), "sgd": remedies("sgd")}
    rows = []
    for remedy in [{}, {"method": COMMON, "strength": 1.0}, *tried["sgd"]]:
        cells = [compared(found, Run(optimizer=optimizer, period=period, **remedy)) for optimizer in ("sgd", "adamw")
                 for period in PERIODS]
        rows.append([told(Run(**remedy)), *cells])
    rows.insert(1, [f"{LATE}, K = 1", *(compared(found, Run(optimizer=optimizer, period=1)) if period == 2 else ""
                                        for optimizer in ("sgd", "adamw") for period in PERIODS)])
    return markdown(["method", *(f"{optimizer}, K = {period}" for optimizer in ("sgd", "adamw") for period in PERIODS)], rows)


def sections():
    """[(name of its section, what stands there)]"""
    found = slow_links.measured(RESULTS, Run)
    return [("the Preserver on unlike data", preserver_table(found)), ("unlike data", split_table(found)),
            ("remedies for unlike data", remedy_table(found))]


def main():
    options = slow_links.parsed(__doc__, RESULTS, "of each run", "the tables")
    if options.page:
        for section in sections():
            replace_section(PAGE, *section)
        return 0
    return slow_links.work(options, Run, all_runs(options.seeds), kind_of, train)


if __name__ == "__main__":
    sys.exit(main())
