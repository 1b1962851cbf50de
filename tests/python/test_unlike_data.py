"""What bench/unlike_data.py trains is what it says, and its page shows what was measured."""

import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import runs  # noqa: E402
import training_tables  # noqa: E402
import unlike_data  # noqa: E402
from unlike_data import COMMON, Run  # noqa: E402

LABELS = torch.arange(2000) % 10


def fleet(run):
    """On a few pictures of noise."""
    images = torch.randint(256, (2000, 28, 28), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return unlike_data.Fleet(run, 1, (images, LABELS))


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("alpha", [0.5, 0.1])
def test_each_picture_has_one_owner_and_owners_have_equally_many(alpha, workers):
    owned = unlike_data.dealt(LABELS, alpha, workers, seed=0)
    assert torch.cat(owned).sort().values.tolist() == list(range(2000))
    assert all(abs(len(own) - 2000 / workers) <= 10 for own in owned)
    assert max(LABELS[owned[0]].bincount(minlength=10)) > 2 * 200 / workers * 0.7  # not as in shuffled data
    assert all(a.equal(b) for a, b in zip(owned, unlike_data.dealt(LABELS, alpha, workers, seed=0)))


def test_classes_are_apart():
    shares = unlike_data.shares_of(Run(workers=4), (LABELS, LABELS))
    assert [(set((labels // 5).tolist()), part, parts) for (_, labels), part, parts in shares] == [
        ({0}, 0, 2), ({1}, 0, 2), ({0}, 1, 2), ({1}, 1, 2)]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_averages_tell_the_mean_gradient_and_what_is_a_workers_own(optimizer):
    run = Run(method=COMMON, optimizer=optimizer, strength=1.0, period=2, on_time=True)
    made = fleet(run)
    method = unlike_data.Common(run, made, 0)
    gradients = torch.randn(made.values.shape[1:], generator=torch.Generator().manual_seed(2))
    for iteration in range(4):
        made.values.grad = gradients[None].clone()
        if iteration < 2:
            unlike_data.synchronous_iteration(made, [method])
        else:
            unlike_data.late_iteration(made, [method], iteration)
    mean = gradients.mean(0)
    assert torch.allclose(method.own, gradients - mean, atol=1e-3)
    assert torch.allclose(method.first, (1 - 0.9 ** 3 if optimizer == "sgd" else 1) * mean, atol=1e-3)  # momentum's beginning
    assert torch.allclose(*method.values, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_common_state_begins_as_the_optimizer_does(optimizer):
    trained = []
    for method in (unlike_data.SYNCHRONOUS, COMMON):
        run = Run(method=method, optimizer=optimizer, period=1)
        made = fleet(run)
        each = [unlike_data.METHODS[method](run, made, 0)]
        made.backward()
        unlike_data.synchronous_iteration(made, each)
        trained.append(made.values.detach().clone())
    start = fleet(run).values.detach()
    assert torch.allclose(trained[1] - start, trained[0] - start, atol=1e-5)


def test_results_are_of_runs_that_can_be_made_again_and_the_page_shows_them():
    done = runs.done(unlike_data.RESULTS, Run)
    assert set(done) <= set(unlike_data.all_runs(3))
    for name, content in unlike_data.sections():
        assert training_tables.with_section(unlike_data.PAGE, name, content) == unlike_data.PAGE.read_text(), (
            f"{name}: bench/unlike_data.py --page")
