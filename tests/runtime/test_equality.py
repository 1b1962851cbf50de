"""Ranks that went different ways are found; copies and files hold the updates that are under way."""

import copy
import io

import torch
from torch import distributed, nn

import ranks
from models import batch, cluster, make_net, parameters, train, workload

CORRECTED = ("local", "corrected")  # finish() averages what ranks stepped on their own


def all_schemes():
    from gradweave import core

    return [(row["name"], row["consistency"]) for row in core.schemes() if row["name"] != "auto"]


def wrapped(scheme, seed=0, **arguments):
    import gradweave
    from gradweave import core

    model = make_net(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    plan = core.make_plan(workload(), cluster(distributed.get_world_size()), scheme)
    return gradweave.wrap(model, optimizer, plan=plan, timeout=20.0, **arguments)


def other_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.06


def set_by_hand(model, optimizer):
    model.gradweave.synchronize()
    model.wide.bias.data.add_(1.0)


def apart(rank, schemes, check):
    """{(scheme, what rank 1 does alone): what this rank was told, and when}."""
    import gradweave
    from gradweave import equality

    equality.CHECK_EVERY = 4
    said = {}
    for scheme, _ in schemes:
        for does in (other_rate, set_by_hand):
            distributed.barrier()
            model, optimizer = wrapped(scheme, check=check)
            train(model, optimizer, rank, 2)
            if rank == 1:
                does(model, optimizer)
            try:
                train(model, optimizer, rank, 4, first=2)
                gradweave.finish(model)
                said[scheme, does.__name__] = "accepted"
            except gradweave.InvalidInput as error:
                said[scheme, does.__name__] = str(error)
            model.gradweave.close(ValueError("refused"))
    return said


def test_finish_names_the_ranks_that_went_another_way():
    schemes = all_schemes()
    for said in ranks.run(apart, 3, schemes=schemes, check=False):
        for scheme, effect in schemes:
            for does in ("other_rate", "set_by_hand"):
                words = said[scheme, does]
                if effect in CORRECTED:
                    assert words == "accepted", (scheme, does, words)
                else:
                    differ = "finish(): the ranks' parameters are not equal: those of rank 1 differ from those of ranks 0 2"
                    assert differ in words, scheme


def test_the_check_finds_it_in_mid_training():
    schemes = [("ddp", "exact"), ("dear", "exact"), ("deft", "delayed")]
    for said in ranks.run(apart, 3, schemes=schemes, check=True):
        for key, words in said.items():
            assert words.startswith("iteration 4: the ranks' parameters are not equal"), (key, words)
            assert "those of rank 1 differ" in words


def copied(rank, schemes):
    wrong = []
    for scheme, _ in schemes:
        model, optimizer = wrapped(scheme)
        for step in range(6):
            optimizer.zero_grad()
            x, y = batch(rank, step)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step % 2:
                made = copy.deepcopy(model)
            else:
                file = io.BytesIO()
                torch.save(model, file)
                file.seek(0)
                made = torch.load(file, weights_only=False)
            model.gradweave.synchronize()
            now = parameters(model)
            wrong += [(scheme, step, name) for name, value in made.named_parameters() if not torch.equal(now[name], value)]
            # What synchronize() does, a list of parameters from before sees, too.
            wrong += [(scheme, step, name)
                      for name, p in zip(now, model.gradweave.parameters) if not torch.equal(now[name], p)]
        model.gradweave.close()
    return wrong


def test_copies_and_files_hold_the_updates_that_were_under_way():
    assert ranks.run(copied, 2, schemes=all_schemes()) == [[], []]
