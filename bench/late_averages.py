"""What it costs AdamW that averages come late: two models of half the batch in one process, by plain PyTorch alone.

Prints how many next bytes are right and the loss, in nats, on held-out text after as many iterations of the GPT as
bench/accuracy.py trains: synchronous training, no averages, averages every K iterations, and the same used K iterations late.

    .venv/bin/python bench/late_averages.py            # four minutes on an idle processor
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
    options = parser.parse_args()
    torch.set_num_threads(1)
    kind = training.recipe_of(JOB).kind
    train_set, test_set = kind.load("train"), kind.load("test")

    def jobs(count):
        recipe = training.recipe_of(JOB, OPTIMIZER, batch_size=accuracy.GLOBAL_BATCH[JOB] // count)
        return [recipe.make(train_set, rank, count) for rank in range(count)]

    def tell(what, job):
        right, loss = kind.evaluate(job.model, test_set)
        print(f"{what}: {right:.2f} %, {loss:.3f}", flush=True)

    whole, = jobs(1)
    training.train(whole, options.iterations)
    tell("synchronous", whole)
    alone, _ = jobs(WORKERS)
    training.train(alone, options.iterations)
    tell("no averages", alone)
    for late in (False, True):
        met = jobs(WORKERS)
        with_averages(met, options.iterations, options.period, late)
        tell(f"averages every {options.period}{', as late' if late else ''}", met[0])


def with_averages(jobs, iterations, period, late):
    """Trains with x += mean(sent) - sent once in `period` iterations: of what was sent then, or a period before."""
    sent = None
    for _ in range(iterations // period):
        for job in jobs:
            training.train(job, period)
        with torch.no_grad():
            if not late:
                sent = copies(jobs)
            if sent is not None:
                correct(jobs, sent)
            sent = copies(jobs)
    with torch.no_grad():
        correct(jobs, copies(jobs))


def copies(jobs):
    """[of each job: copies of its parameters]"""
    return [[parameter.detach().clone() for parameter in job.model.parameters()] for job in jobs]


def correct(jobs, sent):
    means = [sum(each) / len(each) for each in zip(*sent)]
    for job, own in zip(jobs, sent):
        for parameter, mean, before in zip(job.model.parameters(), means, own):
            parameter.add_(mean - before)


if __name__ == "__main__":
    main()
