"""Stock models and loops under every scheme: exact ones give DistributedDataParallel's bits, the others equal ranks, or every
rank is refused. The models of transformers are second tier: GRADWEAVE_SLOW=1, with scripts/requirements-trials.txt installed.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime")]

import loops  # noqa: E402  the path is set above
import ranks  # noqa: E402

STEPS = 10
slow = pytest.mark.skipif(not os.environ.get("GRADWEAVE_SLOW"), reason="a minute each; GRADWEAVE_SLOW=1 runs it")
needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None,
                                        reason="pip install -r scripts/requirements-trials.txt")


def trained(rank, trial, scheme):
    """The parameters after the trial's loop; `scheme` None: DistributedDataParallel."""
    import gradweave

    torch.manual_seed(7)
    model, optimizer, step = getattr(loops, trial)()
    if scheme is None:
        run = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    else:
        run, optimizer = gradweave.wrap(model, optimizer, scheme=scheme, links=[gradweave.EmulatedLink(50, 0.001)], timeout=30,
                                        warm_up=1, profile_iterations=2)
    for number in range(STEPS):
        torch.manual_seed(100 * rank + number)  # of dropout
        optimizer.zero_grad()
        limit = step(run, rank, number)
        if limit is not None:
            clip = torch.nn.utils.clip_grad_norm_ if scheme is None else gradweave.clip_grad_norm_
            clip(run.parameters() if scheme is None else run, limit)
        optimizer.step()
    if scheme is not None:
        gradweave.finish(run)
        assert run.gradweave.counters["iterations"] == STEPS
        run.gradweave.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def all_schemes(rank, trial, schemes):
    """{scheme: "exact", "equal ranks", "refused: ...", or what is wrong}, alike on all ranks."""
    import gradweave
    from gradweave import core

    consistency = {row["name"]: row["consistency"] for row in core.schemes()}
    expected, found = trained(rank, trial, None), {}
    for scheme in schemes or consistency:
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
            if consistency[scheme] == "exact" and found[scheme] != "exact":
                found[scheme] = f"other bits than DistributedDataParallel: {(own - expected).abs().max().item():.1e}"
    return found


def check(trial, schemes=None, refused=()):
    results = ranks.run(all_schemes, 2, timeout=500, trial=trial, schemes=schemes)
    assert all(found.keys() == results[0].keys() for found in results)
    wrong = {scheme: [found[scheme] for found in results] for scheme in results[0]
             if any(found[scheme] not in ("exact", "equal ranks") for found in results)}
    assert set(wrong) == set(refused), wrong
    for scheme in refused:
        assert all(what.startswith("refused: ") for what in wrong[scheme]), wrong[scheme]


# Steps in the backward, before the norm is known.
CLIPPING_REFUSED = {"local_sgd", "partial_sgd", "dreamddp"}


@pytest.mark.parametrize("trial", ["mnist_with_a_schedule", "resnet"])
def test_loops_of_torchs_examples(trial):
    check(trial, ["ddp", "p3", "dear", "deft", "covap", "dreamddp", "delayed_averaging", "auto"])


@slow
@pytest.mark.parametrize("trial, refused",
                         [("mnist_with_a_schedule", ()), ("resnet", ()), ("word_language_model", CLIPPING_REFUSED)])
def test_loops_of_torchs_examples_under_every_scheme(trial, refused):
    check(trial, refused=refused)


@slow
@needs_transformers
@pytest.mark.parametrize("trial, refused",
                         [("gpt2", ()), ("bert_with_an_unused_pooler", ()), ("vit", ()), ("t5", CLIPPING_REFUSED)])
def test_models_of_transformers_under_every_scheme(trial, refused):
    check(trial, refused=refused)
