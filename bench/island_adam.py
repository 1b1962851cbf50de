"""What it costs AdamW that each island steps by its own part of the batch: the GPT of bench/accuracy.py, clipped and at its
best learning rate, trained by two islands of one rank on this machine.

Prints how many next bytes of held-out text are right, and the loss in nats, by each choice of gradweave.wrap(moments=).

    .venv/bin/python bench/island_adam.py            # three minutes on two idle processors
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import accuracy
import gradweave
from gradweave.lab import training
from gradweave.lab.meeting import Meeting

JOB, OPTIMIZER, TIMES, NORM = "gpt", "adamw", 2.0, 1.0
ISLANDS = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("measured", "local"), default=["measured", "local"])
    parser.add_argument("--period", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--island", help=argparse.SUPPRESS)  # for the islands
    options = parser.parse_args()
    if options.island:
        island(**json.loads(options.island), period=options.period, seed=options.seed)
        return
    for moments in options.only:
        with tempfile.TemporaryDirectory() as folder:
            meeting = Meeting(Path(folder))
            given = {name: str(value) for name, value in meeting.given.items()}
            islands = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--island", json.dumps(
                {"number": number, "moments": moments, "given": given})]) for number in range(ISLANDS)]
            failed = [each.wait() for each in islands]
            meeting.end()
            if any(failed):
                sys.exit(1)


def island(number, moments, given, period, seed):
    torch.set_num_threads(1)
    recipe = training.recipe_of(JOB, OPTIMIZER, batch_size=accuracy.GLOBAL_BATCH[JOB] // ISLANDS, seed=seed)
    job = recipe.make(recipe.kind.load("train"), number, ISLANDS)
    rate = TIMES * job.optimizer.param_groups[0]["lr"]
    model, optimizer = gradweave.wrap(job.model, job.optimizer, **given, island=f"island {number}", moments=moments,
                                      between={"period": period}, report=False)
    islands = model.gradweave.islands
    while len(islands.names) < ISLANDS:
        islands.wait()
    iterations = accuracy.SCHEDULED[JOB][1] * accuracy.ITERATIONS[JOB]
    for iteration in range(1, iterations + 1):
        optimizer.param_groups[0]["lr"] = rate * accuracy.learning_rate(accuracy.FALLING, iteration / iterations)
        inputs, targets = next(job.batches)
        optimizer.zero_grad()
        job.loss(model(inputs), targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
        optimizer.step()
    gradweave.finish(model)
    if number == 0:
        right, loss = recipe.kind.evaluate(model, recipe.kind.load("test"))
        print(f"{moments}: {right:.2f} %, {loss:.3f}, {islands.averages} averages", flush=True)
    model.gradweave.close()


if __name__ == "__main__":
    main()
