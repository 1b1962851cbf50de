"""Parts of tensors that are stepped alone: each block is a parameter of its own, with a state of its own, bit for bit."""

import contextlib
import copy
import gc

import pytest
import torch
from torch import distributed, nn

import ranks
from gradweave.stepping import is_twin
from models import batch, cluster, differing, links_cost, make_net, parameters, train, workload
from reference import Reference

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.003),
    "adam one by one": lambda p: torch.optim.Adam(p, lr=0.003, weight_decay=0.01, foreach=False),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.003),
}


def cut(load, parts):
    """(blocks, their class): every tensor in up to `parts` blocks, of different classes 0..parts - 1."""
    blocks, classes = [], []
    for layer in load["layers"]:
        for tensor in layer["tensors"]:
            edges = [tensor["numel"] * p // parts for p in range(parts + 1)]
            for p, (begin, end) in enumerate(zip(edges, edges[1:])):
                if begin < end:
                    blocks.append({"tensor": tensor["name"], "begin": begin, "end": end})
                    classes.append((p + len(tensor["name"])) % parts)
    return blocks, classes


def apply_of(blocks, merges, at=None):
    return {"at": at or {"point": "iteration_end"}, "blocks": blocks, "merges": merges, "source": "reduced_gradient",
            "slices": True}


def op_of(blocks, merges):
    return {"link": "link0", "collective": "all_reduce", "blocks": blocks, "merges": merges,
            "release": {"point": "backward_end", "layer": 0}}


def plan_of(load, iterations, blocks, **more):
    return {"version": 1, "blocks": blocks, "links": [{"name": "link0", "concurrency": 1}], "period": iterations, **more}


def filtered(load, parts=3):
    """As covap: each block every third time, the others into a residual."""
    blocks, classes = cut(load, parts)
    of = [[b for b, k in enumerate(classes) if k == n] for n in range(parts)]
    return plan_of(load, [{"ops": [op_of(of[n], [0])], "applies": [apply_of(of[n], [0])],
                           "dropped": sorted(b for k in range(parts) if k != n for b in of[k])} for n in range(parts)],
                   blocks, residual={"initial": 0.5, "step": 0.1, "every": 2, "cap": 1.0})


def two_delays(load):
    """Half of each tensor by this iteration's gradients, the other by those of the last."""
    blocks, classes = cut(load, 2)
    now, late = ([b for b, k in enumerate(classes) if k == n] for n in (0, 1))
    return plan_of(load, [{"ops": [op_of(now, [0]), op_of(late, [0])],
                           "applies": [apply_of(now, [0]), apply_of(late, [-1])]}], blocks)


def in_forward(load):
    """Half of each tensor at the end, the other before its layer's next forward."""
    blocks, classes = cut(load, 2)
    now, late = ([b for b, k in enumerate(classes) if k == n] for n in (0, 1))
    names = [[tensor["name"] for tensor in layer["tensors"]] for layer in load["layers"]]
    forward = [apply_of([b for b in late if blocks[b]["tensor"] in own], [-1], {"point": "forward_start", "layer": number})
               for number, own in enumerate(names)]
    return plan_of(load, [{"ops": [op_of(now, [0]), op_of(late, [0])],
                           "applies": [apply_of(now, [0])] + [each for each in forward if each["blocks"]]}], blocks)


PLANS = {"filtered": filtered, "two delays": two_delays, "in forward": in_forward}


def beside_the_reference(rank, plans, optimizers, stops):
    import gradweave

    wrong = []
    for name in plans:
        plan = PLANS[name](workload())
        for kind in optimizers:
            for stop in stops:
                expected = make_net(seed=0)
                loop = Reference(expected, OPTIMIZERS[kind], plan, workload())
                for step in range(stop):
                    loop.train_step(*batch(rank, step))
                loop.drain()
                model = make_net(seed=0)
                model, optimizer = gradweave.wrap(model, OPTIMIZERS[kind](model.parameters()), plan=plan)
                train(model, optimizer, rank, stop)
                gradweave.finish(model)  # all ranks equal, or it raises
                wrong += [(name, kind, stop, n) for n in differing(model, expected)]
                model.gradweave.close()
    return wrong


@pytest.mark.parametrize("workers, plans, optimizers", [(2, list(PLANS), ["sgd", "adamw"]),
                                                        (2, ["filtered"], ["adam one by one", "nadam"]),
                                                        (3, ["filtered"], ["adamw"])])
def test_each_block_is_a_parameter_of_its_own(workers, plans, optimizers):
    for wrong in ranks.run(beside_the_reference, workers, plans=plans, optimizers=optimizers, stops=(1, 7)):
        assert not wrong


def checkpoint(rank, folder):
    """A checkpoint holds each slice's own state, and loads into torch's own optimizer."""
    import gradweave

    plan = two_delays(workload())
    results = []
    for interrupted in (False, True):
        model = make_net(seed=0)
        model, optimizer = gradweave.wrap(model, OPTIMIZERS["adamw"](model.parameters()), plan=plan)
        train(model, optimizer, rank, 4)
        gradweave.finish(model)
        if interrupted:
            saved = f"{folder}/{rank}"
            torch.save([model.state_dict(), optimizer.state_dict()], saved)
            model.gradweave.close()
            model = make_net(seed=1)
            model, optimizer = gradweave.wrap(model, OPTIMIZERS["adamw"](model.parameters()), plan=plan, broadcast=False)
            states = torch.load(saved, weights_only=True)
            model.load_state_dict(states[0])
            optimizer.load_state_dict(states[1])
        train(model, optimizer, rank, 4, first=4)
        gradweave.finish(model)
        results.append(parameters(model))
        state = optimizer.state_dict()["state"]
        model.gradweave.close()
    plain = OPTIMIZERS["adamw"](make_net().parameters())
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for p in plain.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    plain.step()
    own = state[4]  # wide.weight
    assert own["exp_avg"].shape == (40, 216)
    assert {begin: int(kept["step"]) for (begin, _), kept in own["slices"].items()} in ({0: 8, 4320: 8}, {4320: 8, 0: 8})
    assert int(plain.state[plain.param_groups[0]["params"][4]]["step"]) == 9
    model = make_net(seed=0)  # and back
    model, optimizer = gradweave.wrap(model, OPTIMIZERS["adamw"](model.parameters()), plan=plan)
    optimizer.load_state_dict(plain.state_dict())
    train(model, optimizer, rank, 1)
    gradweave.finish(model)
    assert {int(kept["step"]) for kept in optimizer.state[model.wide.weight]["slices"].values()} == {10}
    model.gradweave.close()
    return all(torch.equal(results[1][n], value) for n, value in results[0].items())


def test_a_checkpoint_holds_the_state_of_slices(tmp_path):
    assert ranks.run(checkpoint, 2, folder=str(tmp_path)) == [True, True]


def changes_of_plan(rank):
    """From whole tensors to slices, to other slices, to whole tensors: counts of steps go along."""
    import gradweave
    from gradweave import core

    whole = core.make_plan(workload(), cluster(distributed.get_world_size()), "ddp")
    whole["links"][0]["name"] = "link0"
    model = make_net(seed=0)
    model, optimizer = gradweave.wrap(model, OPTIMIZERS["adamw"](model.parameters()), plan=whole)
    weight, counts = model.wide.weight, []
    for number, plan in enumerate((whole, filtered(workload()), filtered(workload(), parts=2), whole)):
        if number:
            model.gradweave.install(plan)
        train(model, optimizer, rank, 6, first=6 * number)
        state = optimizer.state[weight]
        counts.append((int(state["step"]), sorted(int(kept["step"]) for kept in state.get("slices", {}).values())))
    gradweave.finish(model)
    model.gradweave.close()
    return counts


def test_changes_of_plan_keep_the_state():
    for counts in ranks.run(changes_of_plan, 2):
        assert counts == [(6, []), (8, [8, 8, 8]), (11, [11, 11]), (17, [])]


def adamw_of_the_rest(model):
    return [torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=0.01)]


def coupled(rank):
    import gradweave

    model = make_net(seed=0)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    for optimizers, name in (([torch.optim.Adafactor(model.parameters(), lr=0.01)], "Adafactor"),
                             ([torch.optim.Muon(matrices), *adamw_of_the_rest(model)], "Muon")):
        said = f"can't step a part of a tensor.*{name}.*slices=off"
        for asked in ({"plan": filtered(workload())}, {"scheme": "covap", "options": {"slices": "on"}}):
            with pytest.raises(gradweave.InvalidInput, match=said):
                gradweave.wrap(model, optimizers, **asked)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))
        self.used = 0

    def forward(self, x):
        x = self.first(x)
        return sum((expert(x) for number, expert in enumerate(self.experts) if self.used >> number & 1), start=x)


def test_what_is_kept_of_steps_has_an_end(monkeypatch):
    """Experts are used in ever new combinations."""
    import gradweave
    from gradweave import stepping

    expected = None
    for new_ones in (10 ** 9, stepping.NEW_ONES):
        monkeypatch.setattr(stepping, "NEW_ONES", new_ones)
        torch.manual_seed(0)
        model = Experts()
        plan = filtered(workload(model), parts=2)
        model, optimizer = gradweave.wrap(model, OPTIMIZERS["adamw"](model.parameters()), plan=plan, report=False,
                                          find_unused_parameters=True)
        for step in range(600):
            model.used = step * 37 % 4096
            model(torch.randn(2, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        gradweave.finish(model)
        found = parameters(model)
        expected = expected or found
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        known = 0
        for number in range(1, 1000):
            with contextlib.suppress(IndexError):
                known += len(model.gradweave.engine.subset_slices(number)) > 0
        twins = [each for each in gc.get_objects() if isinstance(each, torch.optim.Optimizer) and is_twin(each)]
        model.gradweave.close()
        if new_ones < 600:
            assert 0 < known <= 300 and 0 < len(twins) <= 600
        del model, optimizer, twins
        gc.collect()


def test_an_optimizer_that_couples_elements_is_refused_such_a_plan():
    ranks.run(coupled, 2)


# ---- clipping


def clipped(rank, plans):
    """(plan, norms, how far the parameters went in each iteration as a part of what clipping allows)."""
    import gradweave

    found = []
    for name in plans:
        model = make_net(seed=0)
        model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.5), plan=PLANS[name](workload()))
        norms, ways = [], []
        for step in range(6):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            before = [p.detach().clone() for p in model.parameters()]
            norms.append(gradweave.clip_grad_norm_(model, 0.01).item())
            optimizer.step()
            model.gradweave.synchronize()
            ways.append(torch.cat([(p - q).flatten() for p, q in zip(model.parameters(), before)]).norm().item() / 0.005)
        gradweave.finish(model)  # all ranks equal, or it raises
        model.gradweave.close()
        found.append((name, norms, ways))
    return found


def test_the_norm_is_of_what_is_stepped():
    mine, theirs = ranks.run(clipped, 2, plans=["filtered", "two delays"])
    assert mine == theirs
    for name, norms, ways in mine:
        assert min(norms) > 0.01 and ways == pytest.approx([1.0] * len(ways), rel=1e-3), name


def clipped_by_torch(rank):
    import gradweave

    torch.manual_seed(0)
    model = Heavy()
    links_cost(us_per_byte=5e-4)
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), "covap", warm_up=1,
                                      profile_iterations=2, timeout=20, options={"interval": 3})
    with pytest.raises(gradweave.InvalidInput, match="changes gradients between .* clip with gradweave.clip_grad_norm_"):
        for step in range(4):
            x, y = batch(rank, step, size=2)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    model.gradweave.close()


def test_torchs_clipping_is_refused_where_a_part_is_sent():
    ranks.run(clipped_by_torch, 2)


# ---- a large tensor


def sliced(plan):
    return any(apply.get("slices") for iteration in plan["period"] for apply in iteration["applies"])


class Heavy(nn.Module):
    """VGG-19's proportions: one layer has nearly all parameters, more than DistributedDataParallel puts into a bucket."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc1 = nn.Linear(4 * 36, 50_000)
        self.fc2 = nn.Linear(50_000, 5)

    def forward(self, x):
        x = torch.relu(self.conv(x)).flatten(1)
        return self.fc2(torch.relu(self.fc1(x)))


def default_covap(rank):
    import gradweave
    from gradweave import core

    torch.manual_seed(0)
    model = Heavy()
    plan = core.make_plan(workload(model), cluster(2, 5e-4), "covap")
    assert sliced(plan)
    expected = copy.deepcopy(model)
    loop = Reference(expected, OPTIMIZERS["adamw"], plan, workload(model))
    model, optimizer = gradweave.wrap(model, OPTIMIZERS["adamw"](model.parameters()), plan=plan)
    for step in range(5):
        loop.train_step(*batch(rank, step, size=2))
        x, y = batch(rank, step, size=2)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    loop.drain()
    gradweave.finish(model)
    wrong = differing(model, expected)
    model.gradweave.close()
    return wrong


def test_default_covap_trains_a_network_with_a_large_tensor():
    assert ranks.run(default_covap, 2) == [[], []]
