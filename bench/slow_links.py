"""What averages of few bits, rare and late, do to training: all workers in one process, by plain PyTorch.

Each worker steps on its own; the averages are those of a plan of `delayed_averaging`, block by block, read and landed at the
ends of the iterations that the plan names, through codecs, against anchors (docs/plan.md). Two questions: what keeps the
accuracy on links hundreds of times too slow, and how long may a period be. Results are lines of JSON, one for each run; runs
whose line exists are skipped.

    .venv/bin/python bench/slow_links.py            # all runs: hours of one core; --list says how many
    .venv/bin/python bench/slow_links.py --only 'small/4 workers/sgd/*1024*'
    .venv/bin/python bench/slow_links.py --page     # the tables and the picture from what was measured
"""

import argparse
import dataclasses
import fnmatch
import itertools
import statistics
import sys
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import accuracy
import adam_parts
import runs
from gradweave import core, moments
from gradweave.lab import jobs, training
from svg import COLORS, STYLE
from training_tables import accuracy_groups, markdown, replace_section

RESULTS = Path(__file__).parent.parent / "docs/results/slow_links.jsonl"
PAGE = RESULTS.with_name("accuracy.md")
PICTURE = RESULTS.with_name("periods.svg")
EPOCHS = 3
RATES = (256.0, 1024.0)
CODECS = ("int4", "int2", "ef_signsgd", "0.01 of 2 bits", "0.03 of 2 bits")
PERIODS = (1, 2, 4, 8, 16, 32, 64, 128)
JOBS = ("linear", "small", "gpt")
DASHES = {1: ' stroke-dasharray="5 4"', 8: ' stroke-dasharray="2 3"'}  # by fragments
GROUP = 256
CHUNK, INDEX_BITS = 4096, 12  # of what sends few elements: the largest of each chunk, as SparseLoCo has it
TWO_LEVELS = 2                # bits: a sign, and which of the chunk's two magnitudes


@dataclass(frozen=True)
class Run:
    """One training run; its fields identify it in the results."""

    codec: str  # a compressor of averages, "none", or "DENSITY of 2 bits"
    optimizer: str
    workers: int
    seed: int = 0
    coverage: float = 0.0  # of the link for which the period is planned, or
    period: int = 0        # K itself
    fragments: int = 0     # of the model, in place of a plan's blocks: each lands as the next begins, as between islands
    outer: float = 0.0     # Nesterov momentum on what lands
    decay: float = 1.0     # what stays of the progress that a message leaves out
    job: str = "linear"

    @property
    def name(self):
        link = f"rate {self.coverage:g}" if self.coverage else f"period {self.period}"
        more = "".join([f" fragments {self.fragments}" if self.fragments else "",
                        f" outer {self.outer:g}" if self.outer else "", f" decay {self.decay:g}" if self.decay < 1 else ""])
        return f"{self.job}/{self.workers} workers/{self.optimizer}/{self.codec}/{link}{more}/seed {self.seed}"


def linear_network():
    """Two linear layers of 0.4 MB: a training takes seconds."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), hidden=nn.Linear(784, 128), relu=nn.ReLU(),
                                     classes=nn.Linear(128, 10)))


KINDS = jobs.KINDS | {"linear": dataclasses.replace(jobs.KINDS["small"], name="linear", network=linear_network)}


def all_runs(seeds):
    """Each codec at the period that hides it, for two and four workers; each period with exact averages, also as one
    fragment or eight. All of it for two linear layers, with one worker for comparison; for the other jobs a part."""
    both, runs_ = ("sgd", "adamw"), []
    for seed in range(seeds):
        runs_ += [Run("none", optimizer, 1, seed, period=1, fragments=1) for optimizer in both]
        runs_ += [Run(codec, optimizer, workers, seed, coverage=rate) for workers in (4, 2) for rate in RATES
                  for optimizer in both for codec in CODECS]
        runs_ += [Run("0.01 of 2 bits", optimizer, 4, seed, coverage=rate, decay=0.95) for rate in RATES for optimizer in both]
        runs_ += [Run(codec, optimizer, 4, seed, coverage=1024.0, outer=0.5) for codec in CODECS[:3] for optimizer in both]
        runs_ += [Run("none", optimizer, workers, seed, period=period, fragments=fragments)
                  for fragments in (0, 1, 8) for workers in (2, 4, 8) for optimizer in both for period in PERIODS]
        runs_ += [Run(codec, optimizer, 4, seed, coverage=rate, job="small") for rate in RATES for optimizer in both
                  for codec in CODECS]
    runs_ += [Run("none", optimizer, workers, period=period, job="small") for workers in (4, 2, 8) for optimizer in both
              for period in PERIODS]
    runs_ += [Run(codec, "adamw", 2, coverage=rate, job="gpt") for rate in RATES
              for codec in CODECS[:3]]
    runs_ += [Run("none", "adamw", 2, period=period, job="gpt") for period in (2, 16, 64)]
    return runs_


def density_of(codec):
    """The share of the elements that a codec "DENSITY of 2 bits" sends, or None."""
    share, _, rest = codec.partition(" of ")
    return float(share) if rest == "2 bits" else None


# ---- codecs: what values decode to once they were encoded, as src/codec/groups.h has it; random numbers are torch's

def decoded(codec, values):
    """What messages of these values decode to, one a row."""
    if codec == "none":
        return values.clone()
    rows, count = values.shape
    density = density_of(codec)
    length = GROUP if density is None else min(CHUNK, count)
    groups = functional.pad(values, (0, -count % length)).view(rows, -1, length)
    filled = functional.pad(torch.ones(1, count), (0, -count % length)).view(1, -1, length)  # 0 where nothing is but padding
    sizes, signs = groups.abs(), torch.where(groups.signbit(), -1.0, 1.0)
    mean = sizes.sum(2, keepdim=True) / filled.sum(2, keepdim=True)
    if density is not None:
        result = of_two_magnitudes(groups, sizes, signs, density)
    elif codec == "ef_signsgd":
        result = mean * signs
    elif codec == "int2":
        levels = 1 + 2 * (sizes >= 1.25 * mean)
        scale = (sizes * levels).sum(2, keepdim=True) / (levels * levels * filled).sum(2, keepdim=True)
        result = scale * signs * (1 + 2 * (sizes >= 2 * scale))
    else:
        limit = {"int8": 127, "int4": 7}[codec]
        scale = sizes.amax(2, keepdim=True).clamp(min=1e-30) / limit
        result = scale * (groups / scale + torch.rand_like(groups)).floor().clamp(-limit, limit)
    return result.view(rows, -1)[:, :count]


def of_two_magnitudes(chunks, sizes, signs, density):
    """The largest of each chunk: those above their mean magnitude as the mean of such, and the others likewise."""
    largest = sizes.topk(-int(-density * chunks.shape[2] // 1)).indices
    sent = sizes.gather(2, largest)
    above = sent >= sent.mean(2, keepdim=True)
    high, low = ((sent * each).sum(2, keepdim=True) / each.sum(2, keepdim=True).clamp(min=1) for each in (above, ~above))
    return torch.zeros_like(chunks).scatter_(2, largest, signs.gather(2, largest) * torch.where(above, high, low))


def share_of_bytes(codec, workers):
    """What a message that few elements make up moves, over what an all-reduce of all of them does: it is all-gathered."""
    bits = density_of(codec) * CHUNK * (INDEX_BITS + TWO_LEVELS) + 2 * 32
    return bits / (32 * CHUNK) * workers / 2


# ---- training

class Fleet:
    """The workers of several runs, which take the same batches: values[run, worker] has the parameters of one as a vector.
    `shares`: of each worker its data, and which part of them is its own, of how many."""

    def __init__(self, like, count, shares):
        kind = KINDS[like.job]
        batch_size = accuracy.GLOBAL_BATCH.get(like.job, accuracy.GLOBAL_BATCH["small"]) // like.workers
        recipe = training.recipe_of(kind, like.optimizer, batch_size=batch_size, seed=like.seed)
        made = [recipe.make(*share) for share in shares]
        self.model, self.loss, self.batches = made[0].model, kind.loss, [job.batches for job in made]
        named = dict(self.model.named_parameters())
        self.shapes = {name: parameter.shape for name, parameter in named.items()}
        vector = torch.cat([parameter.detach().flatten() for parameter in named.values()])
        self.values = vector.repeat(count, like.workers, 1).requires_grad_()
        self.optimizer, self.workers = made[0].optimizer, like.workers
        self.group, = self.optimizer.param_groups
        self.group["params"] = [self.values]
        self.shares = [adam_parts.Share(like.workers) for _ in range(count)]  # of the second moment, of each run
        # Each run's workers by their own batches.
        self.losses = torch.vmap(torch.vmap(self.loss_of), in_dims=(0, None, None))

    def loss_of(self, vector, inputs, targets):
        return self.loss(torch.func.functional_call(self.model, self.parameters(vector), inputs), targets)

    def parameters(self, vector):
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts)}

    def begin_of(self, name):
        """Where a parameter begins in the vector."""
        return sum(shape.numel() for each, shape in itertools.takewhile(lambda entry: entry[0] != name, self.shapes.items()))

    def backward(self):
        """Gradients of every worker by its next batch."""
        inputs, targets = map(torch.stack, zip(*map(next, self.batches)))
        self.values.grad, = torch.autograd.grad(self.losses(self.values, inputs, targets).sum(), self.values)

    def step(self):
        """A step of every worker; AdamW by the second moment of the whole batch, as each run's workers measure it."""
        if self.workers == 1 or not moments.serves(type(self.optimizer), self.group):
            return self.optimizer.step()
        for share, gradients in zip(self.shares, self.values.grad):
            share.see(gradients)
        rate, self.group["lr"] = self.group["lr"], 0.0  # torch's step moves the moments alone
        self.optimizer.step()
        self.group["lr"] = rate
        state, (beta1, beta2) = self.optimizer.state[self.values], self.group["betas"]
        roots = torch.tensor([share.value for share in self.shares]).sqrt().view(-1, 1, 1)
        divided_by = roots * (state["exp_avg_sq"] / (1 - beta2**state["step"])).sqrt() + self.group["eps"]
        with torch.no_grad():
            self.values.mul_(1 - rate * self.group["weight_decay"])
            self.values.sub_(rate / (1 - beta1**state["step"]) * state["exp_avg"] / divided_by)

    def model_of(self, run):
        """The model with the parameters of the run's first worker."""
        self.model.load_state_dict(self.parameters(self.values[run, 0].detach()), strict=False)
        return self.model


@dataclass
class Message:
    """What a plan averages by one op: places in the vector, the iteration of the period in which it is sent, and how many
    later it lands."""

    places: torch.Tensor
    phase: int
    late: int


def plan_for(run):
    """The plan whose averages the run makes."""
    coverage, options = run.coverage or 0.97 * run.period, {}
    if run.period:
        options["period"] = str(run.period)
    if density_of(run.codec):
        coverage *= share_of_bytes(run.codec, run.workers)
    elif run.coverage:
        options["compressor"] = run.codec
    return core.make_plan(*accuracy.setting_of(run.job, coverage, run.workers), "delayed_averaging", options)


def messages_of(run, fleet):
    """(the run's messages, its period)"""
    everything = torch.arange(fleet.values.shape[2])
    if run.fragments:
        parts = everything.tensor_split(min(run.fragments, run.period))
        begins = [run.period * number // len(parts) for number in range(len(parts) + 1)]
        return [Message(part, begin, end - begin) for part, begin, end in zip(parts, begins, begins[1:])], run.period
    plan = plan_for(run)

    def places(blocks):
        chosen = [plan["blocks"][block] for block in blocks]
        begins = [fleet.begin_of(block["tensor"]) for block in chosen]
        return torch.cat([everything[begin + block["begin"]:begin + block["end"]] for begin, block in zip(begins, chosen)])

    period, found = len(plan["period"]), []
    lands = {(tuple(apply["blocks"]), (number + apply["merges"][0]) % period): -apply["merges"][0]
             for number, iteration in enumerate(plan["period"]) for apply in iteration["applies"]
             if apply.get("source") == "averaged_parameter"}
    for phase, iteration in enumerate(plan["period"]):
        found += [Message(places(op["blocks"]), phase, lands[tuple(op["blocks"]), phase]) for op in iteration["ops"]]
    return found, period


class Averages:
    """Averages of what workers have gained since their anchor (docs/plan.md, Anchors). `values`: a row for each worker, which
    they move."""

    def __init__(self, run, values, messages=(), period=1):
        self.run, self.values, self.messages, self.period = run, values, messages, period
        self.anchor = values[0].clone()
        self.rest = torch.zeros_like(self.anchor)   # what encoding the sum has dropped, on the shards' owners
        self.speed = torch.zeros_like(self.anchor)  # of the outer optimizer
        self.under_way = {}

    def at_end_of(self, iteration):
        for places, sent in self.under_way.pop(iteration, []):
            self.land(places, sent)
        for message in self.messages:
            if iteration % self.period == message.phase:
                sent = message.places, self.send(message.places)
                self.under_way.setdefault(iteration + message.late, []).append(sent)

    def send(self, places):
        """What each worker has sent, decoded."""
        gain = self.values[:, places] - self.anchor[places]
        sent = decoded(self.run.codec, gain)
        if self.run.decay < 1:
            self.values[:, places] -= (1 - self.run.decay) * (gain - sent)
        return sent

    def land(self, places, sent):
        total = sent.sum(0)
        if len(sent) > 2 and self.run.codec != "none" and density_of(self.run.codec) is None:  # two stages
            total += self.rest[places]
            again = decoded(self.run.codec, total[None])[0]
            self.rest[places] = total - again
            total = again
        step = total / len(sent)
        if self.run.outer:
            self.speed[places] = self.run.outer * self.speed[places] + step
            step = step + self.run.outer * self.speed[places]
        self.values[:, places] += step - sent
        self.anchor[places] += step

    def drain(self):
        """Lands what is under way and makes all workers their mean; returns how far they were apart."""
        mean = self.values.mean(0)
        spread = ((self.values - mean).norm(dim=1) / mean.norm()).max().item()
        for at in sorted(self.under_way):
            for places, sent in self.under_way[at]:
                self.land(places, sent)
        self.values.copy_(self.values.mean(0))
        return spread


def train(together, train_set, test_set, iterations=None):
    """The results of runs that differ in their averages alone."""
    begin, like = time.perf_counter(), together[0]
    iterations = iterations or EPOCHS * accuracy.ITERATIONS.get(like.job, accuracy.ITERATIONS["small"])
    fleet = Fleet(like, len(together), [(train_set, rank, like.workers) for rank in range(like.workers)])
    torch.manual_seed(like.seed)
    each = [Averages(run, fleet.values.detach()[number], *messages_of(run, fleet)) for number, run in enumerate(together)]
    for iteration in range(iterations):
        fleet.backward()
        fleet.step()
        for averages in each:
            averages.at_end_of(iteration)
    spreads = [averages.drain() for averages in each]
    seconds = round((time.perf_counter() - begin) / len(together), 1)
    results = []
    for number, (run, averages, spread) in enumerate(zip(together, each, spreads)):
        right, loss = KINDS[like.job].evaluate(fleet.model_of(number), test_set)
        results.append({"run": asdict(run), "period": averages.period, "spread": spread, "accuracy": right, "test_loss": loss,
                        "seconds": seconds})
    return results


def kind_of(run):
    """What runs that are trained together have in common."""
    return run.job, run.optimizer, run.workers, run.seed


def parsed(doc, results, seeds, page):
    """The command line of a script of such runs; `seeds` and `page` tell what these options are for."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names, as --list gives them")
    parser.add_argument("--seeds", type=int, default=3, help=seeds)
    parser.add_argument("--together", type=int, default=10, help="so many runs by the same batches are trained at once")
    parser.add_argument("--list", action="store_true", help="list the runs and whether they are done")
    parser.add_argument("--page", action="store_true", help=f"measure nothing: write {page}")
    return parser.parse_args()


def work(options, kind, wanted, kind_of, train):
    """Lists those of the runs wanted that the options choose, or trains what is missing of them; returns the exit code."""
    done = runs.done(options.results, kind)
    chosen = [run for run in wanted if any(fnmatch.fnmatch(run.name, pattern) for pattern in options.only)]
    if options.list:
        for run in chosen:
            print(f"{'done' if run in done else '-':5} {run.name}")
        return 0
    torch.set_num_threads(1)
    data = {job: [KINDS[job].load(split) for split in ("train", "test")] for job in {run.job for run in chosen}}
    groups = {}
    for run in chosen:
        if run not in done:
            groups.setdefault(kind_of(run), []).append(run)
    for group in groups.values():
        for begin in range(0, len(group), options.together):
            together = group[begin:begin + options.together]
            for run, result in zip(together, train(together, *data[together[0].job])):
                runs.add(options.results, result)
                print(f"{run.name}: K {result['period']}, {result['accuracy']:.2f} %, {result['test_loss']:.3f}", flush=True)
    return 0


# ---- what the page has

def measured(path, kind=Run):
    """{run without its seed: {seed: result}}"""
    found = {}
    for run, result in runs.done(path, kind).items():
        found.setdefault(dataclasses.replace(run, seed=0), {})[run.seed] = result
    return found


def synchronous(found, job, optimizer):
    """{seed: result} of synchronous training, with which every number of workers trains the same: here by one, of the other
    jobs by DistributedDataParallel with two."""
    if job == "linear":
        return found.get(Run("none", optimizer, 1, period=1, fragments=1), {})
    lines = accuracy_groups(accuracy.RESULTS, job).get((2, optimizer, accuracy.SYNCHRONOUS, 0.0), {})
    return {seed: {"accuracy": line["accuracy"][-1], "test_loss": line["test_loss"][-1]} for seed, line in lines.items()}


def compared(job, results, others):
    """Mean difference over the seeds that both have: points, or nats of the GPT; "" without any."""
    measure, digits = ("test_loss", 3) if job == "gpt" else ("accuracy", 2)
    both = [results[seed][measure] - others[seed][measure] for seed in sorted(results) if seed in others]
    return f"{statistics.mean(both):+.{digits}f}" if both else ""


def rates_table(found, job):
    measure, title, digits = ("test_loss", "test loss, nats", 3) if job == "gpt" else ("accuracy", "accuracy, %", 2)
    rows = []
    for run in sorted((run for run in found if run.coverage and run.job == job), key=lambda run: (
            run.coverage, run.optimizer != "sgd", run.workers, run.outer, CODECS.index(run.codec), run.decay)):
        results = found[run]
        int4 = found.get(dataclasses.replace(run, codec="int4", outer=0.0, decay=1.0), {})
        rows.append([f"{run.coverage:g}", run.optimizer, str(run.workers), told(run), str(results[min(results)]["period"]),
                     f"{statistics.mean(each[measure] for each in results.values()):.{digits}f}",
                     " ".join(f"{results[seed][measure]:.{digits}f}" for seed in sorted(results)),
                     compared(job, results, synchronous(found, job, run.optimizer)),
                     "" if results is int4 else compared(job, results, int4),
                     f"{max(each['spread'] for each in results.values()):.2g}"])
    return markdown(["coverage rate", "optimizer", "workers", "codec", "K", f"mean {title}", "seeds", "minus synchronous",
                     "minus `int4`", "spread"], rows)


def told(run):
    codec = f"{100 * density_of(run.codec):g} % of the values, 2 bits" if density_of(run.codec) else f"`{run.codec}`"
    return (codec + (f", outer momentum {run.outer:g}" if run.outer else "")
            + (f", decay {run.decay:g}" if run.decay < 1 else ""))


def of_periods(found, job):
    """{(workers, optimizer, fragments): {K: {seed: result}}}"""
    groups = {}
    for run, results in found.items():
        if run.period and run.workers > 1 and run.job == job:
            groups.setdefault((run.workers, run.optimizer, run.fragments), {})[run.period] = results
    return dict(sorted(groups.items(), key=lambda entry: (entry[0][2], entry[0][1] != "sgd", entry[0][0])))


def periods_table(found, job):
    groups = of_periods(found, job)
    rows = [[str(period), *(compared(job, group[period], synchronous(found, job, key[1])) if period in group else ""
                            for key, group in groups.items())]
            for period in sorted({period for group in groups.values() for period in group})]
    return markdown(["K", *(f"{workers}, {optimizer}{of(fragments)}" for workers, optimizer, fragments in groups)], rows)


def of(fragments):
    return f", {fragments} fragment{'s' * (fragments > 1)}" if fragments else ""


def draw(found, path):
    """Points above or below synchronous training, over K."""
    left, right, top, base, low, high = 60, 640, 30, 330, -8.0, 1.0
    x = {period: left + 30 + (right - left - 60) * place / (len(PERIODS) - 1) for place, period in enumerate(PERIODS)}

    def y(points):
        return base - (base - top) * (max(points, low) - low) / (high - low)

    parts = [f'<text class="title" x="{left}" y="18">Test accuracy minus synchronous training, points, over K; '
             'what is below -8 at -8</text>']
    for points in range(int(low), int(high) + 1):
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{y(points):.1f}" y2="{y(points):.1f}"/>'
                     f'<text x="{left - 8}" y="{y(points) + 4:.1f}" text-anchor="end">{points}</text>')
    parts += [f'<text x="{place:.1f}" y="{base + 18}" text-anchor="middle">{period}</text>' for period, place in x.items()]
    for number, ((workers, optimizer, fragments), group) in enumerate(of_periods(found, "linear").items()):
        others = synchronous(found, "linear", optimizer)
        line = [(x[period], y(float(compared("linear", group[period], others)))) for period in sorted(group)]
        look = f'class="curve" stroke="{COLORS[number % len(COLORS)]}"' + DASHES.get(fragments, "")
        at, place = top + 12 + 20 * number, right + 20
        parts.append(f'<polyline {look} points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in line)}"/>'
                     f'<line {look} x1="{place}" x2="{place + 24}" y1="{at}" y2="{at}"/>'
                     f'<text x="{place + 30}" y="{at + 4}">{workers} workers, {optimizer}{of(fragments)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 250} {base + 40}">'
    path.write_text("\n".join([head, STYLE, *parts, "</svg>"]) + "\n")


def sections():
    """[(name of its section, what stands there)], of the jobs that were trained."""
    found = measured(RESULTS)
    return [(f"{name} {job}", table(found, job)) for name, table, asked in (
                ("slow links", rates_table, "coverage"), ("periods", periods_table, "period"))
            for job in JOBS if any(run.job == job and run.workers > 1 and getattr(run, asked) for run in found)]


def main():
    options = parsed(__doc__, RESULTS, "of the codecs; periods have one", "the tables and the picture")
    if options.page:
        for section in sections():
            replace_section(PAGE, *section)
        draw(measured(RESULTS), PICTURE)
        return 0
    return work(options, Run, all_runs(options.seeds), kind_of, train)


if __name__ == "__main__":
    sys.exit(main())
