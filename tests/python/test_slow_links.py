"""What bench/slow_links.py trains is what the engine does, and its page shows what was measured."""

import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import groups  # noqa: E402
import runs  # noqa: E402
import slow_links  # noqa: E402
import training_tables  # noqa: E402
from slow_links import Run  # noqa: E402

from gradweave.lab import training  # noqa: E402


@pytest.mark.parametrize("count", [5, 256, 1000])
@pytest.mark.parametrize("codec", ["int8", "int4", "int2", "ef_signsgd"])
def test_codecs_are_the_engines(codec, count):
    values = torch.randn(3, count, generator=torch.Generator().manual_seed(count))
    mine = slow_links.decoded(codec, values)
    engines = torch.stack([groups.decoded(codec, row, 7) for row in values])
    if codec in ("int2", "ef_signsgd"):
        assert torch.allclose(mine, engines, rtol=1e-5)
        return
    limit = 2 ** (groups.BITS[codec] - 1) - 1  # other random numbers: both are one of the two neighbours
    scale = torch.cat([part.abs().amax(1, keepdim=True).expand_as(part) / limit for part in values.split(256, 1)], 1)
    for read in (mine, engines):
        assert ((read - values).abs() <= 1.001 * scale).all()
        assert torch.allclose(read / scale, (read / scale).round(), atol=1e-3)
    many = torch.stack([slow_links.decoded(codec, values) for _ in range(400)])
    assert ((many.mean(0) - values).abs() <= 0.15 * scale).all()


def test_of_few_values_the_largest_are_sent_as_two_magnitudes():
    values = torch.tensor([[0.1, -8.0, 0.0, 6.0, -1.0, 2.0, 0.2, 0.3, 0.1, 0.1]])
    sent, = slow_links.decoded("0.4 of 2 bits", values)
    assert sent.tolist() == [0, -7, 0, 7, -1.5, 1.5, 0, 0, 0, 0]
    assert slow_links.share_of_bytes("0.01 of 2 bits", 4) == pytest.approx(2 * (40.96 * 14 + 64) / (4096 * 32))


def test_averages_keep_local_progress_and_move_the_anchor():
    values, places = torch.zeros(2, 3), torch.tensor([0, 2])
    averages = slow_links.Averages(Run("none", "sgd", 2, period=1), values)
    values[0] += torch.tensor([1.0, 5.0, 2.0])
    sent = averages.send(places)
    values[0] += 10  # meanwhile
    averages.land(places, sent)
    assert values.tolist() == [[10.5, 15.0, 11.0], [0.5, 0.0, 1.0]]
    assert averages.anchor.tolist() == [0.5, 0.0, 1.0]
    assert averages.drain() > 0
    assert values.tolist() == 2 * [[5.5, 7.5, 6.0]]


@pytest.mark.parametrize("workers", [2, 4])
def test_what_a_codec_drops_comes_later(workers):
    values = torch.randn(workers, 1000, generator=torch.Generator().manual_seed(workers))
    averages = slow_links.Averages(Run("int2", "sgd", workers, period=1), values)
    mean, places = values.mean(0), torch.arange(1000)
    averages.anchor.zero_()
    for _ in range(40):
        averages.land(places, averages.send(places))
    assert (values - mean).norm() < 0.02 * values.norm()


def fleet(run, count=1):
    """On a few pictures of noise."""
    generator = torch.Generator().manual_seed(1)
    data = [torch.randint(256, (256, 28, 28), generator=generator, dtype=torch.uint8), torch.arange(256) % 10]
    return slow_links.Fleet(run, count, [(data, rank, run.workers) for rank in range(run.workers)]), data


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_one_worker_trains_as_torch_does(optimizer):
    made, data = fleet(Run("none", optimizer, 1))
    kind = slow_links.KINDS["linear"]
    recipe = training.Recipe(kind, optimizer, kind.learning_rate(optimizer), batch_size=128)
    job = recipe.make(data)
    training.train(job, 5)
    for _ in range(5):
        made.backward()
        made.step()
    for name, parameter in made.model_of(0).named_parameters():
        assert torch.allclose(parameter, dict(job.model.named_parameters())[name], atol=1e-5)


@pytest.mark.parametrize("workers", [2, 4])
def test_adamw_divides_by_the_moment_of_the_whole_batch_as_workers_measure_it(workers):
    made, _ = fleet(Run("none", "adamw", workers))
    values, rate, decay = made.values.detach().clone(), made.group["lr"], made.group["weight_decay"]
    mean, square, share = torch.zeros_like(values), torch.zeros_like(values), 1.0
    for step in range(1, 11):
        made.backward()
        gradients = made.values.grad
        if step == 1:
            sample = gradients[0, :, ::gradients.shape[2] // 4096].double()
        if step == 9:  # by the sample of the first iteration
            share = max((sample.mean(0).square().sum() / sample.square().mean(0).sum()).item(), 1 / workers)
            assert share < 0.9
        mean.lerp_(gradients, 0.1)
        square.lerp_(gradients**2, 0.001)
        divided_by = share * square / (1 - 0.999**step)
        values = (1 - rate * decay) * values - rate * mean / (1 - 0.9**step) / (divided_by.sqrt() + 1e-8)
        made.step()
        assert made.group["lr"] == rate and torch.allclose(made.values, values, atol=0.02 * rate)


def test_messages_are_the_plans():
    run = Run("int4", "sgd", 4, coverage=64.0)
    made, _ = fleet(run)
    messages, period = slow_links.messages_of(run, made)
    assert period == 9 and {message.late for message in messages} == {1}
    sent = torch.cat([message.places for message in messages]).bincount(minlength=made.values.shape[2])
    assert sent[made.begin_of("hidden.weight")] == 1
    assert sent[made.begin_of("classes.bias")] > 1 == sent.min()  # the smallest go more often


def test_results_are_of_runs_that_can_be_made_again_and_the_page_shows_them():
    done = runs.done(slow_links.RESULTS, Run)
    assert set(done) <= set(slow_links.all_runs(3))
    for name, content in slow_links.sections():
        assert training_tables.with_section(slow_links.PAGE, name, content) == slow_links.PAGE.read_text(), (
            f"{name}: bench/slow_links.py --page")
