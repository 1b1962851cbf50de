"""What it costs AdamW that each worker steps by its own part of the batch, where parameters are averaged after every step: one
process, plain PyTorch, no bits and no lateness.

Prints how many next bytes of held-out text are right, and the loss in nats, after the GPT of bench/accuracy.py, its learning
rate rising and falling as there. A worker divides its first moment by the square root of

    synchronous: the second moment of the whole batch's gradient, as with DistributedDataParallel
    local: that of its own part, as torch's AdamW does
    measured: the whole batch's, as samples of all workers' gradients measure it (src/runtime/moment_share.h): the default of
        gradweave.wrap(moments=)
    estimated: the whole batch's, as it estimates it alone, taking for noise what changes from step to step
    over_workers: that of its own part over the number of workers
    averaged: as estimated, of second moments that are averaged over the workers after every step

    .venv/bin/python bench/adam_parts.py            # fifteen minutes on an idle processor
    .venv/bin/python bench/adam_parts.py --only estimated --workers 2 --times 2 --clip
"""

import argparse

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import accuracy
from gradweave import _native
from gradweave.lab import training

JOB, OPTIMIZER = "gpt", "adamw"
MOMENTS = ("synchronous", "local", "measured", "estimated", "over_workers", "averaged")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--only", choices=MOMENTS)
    parser.add_argument("--times", type=float, default=1.0, help="what multiplies the job's learning rate (default: 1)")
    parser.add_argument("--clip", action="store_true", help="each worker clips its gradient to a norm of 1")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kind = training.recipe_of(JOB).kind
    train_set, test_set = kind.load("train"), kind.load("test")
    for moments in [options.only] if options.only else MOMENTS:
        size = accuracy.GLOBAL_BATCH[JOB] // options.workers
        recipe = training.recipe_of(JOB, OPTIMIZER, batch_size=size, seed=options.seed)
        jobs = [recipe.make(train_set, rank, options.workers) for rank in range(options.workers)]
        train(jobs, moments, options.times, options.clip)
        right, loss = kind.evaluate(jobs[0].model, test_set)
        print(f"{moments}: {right:.2f} %, {loss:.3f}", flush=True)


def train(jobs, moments, times, clip=False):
    """Trains the first job's model by all jobs' batches: models that are averaged after every step are one."""
    model, group = jobs[0].model, jobs[0].optimizer.param_groups[0]
    (beta1, beta2), eps, decay = group["betas"], group["eps"], group["weight_decay"]
    iterations = accuracy.SCHEDULED[JOB][1] * accuracy.ITERATIONS[JOB]
    values = parameters_to_vector(model.parameters()).detach()
    stepping = 1 if moments == "synchronous" else len(jobs)
    share = Share(len(jobs))
    first, second = torch.zeros(stepping, len(values)), torch.zeros(stepping, len(values))
    for iteration in range(1, iterations + 1):
        gradients = torch.stack([gradient_of(job, model) for job in jobs])
        if moments == "synchronous":
            gradients = gradients.mean(0, keepdim=True)
        if clip:
            gradients *= (1 / (gradients.norm(dim=1, keepdim=True) + 1e-6)).clamp_max(1)
        if moments == "measured":
            share.see(gradients)
        first.lerp_(gradients, 1 - beta1)
        second.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        if moments == "averaged":
            second.copy_(second.mean(0, keepdim=True).expand_as(second))
        mean, square = first / (1 - beta1 ** iteration), second / (1 - beta2 ** iteration)
        divided_by = share.value * square if moments == "measured" else second_moments(moments, mean, square, beta1, len(jobs))
        step = (mean / (divided_by.sqrt() + eps)).mean(0)
        rate = times * group["lr"] * accuracy.learning_rate(accuracy.FALLING, iteration / iterations)
        values.mul_(1 - rate * decay).sub_(step, alpha=rate)
        vector_to_parameters(values, model.parameters())


def gradient_of(job, model):
    inputs, targets = next(job.batches)
    model.zero_grad()
    job.loss(model(inputs), targets).backward()
    return parameters_to_vector([parameter.grad for parameter in model.parameters()])


class Share:
    """Of one worker's second moment that is the whole batch's. Of the engine's, a sample takes effect one step later."""

    def __init__(self, workers):
        self._workers, self._iterations, self._noise, self.value = workers, 0, _native.GradientNoise(), 1.0

    def see(self, gradients):
        """Those of all workers, one a row, before they step."""
        if self._iterations % 8 == 0:
            self.value = self._noise.share(self._workers)
            sample = gradients[:, ::max(1, gradients.shape[1] // 4096)].double()
            of_mean, of_all = sample.mean(0).square().sum().item(), sample.square().sum().item()
            self._noise.add(of_mean, of_all / self._workers, self._workers, 8)
        self._iterations += 1


def second_moments(moments, mean, square, beta1, workers):
    """The second moments that first moments are divided by the square roots of; both are free of their bias."""
    if moments in ("synchronous", "local"):
        return square
    if moments == "over_workers":
        return square / workers
    left = (1 - beta1) / (1 + beta1)  # of a gradient's variance in its moving mean
    variance = (square - mean * mean).clamp_min(0) / (1 - left)
    return (mean * mean - left * variance).clamp_min(0) + variance / workers


if __name__ == "__main__":
    main()
