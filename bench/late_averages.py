"""What it costs AdamW that averages come late: two models of half the batch in one process, by plain PyTorch alone.

Prints how many next bytes are right and the loss, in nats, on held-out text after as many iterations of the GPT as
bench/accuracy.py trains: synchronous training, no averages, averages every K iterations, and the same used K iterations late,
as on a link that is always busy.
Four remedies can be tried: averages of one fragment of the model after the other, so that each is used after a part of K; a
learning rate that falls; a synchronous beginning; corrections of which a share is applied.

    .venv/bin/python bench/late_averages.py            # four minutes on an idle processor
    .venv/bin/python bench/late_averages.py --only late --period 8 --fragments 4
"""

import argparse

import torch

import accuracy
from gradweave.lab import training

JOB, OPTIMIZER, EPOCHS, WORKERS = "gpt", "adamw", 3, 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--period", type=int, default=2, help="K (default: 2)")
    parser.add_argument("--iterations", type=int, default=EPOCHS * accuracy.ITERATIONS[JOB])
    parser.add_argument("--fragments", type=int, default=1, help="averages are of one of so many fragments, in turn")
    parser.add_argument("--only", choices=["synchronous", "none", "averages", "late"], help="one of the four trainings")
    parser.add_argument("--falling", action="store_true", help="the learning rate rises and falls as in bench/accuracy.py")
    parser.add_argument("--warm-up", type=int, default=0, help="so many iterations first step by the mean of both gradients")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of each correction, which is applied (default: 1)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kind = training.recipe_of(JOB).kind
    train_set, test_set = kind.load("train"), kind.load("test")

    def jobs(count):
        recipe = training.recipe_of(JOB, OPTIMIZER, batch_size=accuracy.GLOBAL_BATCH[JOB] // count, seed=options.seed)
        return [recipe.make(train_set, rank, count) for rank in range(count)]

    for what in [options.only] if options.only else ["synchronous", "none", "averages", "late"]:
        met = jobs(1 if what == "synchronous" else WORKERS)
        train(met, options, averages=what in ("averages", "late"), late=what == "late")
        right, loss = kind.evaluate(met[0].model, test_set)
        print(f"{what}: {right:.2f} %, {loss:.3f}", flush=True)


def train(jobs, options, averages, late):
    """Trains with x += share * (mean(sent) - sent) for each fragment once in `period` iterations: of what is sent then, or was
    sent as the average of the fragment before began."""
    schedule = accuracy.FALLING if options.falling else "constant"
    given, sent = jobs[0].optimizer.param_groups[0]["lr"], None
    fragments = fragments_of([list(job.model.parameters()) for job in jobs], options.fragments)
    begun = 0
    for iteration in range(options.iterations):
        synchronous = iteration < options.warm_up
        rate = given * accuracy.learning_rate(schedule, (iteration + 1) / options.iterations)
        for job in jobs:
            job.optimizer.param_groups[0]["lr"] = rate
            inputs, targets = next(job.batches)
            job.zero_grad()
            job.loss(job.model(inputs), targets).backward()
        with torch.no_grad():
            if synchronous:
                for same in zip(*(job.model.parameters() for job in jobs)):
                    mean = sum(parameter.grad for parameter in same) / len(same)
                    for parameter in same:
                        parameter.grad.copy_(mean)
            for job in jobs:
                job.step()
            if averages and not synchronous and (iteration + 1) * options.fragments // options.period > begun:
                begun += 1
                if late and sent is not None:
                    correct(*sent, options.share)
                fragment = fragments[begun % options.fragments]
                sent = fragment, copies(fragment)
                if not late:
                    correct(*sent, options.share)
    if averages:
        with torch.no_grad():
            for fragment in fragments:
                correct(fragment, copies(fragment))


def fragments_of(models, count):
    """[of each fragment: of each model: its parameters], in order, of about as many elements each."""
    whole, place, fragments = sum(p.numel() for p in models[0]), 0, [[[] for _ in models] for _ in range(count)]
    for same in zip(*models):
        fragment = fragments[min(place * count // whole, count - 1)]
        for parameters, parameter in zip(fragment, same):
            parameters.append(parameter)
        place += same[0].numel()
    return fragments


def copies(fragment):
    return [[parameter.detach().clone() for parameter in parameters] for parameters in fragment]


def correct(fragment, sent, share=1.0):
    means = [sum(each) / len(each) for each in zip(*sent)]
    for parameters, own in zip(fragment, sent):
        for parameter, mean, before in zip(parameters, means, own):
            parameter.add_(share * (mean - before))


if __name__ == "__main__":
    main()
