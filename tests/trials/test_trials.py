"""Stock models and loops under every scheme: exact ones give DistributedDataParallel's bits, the others equal ranks, or every
rank is refused. Second tier: every scheme, and the models of transformers, GRADWEAVE_SLOW=1 with
scripts/requirements-trials.txt installed.
"""

import functools
import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime")]

import frameworks  # noqa: E402  the path is set above
import loops  # noqa: E402
import ranks  # noqa: E402

STEPS = 10
needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None,
                                        reason="pip install -r scripts/requirements-trials.txt")


def by_hand(trial, rank, steps, wrap):
    """The loop of a trial of loops.py."""
    import gradweave

    model, optimizer, step = getattr(loops, trial)()
    run, optimizer = wrap(model, optimizer)
    for number in range(steps):
        torch.manual_seed(100 * rank + number)  # of dropout
        optimizer.zero_grad()
        limit = step(run, rank, number)
        if limit is not None and run is model:
            gradweave.clip_grad_norm_(run, limit)
        elif limit is not None:
            torch.nn.utils.clip_grad_norm_(run.parameters(), limit)
        optimizer.step()


def trained(rank, trial, scheme):
    """The parameters after the trial's loop; `scheme` None: DistributedDataParallel."""
    import gradweave

    wrapped = []

    def wrap(model, optimizer):
        wrapped.append(model)
        if scheme is None:
            return torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True), optimizer
        return gradweave.wrap(model, optimizer, scheme=scheme, links=[gradweave.EmulatedLink(50, 0.001)], timeout=30,
                              warm_up=1, profile_iterations=2, report=False)

    torch.manual_seed(7)
    train = getattr(frameworks, trial, functools.partial(by_hand, trial))
    train(rank, STEPS, wrap)
    model, = wrapped
    if scheme is not None:
        gradweave.finish(model)
        assert model.gradweave.counters["iterations"] >= STEPS  # more where some have two backward passes
        model.gradweave.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def all_schemes(rank, trial, schemes):
    """{scheme: "exact", "equal ranks", "refused: ...", or what is wrong}, alike on all ranks."""
    import gradweave
    from gradweave import core

    effect = {row["name"]: row["consistency"] for row in core.schemes()}
    expected, found = trained(rank, trial, None), {}
    for scheme in schemes or effect:
        try:
            own = trained(rank, trial, scheme)
        except gradweave.InvalidInput as error:
            found[scheme] = f"refused: {error}"
            own = torch.zeros_like(expected)
        first = own.clone()
        distributed.broadcast(first, 0)
        if not torch.equal(first, own):
            found[scheme] = "ranks differ"
        elif scheme not in found:
            found[scheme] = "exact" if torch.equal(own, expected) else "equal ranks"
            if effect[scheme] == "exact" and found[scheme] != "exact":
                found[scheme] = f"other bits than DistributedDataParallel: {(own - expected).abs().max().item():.1e}"
    return found


def check(trial, schemes=None, refused=(), either=()):
    """`refused` are the schemes that every rank refuses; of `either` the measured profile decides."""
    results = ranks.run(all_schemes, 2, timeout=500, trial=trial, schemes=schemes)
    assert all(found.keys() == results[0].keys() for found in results)
    wrong = {scheme: [found[scheme] for found in results] for scheme in results[0]
             if any(found[scheme] not in ("exact", "equal ranks") for found in results)}
    assert set(refused) <= set(wrong) <= set(refused) | set(either), wrong
    for scheme in wrong:
        assert all(what.startswith("refused: ") for what in wrong[scheme]), wrong[scheme]


# Steps in the backward, before the norm is known.
CLIPPING_REFUSED = {"local_sgd", "partial_sgd", "dreamddp"}
# torch's own clipping needs all gradients in step().
EDITS_REFUSED = CLIPPING_REFUSED | {"p3", "bytescheduler", "us_byte", "dear", "optimal"}
# Lightning knows of no no_sync() with one device.
ACCUMULATION_REFUSED = EDITS_REFUSED | {"deft", "delayed_averaging"}


@pytest.mark.parametrize("trial", ["mnist_with_a_schedule", "resnet"])
def test_loops_of_torchs_examples(trial):
    check(trial, ["ddp", "p3", "dear", "deft", "covap", "dreamddp", "delayed_averaging", "auto"])


@pytest.mark.slow
@pytest.mark.parametrize("trial, refused",
                         [("mnist_with_a_schedule", ()), ("resnet", ()), ("word_language_model", CLIPPING_REFUSED)])
def test_loops_of_torchs_examples_under_every_scheme(trial, refused):
    check(trial, refused=refused)


@pytest.mark.slow
@needs_transformers
@pytest.mark.parametrize("trial, refused",
                         [("gpt2", ()), ("bert_with_an_unused_pooler", ()), ("vit", ()), ("t5", CLIPPING_REFUSED)])
def test_models_of_transformers_under_every_scheme(trial, refused):
    check(trial, refused=refused)


@pytest.mark.parametrize("trial", ["lightning_trainer", "accelerate_first"])
def test_loops_of_frameworks(trial):
    check(trial, ["ddp", "dear"])


@pytest.mark.slow
@pytest.mark.parametrize("trial, refused, either", [
    ("lightning_trainer", (), ()), ("lightning_fabric", (), ()), ("lightning_fabric_first", (), ()),
    ("lightning_clipping", EDITS_REFUSED, ()), ("lightning_accumulating", ACCUMULATION_REFUSED, ("covap",))])
def test_lightning_under_every_scheme(trial, refused, either):
    check(trial, refused=refused, either=either)


@pytest.mark.slow
@pytest.mark.parametrize("trial", ["accelerate_alone", "accelerate_first", "accelerate_distributed"])
def test_accelerate_under_every_scheme(trial):
    check(trial)


def twice(rank, trial):
    """{scheme: what the loop said} where a framework puts DistributedDataParallel around a wrapped model."""
    import gradweave
    from gradweave import core

    said = {}
    for row in core.schemes():
        with pytest.raises(gradweave.InvalidInput) as error:
            trained(rank, trial, row["name"])
        said[row["name"]] = str(error.value)
    return said


def test_a_second_communication_by_accelerate_is_refused():
    for said in ranks.run(twice, 2, trial="accelerate_around"):
        assert all("DistributedDataParallel was put around the model" in words and "gradweave.integrations does it"
                   in words for words in said.values()), said
