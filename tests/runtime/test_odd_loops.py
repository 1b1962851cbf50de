"""Models and loops that are not the plainest: each gives what DistributedDataParallel gives, or an error with a remedy."""

import contextlib
import copy
import io

import pytest
import torch
from torch import distributed, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import ranks
from gradweave import core
from models import batch, cluster, differing, links_cost, make_net, workload


class Odd(nn.Module):
    """`head`, defined first, shares its weight with `words`, which runs first; frozen, scalar and empty parameters."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 16, bias=False)
        self.middle = nn.Linear(16, 16)
        self.words = nn.Embedding(16, 16)
        self.words.weight = self.head.weight
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.ones(0))
        self.out = nn.Linear(16, 5)

    def forward(self, x):
        words = (5 * x.flatten(1)[:, :4].abs()).long().clamp(max=15)
        x = torch.relu(self.middle(self.words(words).mean(1)))
        return self.out(self.head(self.frozen(x))) * self.scale + self.empty.sum(), self.scale


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)) for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x):
        x = x.flatten(1).requires_grad_()
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=self.reentrant)
        return x


def plain(norm=lambda layer: layer, dtype=torch.float32):
    return nn.Sequential(nn.Flatten(), norm(nn.Linear(64, 32)), nn.ReLU(), nn.Linear(32, 5)).to(dtype)


def penalised(model, x, y):
    """A gradient inside the loss, and two forwards."""
    x.requires_grad_()
    loss = nn.functional.cross_entropy(model(x), y)
    slope, = torch.autograd.grad(loss, x, create_graph=True)
    return loss + slope.square().sum() + model(x.flip(0)).square().mean()


def cross_entropy(model, x, y):
    output = model(x)
    return nn.functional.cross_entropy(output[0] if isinstance(output, tuple) else output, y)


def in_bfloat16(model, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return cross_entropy(model, x, y)


def two_groups(model):
    members = [p for name, p in model.named_parameters() if name != "out.bias"]  # which is in no group
    return torch.optim.SGD([{"params": members[:2]}, {"params": members[2:], "lr": 0.01}], lr=0.05, momentum=0.9)


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


# name: model, optimizer, loss, the data's dtype
CASES = {
    "tied, frozen, scalar and empty": (Odd, adam, cross_entropy, torch.float32),
    "groups": (Odd, two_groups, cross_entropy, torch.float32),
    "eval mode": (lambda: make_net().eval(), adam, cross_entropy, torch.float32),
    "checkpoint": (lambda: Checkpointed(False), adam, cross_entropy, torch.float32),
    "reentrant checkpoint": (lambda: Checkpointed(True), adam, cross_entropy, torch.float32),
    "weight norm by hook": (lambda: plain(nn.utils.weight_norm), adam, cross_entropy, torch.float32),
    "weight norm": (lambda: plain(nn.utils.parametrizations.weight_norm), adam, cross_entropy, torch.float32),
    "bfloat16": (lambda: plain(dtype=torch.bfloat16), adam, cross_entropy, torch.bfloat16),
    "float16": (lambda: plain(dtype=torch.float16), two_groups, cross_entropy, torch.float16),
    "autocast": (plain, lambda model: torch.optim.Muon([p for p in model.parameters() if p.ndim == 2]), in_bfloat16,
                 torch.float32),
    "penalty": (plain, adam, penalised, torch.float32),
    "compiled": (lambda: torch.compile(plain(), backend="eager"), adam, cross_entropy, torch.float32),
}


@contextlib.contextmanager
def wrapped(model, optimizer, scheme, **arguments):
    """A wrapped job as users start it, except that links are not measured: that takes seconds."""
    import gradweave

    links_cost()
    model, optimizer = gradweave.wrap(model, optimizer, scheme=scheme, warm_up=1, profile_iterations=1, timeout=20,
                                      **arguments)
    session = model.gradweave
    try:
        yield model, optimizer
        gradweave.finish(model)
        session.close()
    except BaseException as error:
        session.close(error)
        raise


def trained(model, optimizer, rank, steps, loss=cross_entropy, dtype=torch.float32, first=0):
    for step in range(first, first + steps):
        x, y = batch(rank, step)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss(model, x.to(dtype), y).backward()
        optimizer.step()


def as_ddp(rank, schemes):
    wrong = []
    for case, (make, optimizer_of, loss, dtype) in CASES.items():
        torch.manual_seed(rank)
        model = make()
        trained(nn.parallel.DistributedDataParallel(model), optimizer_of(model), rank, 6, loss, dtype)
        for scheme in schemes:
            torch.manual_seed(rank)
            other = make()
            with wrapped(other, optimizer_of(other), scheme) as (other, optimizer):
                trained(other, optimizer, rank, 6, loss, dtype)
            wrong += [(case, scheme, name) for name in differing(other, model)]
    return wrong


def test_odd_models_as_in_ddp():
    assert ranks.run(as_ddp, 2, schemes=["ddp", "p3"]) == [[], []]


class TwoPaths(nn.Module):
    """Each batch takes one of two paths, the same on all ranks."""

    def __init__(self):
        super().__init__()
        self.paths = nn.ModuleList(nn.Linear(64, 8) for _ in range(2))
        self.out = nn.Linear(8, 5)
        self.turn = 0

    def forward(self, x):
        self.turn += 1
        return self.out(self.paths[self.turn % 3 == 0](x.flatten(1)))


def look_again(loss, parameters):
    """Gradients for a log, once .grad is there."""
    torch.autograd.grad(loss, [p for p in parameters if p.grad is not None], allow_unused=True)


def convolutions():
    """Channels last: the strides of its parameters are not those of views of a buffer, two of them only in dimensions of 1."""
    layers = nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(64, 5)
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


IN_STEP, LATER = ["ddp", "wfbp"], ["p3", "dear"]
# name: (schemes, model, what the loop zeroes: "flat", a buffer of which .grad are views, "list", .grad of its own, "later",
# those of the first backward, or None: by zero_grad(); whether it keeps .grad in a list, what comes after the backward,
# whether zero_grad() keeps them)
OWN_GRADIENTS = {"logged": (IN_STEP + LATER, plain, None, False, look_again, False),
                 "views": (IN_STEP + LATER, plain, "flat", False, None, False),
                 "views that are kept": (IN_STEP + LATER, plain, "flat", True, None, False),
                 "views of other strides": (IN_STEP + LATER, convolutions, "flat", False, None, False),
                 "views, some unused": (IN_STEP + LATER, TwoPaths, "flat", False, None, False),
                 "a list": (IN_STEP + LATER, convolutions, "list", True, None, False),
                 "a list, some unused": (IN_STEP + LATER, TwoPaths, "list", True, None, False),
                 "a list of the first": (IN_STEP + LATER, plain, "later", False, None, False),
                 "zeros, some unused": (IN_STEP + LATER, TwoPaths, None, False, None, True)}


def with_own_gradients(model, optimizer, rank, own, kept, after, zeros):
    parameters = list(model.parameters())
    sizes = [p.numel() for p in parameters]
    flat = torch.zeros(sum(sizes))
    zeroed = [flat] if own == "flat" else []
    if own in ("flat", "list"):
        for p, part in zip(parameters, flat.split(sizes)):
            p.grad = part.view_as(p) if own == "flat" else torch.zeros_like(p)
    held = [p.grad for p in parameters if kept]
    if own == "list":
        zeroed = held
    for step in range(8):
        torch._foreach_zero_(zeroed) if zeroed else optimizer.zero_grad(set_to_none=not zeros)
        loss = cross_entropy(model, *batch(rank, step))
        loss.backward(retain_graph=after is not None)
        if after is not None:
            after(loss, parameters)
        optimizer.step()
        if own == "later" and step == 0:
            zeroed = [p.grad for p in parameters]
    assert own != "flat" or all(p.grad.untyped_storage().data_ptr() == flat.data_ptr() for p in parameters)
    assert own != "list" or all(p.grad is each for p, each in zip(parameters, held))
    return held


def own_gradients_as_ddp(rank, case):
    schemes, make, *how = OWN_GRADIENTS[case]
    unused = make is TwoPaths
    torch.manual_seed(0)
    model, wrong = make(), []
    expected = nn.parallel.DistributedDataParallel(model, find_unused_parameters=unused)
    with_own_gradients(expected, adam(model), rank, *how)
    for scheme in schemes:
        torch.manual_seed(0)
        other = make()
        with wrapped(other, adam(other), scheme, find_unused_parameters=unused) as (other, optimizer):
            with_own_gradients(other, optimizer, rank, *how)
            assert other.gradweave.plan["scheme"] == scheme
        wrong += [(scheme, name) for name in differing(other, model)]
    return wrong


@pytest.mark.parametrize("case", OWN_GRADIENTS)
def test_gradients_that_the_loop_has_in_memory_of_its_own_or_looks_at_twice_as_in_ddp(case):
    assert ranks.run(own_gradients_as_ddp, 2, case=case) == [[], []]


class Added(nn.Module):
    """With one sample autograd gives both parameters one gradient, unless they are kept `apart`."""

    def __init__(self):
        super().__init__()
        self.positions, self.segments = (nn.Parameter(torch.ones(5, 6)) for _ in range(2))
        self.out = nn.Linear(6, 3)

    def forward(self, x, both, apart):
        first, second = (p.unsqueeze(0) * 1 if apart else p.unsqueeze(0) for p in (self.positions, self.segments))
        return self.out(torch.tanh(first + second if both else first) * x).square().mean()


def added(rank, schemes):
    """Schemes under which parameters are not DistributedDataParallel's, where one rank uses both of them and the other one."""
    def train(model, optimizer, apart):
        for step in range(8):
            optimizer.zero_grad()
            x = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(2 * step + rank))
            model(x, rank == 0, apart).backward()
            optimizer.step()

    torch.manual_seed(0)
    expected, wrong = Added(), []
    train(nn.parallel.DistributedDataParallel(expected, find_unused_parameters=True), adam(expected), apart=True)
    for scheme in schemes:
        torch.manual_seed(0)
        model = Added()
        with wrapped(model, adam(model), scheme, find_unused_parameters=True) as (model, optimizer):
            train(model, optimizer, apart=False)
        wrong += [(scheme, name) for name in differing(model, expected)]
    return wrong


def test_parameters_with_one_gradient_get_the_mean_of_their_own():
    assert ranks.run(added, 2, schemes=["ddp", "wfbp", "dear"]) == [[], []]


def same_on_all_ranks(model):
    own = torch.cat([p.detach().flatten() for p in model.parameters()])
    first = own.clone()
    distributed.broadcast(first, 0)
    return torch.equal(own, first)


def around(rank, schemes):
    """What a loop does besides steps."""
    images = TensorDataset(torch.randn(24, 1, 8, 8), torch.zeros(24, dtype=torch.long))
    for scheme in schemes:
        model = make_net(seed=rank)
        with wrapped(model, torch.optim.AdamW(model.parameters(), lr=0.01), scheme) as (model, optimizer):
            with torch.inference_mode():
                model.eval()
                model(batch(rank, 0)[0])
                model.train()
            average = AveragedModel(model, use_buffers=True)
            for step in range(6):
                trained(model, optimizer, rank, 1, first=step)
                average.update_parameters(model)
                with torch.inference_mode():
                    model.eval()
                    model.train()
            assert int(average.n_averaged) == 6 and average(batch(rank, 0)[0]).requires_grad
            # The whole model, as it was before wrap().
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            loaded = torch.load(file, weights_only=False)
            assert type(loaded).__module__ == "models" and torch.equal(loaded(batch(0, 0)[0]), model(batch(0, 0)[0])), scheme
            trained(loaded, torch.optim.SGD(loaded.parameters(), lr=0.1), rank, 1)
            # Nothing that is still to be applied here comes on top of what is loaded.
            good, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
            trained(model, optimizer, rank, 1, first=6)
            model.load_state_dict(good)
            optimizer.load_state_dict(state)
            assert scheme == "deft" or all(torch.equal(p, good[name]) for name, p in model.named_parameters()), scheme
            for x, y in DataLoader(images, 8, num_workers=1):
                optimizer.zero_grad()
                cross_entropy(model, x, y).backward()
                optimizer.step()
            with pytest.raises(RuntimeError, match="shapes"):
                model(torch.zeros(2, 1, 5, 5))  # in the middle of the forward
            trained(model, optimizer, rank, 3, first=7)
        assert same_on_all_ranks(model), scheme
    return True


def test_evaluation_averages_files_workers_and_exceptions_around_the_loop():
    assert all(ranks.run(around, 2, schemes=["ddp", "p3", "deft"]))


class Switched(nn.Module):
    """Two branches, of which a loop freezes one or the other; all gradients count to the sum."""

    def __init__(self):
        super().__init__()
        self.first, self.second = plain(), plain()

    def forward(self, x):
        return self.first(x) + self.second(x)


def freezing(model, optimizer, rank, inner):
    for step in range(9):
        inner.first.requires_grad_(step % 3 != 0)
        inner.second.requires_grad_(step % 3 != 1)
        optimizer.zero_grad()
        cross_entropy(model, *batch(rank, step)).backward()
        optimizer.step()


def frozen_for_a_while(rank, schemes):
    """{scheme: what is wrong} where a part is frozen after wrap() and before the first forward, as a GAN's are."""
    from gradweave import core

    effects = {row["name"]: row["consistency"] for row in core.schemes()}
    torch.manual_seed(rank)
    expected = Switched()
    parallel = nn.parallel.DistributedDataParallel(expected, find_unused_parameters=True)
    freezing(parallel, adam(expected), rank, expected)
    wrong = {}
    for scheme in schemes or effects:
        torch.manual_seed(rank)
        model = Switched()
        with wrapped(model, adam(model), scheme, find_unused_parameters=True) as (model, optimizer):
            freezing(model, optimizer, rank, model)
        if effects[scheme] == "exact" and (names := differing(model, expected)):
            wrong[scheme] = names
        elif not same_on_all_ranks(model):
            wrong[scheme] = "ranks differ"
    return wrong


def test_a_part_may_be_frozen_before_the_first_forward_under_every_scheme():
    assert ranks.run(frozen_for_a_while, 2, timeout=400, schemes=None) == [{}, {}]


def without_forward(rank):
    with wrapped(net := make_net(), adam(net), "ddp") as (model, optimizer):
        trained(model.forward, optimizer, rank, 1)


def unfrozen(rank):
    net = make_net()
    net.out.requires_grad_(False)
    with wrapped(net, adam(net), "ddp") as (model, optimizer):
        trained(model, optimizer, rank, 2)
        model.out.requires_grad_(True)
        trained(model, optimizer, rank, 1)


def stepped_twice(rank):
    with wrapped(net := make_net(), adam(net), "p3") as (model, optimizer):
        optimizer.step()
        trained(model, optimizer, rank, 4)
        optimizer.step()


def other_optimizer(rank):
    with wrapped(net := make_net(), adam(net), "p3") as (model, optimizer):
        trained(model, optimizer, rank, 3)
        trained(model, adam(model), rank, 2)


def foreign_parameter(rank):
    net = make_net()
    with wrapped(net, torch.optim.SGD([*net.parameters(), nn.Parameter(torch.ones(1))], lr=0.1), "p3") as (model, optimizer):
        trained(model, optimizer, rank, 3)


def other_rate(rank):
    with wrapped(net := make_net(), adam(net), "dreamddp") as (model, optimizer):
        trained(model, optimizer, rank, 4)
        cross_entropy(model, *batch(rank, 4)).backward()
        optimizer.param_groups[0]["lr"] = 0.02
        optimizer.step()


def coupled(rank):
    class Normed(torch.optim.SGD):
        def step(self):
            members = [p for group in self.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(members, 0.1)
            super().step()

    net = make_net()
    with wrapped(net, Normed(net.parameters(), lr=0.1), "p3") as (model, optimizer):
        trained(model, optimizer, rank, 3)


class Counts(torch.optim.Optimizer):
    """Counts its steps in an attribute, which no state_dict() has."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"] / self.t)


def counts(rank):
    with wrapped(net := make_net(), Counts(net.parameters()), "p3") as (model, optimizer):
        trained(model, optimizer, rank, 3)


def counts_for_one(rank):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 5, bias=False))
    with wrapped(net, Counts(net.parameters()), "p3") as (model, optimizer):
        trained(model, optimizer, rank, 3)


def sparse(rank):
    class Words(nn.Embedding):
        def forward(self, x):
            return super().forward(x.flatten(1)[:, :1].abs().long().clamp(max=3)).flatten(1)

    with wrapped(words := Words(4, 5, sparse=True), torch.optim.SGD(words.parameters(), lr=0.1), "ddp") as (model, optimizer):
        trained(model, optimizer, rank, 1)


def converted(rank):
    with wrapped(net := plain(), adam(net), "p3") as (model, optimizer):
        trained(model, optimizer, rank, 3)
        trained(model.double(), optimizer, rank, 1, dtype=torch.float64)


def wrap_only(make, optimizer_of=adam, **arguments):
    def case(rank):
        with wrapped(model := make(), optimizer_of(model), "deft", **arguments):
            pass
    return case


def of_another_model(rank):
    with wrapped(plain(), adam(plain()), "ddp"):
        pass


def second_of_another_model(rank):
    net = plain()
    with wrapped(net, [adam(net), adam(plain())], "ddp"):
        pass


def same_optimizer(rank):
    first, second = plain(), plain()
    with wrapped(first, adam(nn.ModuleList([first, second])), "ddp") as (first, optimizer), wrapped(second, optimizer, "ddp"):
        pass


REFUSED = {
    "forward() called": (without_forward, "call the model itself"),
    "unfrozen": (unfrozen, "call gradweave.finish(model), then model.gradweave.close(), then wrap again"),
    "step() twice": (stepped_twice, "put one backward() outside no_sync() before each step()"),
    "optimizer made later": (other_optimizer, "step() of the optimizer that gradweave.wrap() was given"),
    "parameter of another": (foreign_parameter, "give them to an optimizer of their own"),
    "rate changed too late": (other_rate, "change it before backward() or after step()"),
    "coupled": (coupled, "Normed couples parameters"),
    "counts": (counts, "Counts couples parameters, or keeps in an attribute what belongs into state[p]"),
    "counts for one parameter": (counts_for_one, "keeps in an attribute what belongs into state[p]"),
    "sparse": (sparse, "use sparse=False"),
    "converted": (converted, "convert the model first"),
    "optimizer of another model": (of_another_model, "this AdamW steps no parameter of the model"),
    "second of another model": (second_of_another_model, "this AdamW steps no parameter of the model"),
    "optimizer wrapped twice": (same_optimizer, "this optimizer is wrapped already"),
    "DistributedDataParallel": (wrap_only(lambda: nn.parallel.DistributedDataParallel(plain())), "pass the one inside"),
    "TorchScript": (wrap_only(lambda: torch.jit.script(plain())), "pass the module that it was made from"),
    "lazy": (wrap_only(lambda: nn.LazyLinear(2), lambda model: adam(plain())), "run one forward first"),
    "option": (wrap_only(plain, options={"typo": 1}), "has no option 'typo'; it has max_block_us"),
    "interface": (wrap_only(plain, links="nope0"), "'nope0' is not up here; choose among "),
}


def refused(rank):
    messages = {}
    for name, (case, _) in REFUSED.items():
        distributed.barrier()  # the one before may have left only here
        try:
            case(rank)
        except (ValueError, RuntimeError) as error:
            messages[name] = str(error)
    return messages


def test_what_cannot_work_is_an_error_with_a_remedy():
    for messages in ranks.run(refused, 2):
        for name, (_, words) in REFUSED.items():
            assert words in messages.get(name, "accepted"), (name, messages.get(name))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(2))

    def forward(self, x, which):
        return self.heads[which](self.trunk(x)).square().mean()


def unlike(model, expected):
    """Ends the job; returns the names of parameters that are not the expected ones."""
    import gradweave

    gradweave.finish(model)
    pairs = zip(model.named_parameters(), expected.parameters())
    found = [name for (name, a), b in pairs if not torch.allclose(a, b, atol=1e-6)]
    model.gradweave.close()
    return found


def two_backwards(rank, scheme, second):
    """Parameters that are not DistributedDataParallel's, where a step has two backward passes, of one head each. `second`: the
    head of the other pass, on each rank."""
    import gradweave

    torch.manual_seed(0)
    model = Heads()
    expected = copy.deepcopy(model)
    parallel = nn.parallel.DistributedDataParallel(expected, find_unused_parameters=True)
    reference = torch.optim.SGD(expected.parameters(), 0.1)
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1), scheme, find_unused_parameters=True,
                                      warm_up=1, profile_iterations=2, report=False, timeout=20)
    for step in range(10):
        for each, steps in ((parallel, reference), (model, optimizer)):
            for which in (0, second[rank]):
                seed = torch.Generator().manual_seed(10 * step + 2 * which + rank)
                each(torch.randn(4, 8, generator=seed), which).backward()
            steps.step()
            steps.zero_grad(set_to_none=step % 2 == 0)
    assert model.gradweave.plan["scheme"] == scheme
    return unlike(model, expected)


@pytest.mark.parametrize("scheme", ["ddp", "mg_wfbp", "wfbp"])
@pytest.mark.parametrize("second", [(1, 1), (1, 0), (0, 1)])
def test_gradients_of_an_earlier_backward_stay_where_a_later_one_has_none(scheme, second):
    assert ranks.run(two_backwards, 2, scheme=scheme, second=second) == [[], []]


def held_over_steps(rank, scheme, which):
    """The second head has an optimizer of its own, which steps every second time by what has come since. `which`: the head
    that each rank uses, by turns."""
    import gradweave

    torch.manual_seed(0)
    model = Heads()
    expected = copy.deepcopy(model)
    parallel = nn.parallel.DistributedDataParallel(expected, find_unused_parameters=True)

    def optimizers(of):
        heads = [p for head in of.heads[1:] for p in head.parameters()]
        own = {id(p) for p in heads}
        return torch.optim.SGD([p for p in of.parameters() if id(p) not in own], 0.1), torch.optim.SGD(heads, 0.1)

    reference = optimizers(expected)
    model, ours = gradweave.wrap(model, list(optimizers(model)), scheme, find_unused_parameters=True, warm_up=1,
                                 profile_iterations=2, report=False, timeout=20)
    for step in range(10):
        for each, (often, seldom) in ((parallel, reference), (model, ours)):
            seed = torch.Generator().manual_seed(10 * step + rank)
            x = torch.randn(4, 8, generator=seed)
            often.zero_grad()
            each(x, which[step % 2][rank]).backward()
            often.step()
            if step % 2:
                seldom.step()
                seldom.zero_grad()
    return unlike(model, expected)


@pytest.mark.parametrize("which", [((1, 1), (0, 0)), ((1, 1), (1, 0))])
def test_a_gradient_that_is_kept_over_steps_stays_where_a_parameter_is_unused(which):
    assert ranks.run(held_over_steps, 2, scheme="ddp", which=which) == [[], []]


class EitherOrBoth(Heads):
    def forward(self, x, which):
        return sum(self.heads[each](self.trunk(x)) for each in which).square().mean()


def accumulates_for_another_head(rank, how):
    """Only a backward under no_sync() reaches the second head: before a change of plan, in the turn of an optimizer of its
    own, or in a pass whose gradients are dropped. What differs from DistributedDataParallel, or from plain training. `dear`
    takes the loss scale out of what it is given, so its change of plan has one."""
    import gradweave

    torch.manual_seed(0)
    model = EitherOrBoth()
    expected = copy.deepcopy(model)
    alone = how == "dropped"  # DistributedDataParallel fails
    reference = expected if alone else nn.parallel.DistributedDataParallel(expected, find_unused_parameters=True)

    def optimizers(of):
        parts = (of.parameters(),) if how != "turns" else (of.trunk.parameters(), of.heads.parameters())
        return [torch.optim.AdamW(part, 0.1) for part in parts]

    plans = [core.make_plan(workload(model), cluster(2), scheme) for scheme in ("dear", "us_byte", "ddp", "wfbp")]
    before, after = plans[:2] if how == "change from dear" else plans[2:]
    ours = optimizers(model)
    scaled = how == "change from dear"
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled) for _ in range(2)]
    gradweave.wrap(model, ours, plan=before, find_unused_parameters=True, report=False, timeout=20,
                   scaler=scalers[1] if scaled else None)
    for each, steps, scaler in ((reference, optimizers(expected), scalers[0]), (model, ours, scalers[1])):
        torch.manual_seed(0 if alone else rank)

        def backward(which):
            scaler.scale(each(torch.randn(4, 8), which)).backward()

        def step_by(optimizer):
            scaler.step(optimizer)
            scaler.update()

        for step in range(5):
            if how == "turns" or step == 0:
                backward((0, 1))
                step_by(steps[0])
                for optimizer in steps:
                    optimizer.zero_grad()
            with each.no_sync() if hasattr(each, "no_sync") else contextlib.nullcontext():
                backward((1,))
            if how == "dropped":
                steps[-1].zero_grad()
            elif how.startswith("change") and step == 2 and each is model:
                model.gradweave.install(after)
            backward((0,))
            step_by(steps[-1])
            for optimizer in steps:
                optimizer.zero_grad()
    return unlike(model, expected)


@pytest.mark.parametrize("how", ["change", "change from dear", "turns", "dropped"])
def test_what_only_a_pass_without_communication_reaches(how):
    assert ranks.run(accumulates_for_another_head, 2, how=how) == [[], []]


def installs_what_is_refused(rank):
    import gradweave

    model = plain()
    with wrapped(model, adam(model), "us_byte") as (model, optimizer):
        said = ""
        for step in range(6):
            optimizer.zero_grad()
            cross_entropy(model, *batch(rank, step)).backward()
            if step == 0:
                try:
                    model.gradweave.install(core.make_plan(workload(model), cluster(2), "wfbp"))
                except gradweave.InvalidInput as error:
                    said = str(error)
            optimizer.step()
        return said, model.gradweave.plan["scheme"]


def test_the_chosen_scheme_comes_after_a_plan_that_was_refused():
    for said, scheme in ranks.run(installs_what_is_refused, 2):
        assert "there is no link of that name" in said and scheme == "us_byte"


def clips_in_a_hook(rank):
    import gradweave

    told = {}
    for scheme in ("auto", "dear"):
        model = plain()
        optimizer = adam(model)

        def clip(*_, parameters=tuple(model.parameters())):
            nn.utils.clip_grad_norm_(parameters, 0.01)

        optimizer.register_step_pre_hook(clip)
        try:
            with wrapped(model, optimizer, scheme, links=[gradweave.EmulatedLink(100, 2)]):
                for step in range(8):
                    optimizer.zero_grad()
                    cross_entropy(model, *batch(rank, step)).backward()
                    optimizer.step()
                told[scheme] = model.gradweave.plan["scheme"]
        except gradweave.InvalidInput as error:
            told[scheme] = str(error)
    return told


def test_a_hook_before_the_step_that_clips_is_seen_as_a_loop_that_clips():
    for told in ranks.run(clips_in_a_hook, 2):
        assert told["auto"] not in ("sequential", "dear") and told["auto"] in [row["name"] for row in core.schemes()]
        assert "scheme 'dear' doesn't work with this loop: the loop changes gradients between backward() and" in told["dear"]


def test_only_hooks_of_the_users_make_a_step_look_at_gradients():
    import gradweave.wrapping  # noqa: F401  it has a hook of its own
    from gradweave.stepping import Stepper

    optimizer = adam(plain())
    stepper = Stepper(optimizer, type(optimizer), optimizer.param_groups[0]["params"])
    assert not stepper.has_pre_hooks
    optimizer.register_step_pre_hook(lambda *_: None)
    assert stepper.has_pre_hooks


def copies_the_optimizer_first(rank, scheme):
    model = plain()
    with wrapped(model, adam(model), scheme) as (model, optimizer):
        for step in range(6):
            optimizer.zero_grad()
            cross_entropy(model, *batch(rank, step)).backward()
            optimizer.step()
        copied = copy.deepcopy({"optimizer": optimizer, "model": model})
        model.gradweave.synchronize()
        held = {id(p) for group in copied["optimizer"].param_groups for p in group["params"]}
        return ([torch.equal(a, b) for a, b in zip(copied["model"].parameters(), model.parameters())],
                [id(p) in held for p in copied["model"].parameters()],
                [int(state["step"]) for state in copied["optimizer"].state_dict()["state"].values()])


@pytest.mark.parametrize("scheme", ["ddp", "dear"])
def test_an_optimizer_that_is_copied_before_its_model_has_what_the_model_has(scheme):
    assert ranks.run(copies_the_optimizer_first, 1, scheme=scheme) == [([True] * 4, [True] * 4, [6] * 4)]


def heads_in_turn(rank, scheme, options, first):
    """How far each weight of the heads went, as a part of the sum of its gradients."""
    import gradweave

    torch.manual_seed(0)
    model, steps, gradient = Heads(), 60, torch.arange(1.0, 25.0).view(3, 8)
    before = [head.weight.detach().clone() for head in model.heads]
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.01), scheme, options=options,
                                      find_unused_parameters=True, warm_up=1, profile_iterations=2, report=False,
                                      timeout=20)
    for step in range(steps):
        optimizer.zero_grad()
        which = (step + first) % 2
        (model(torch.ones(1, 8), which) * 0 + (model.heads[which].weight * gradient).sum()).backward()
        optimizer.step()
    gradweave.finish(model)
    moved = [(was - head.weight) / (0.01 * steps / 2 * gradient) for head, was in zip(model.heads, before)]
    model.gradweave.close()
    return [part.mean().item() for part in moved]


@pytest.mark.parametrize("scheme, options, first", [("covap", {"interval": 2}, 0), ("covap", {"interval": 2}, 1),
                                                    ("ddp", {"compressor": "ef_signsgd"}, 0)])
def test_what_was_held_back_is_not_lost_where_nobody_uses_a_parameter(scheme, options, first):
    for parts in ranks.run(heads_in_turn, 2, scheme=scheme, options=options, first=first):
        assert all(0.85 < part < 1.1 for part in parts), parts


def unused_once_resumed(rank, how):
    """What has become of a head that is used up to a checkpoint, or a change of plan, and not after it."""
    import gradweave

    def begun():
        torch.manual_seed(0)
        model = Heads()
        options = {"compressor": "top_k", "compressor_density": 0.1}
        return gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1), "ddp", options=options, warm_up=1,
                              find_unused_parameters=True, profile_iterations=1, report=False, timeout=20)

    model, optimizer = begun()
    for step in range(16):
        if step == 6 and how == "load":
            states = [copy.deepcopy(each.state_dict()) for each in (model, optimizer)] + [model.gradweave.state_dict()]
            model.gradweave.close()
            model, optimizer = begun()
            for each, state in zip((model, optimizer, model.gradweave), states):
                each.load_state_dict(state)
        elif step == 6 and how == "install":
            model.gradweave.install(model.gradweave.plan)
        seed = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=seed), 1 if step < 6 else 0).backward()
        optimizer.step()
    gradweave.finish(model)
    found = model.heads[1].weight.tolist()
    model.gradweave.close()
    return found


def test_what_a_codec_has_kept_of_an_unused_parameter_outlives_checkpoints_and_plans():
    uninterrupted, *others = (ranks.run(unused_once_resumed, 2, how=how) for how in ("", "load", "install"))
    assert others == [uninterrupted, uninterrupted]


def layer_drop(rank):
    """A head is left out once in the warm-up, and once again when a plan is in force that has begun without."""
    import gradweave

    model = Heads()
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.01), "dear", warm_up=1,
                                      profile_iterations=2, report=False, timeout=20)
    for step in range(12):
        optimizer.zero_grad()
        x = torch.ones(2, 8)
        (model(x, 0) if step in (0, 9) else model(x, 0) + model(x, 1)).backward()
        optimizer.step()
    assert model.gradweave.plan["scheme"] == "dear"
    gradweave.finish(model)
    model.gradweave.close()
    return True


def test_a_new_plan_knows_that_parameters_may_be_unused():
    assert ranks.run(layer_drop, 2) == [True, True]


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.ones(64, dtype=torch.complex64))
        self.out = nn.Linear(64, 5)

    def forward(self, x):
        return self.out((x.flatten(1) * self.turn).real)


def complex_moments(rank):
    """Bit for bit the same on all ranks once they step alike."""
    from gradweave import core

    torch.manual_seed(0)
    model = Complex()
    with wrapped(model, torch.optim.Adam(model.parameters()), "local_sgd") as (model, optimizer):
        trained(model, optimizer, rank, 6)
        session = model.gradweave
        session.install(core.make_plan(session.workload, session.cluster, "ddp"))
        trained(model, optimizer, rank, 2, first=6)
    return [value.tolist() for value in optimizer.state[model.turn].values()]


def test_complex_moments_become_their_mean():
    one, other = ranks.run(complex_moments, 2)
    assert one == other


class Scaled(nn.Module):
    """A parameter of its own is used last, as CLIP's logit_scale is: its gradient comes first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 32), nn.Linear(32, 5)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.second(torch.relu(self.first(x.flatten(1)))) * self.scale


def scaled_last(rank, schemes):
    """All ranks have the same batches, so averages change nothing."""
    wrong = []
    expected = Scaled()
    optimizer = torch.optim.SGD(expected.parameters(), 0.1, momentum=0.9)
    trained(expected, optimizer, 0, 10)
    for scheme in schemes:
        model = Scaled()
        with wrapped(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), scheme,
                     options={"period": 2}) as (model, optimizer):
            trained(model, optimizer, 0, 10)
        wrong += [(scheme, name) for name in differing(model, expected)]
    return wrong


def test_a_local_step_waits_for_its_gradients():
    assert ranks.run(scaled_last, 2, schemes=["local_sgd", "partial_sgd", "dreamddp"]) == [[], []]
