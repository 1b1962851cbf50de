"""Several optimizers, their hooks and closures, beside DistributedDataParallel."""

import pytest
import torch
from torch import distributed, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import ranks
from models import batch, cluster, links_cost, make_net, parameters, workload
from test_delayed import CASES

EXACT_AT_STEP = ["sequential", "wfbp", "ddp", "horovod", "mg_wfbp", "asc_wfbp"]


def all_schemes(*kinds):
    from gradweave import core

    return [row["name"] for row in core.schemes() if row["name"] != "auto" and (not kinds or row["consistency"] in kinds)]


def wrapped(model, optimizers, scheme, **arguments):
    import gradweave
    from gradweave import core

    plan = core.make_plan(workload(), cluster(distributed.get_world_size()), scheme)
    return gradweave.wrap(model, optimizers, plan=plan, timeout=20.0, **arguments)


def loss_of(model, rank, step):
    x, y = batch(rank, step)
    return nn.functional.cross_entropy(model(x), y)


def matrices_and_rest(model):
    matrices = [p for p in model.parameters() if p.ndim == 2]
    rest = [p for p in model.parameters() if p.ndim != 2]
    return torch.optim.Muon(matrices, lr=0.01), torch.optim.AdamW(rest, lr=0.01)


def trained_by_two(model, optimizers, rank, steps):
    first, second = optimizers
    late = torch.optim.lr_scheduler.StepLR(second, 2, gamma=0.5)
    for step in range(steps):
        first.zero_grad()
        second.zero_grad()
        loss_of(model, rank, step).backward()
        first.step()
        second.step()
        late.step()


def two_optimizers(rank, schemes):
    import gradweave

    expected = make_net(seed=rank)
    trained_by_two(nn.parallel.DistributedDataParallel(expected), matrices_and_rest(expected), rank, 7)
    wrong = []
    for scheme, exact in schemes:
        model = make_net(seed=rank)
        model, optimizers = wrapped(model, list(matrices_and_rest(model)), scheme)
        trained_by_two(model, optimizers, rank, 7)
        gradweave.finish(model)  # ranks are equal, or it raises
        found = parameters(model)
        wrong += [(scheme, name)
                  for name, value in parameters(expected).items() if exact and not torch.equal(found[name], value)]
        assert any(not torch.equal(found[name], value) for name, value in parameters(make_net()).items()), scheme
        model.gradweave.close()
        assert type(optimizers[0]) is torch.optim.Muon and type(optimizers[1]) is torch.optim.AdamW
    return wrong


def test_muon_beside_adamw_as_in_ddp_under_every_scheme():
    exact = all_schemes("exact")
    assert ranks.run(two_optimizers, 2, schemes=[(scheme, scheme in exact) for scheme in all_schemes()]) == [[], []]


def buffers_of(optimizer):
    return [state["momentum_buffer"].clone() for state in optimizer.state.values()]


def muon_goes_on_alike(rank, scheme):
    """Muon's momenta before and after a change from steps of each rank's own to exact ones; and whether what was an average of
    the weights all the time is the mean of the ranks'."""
    from gradweave import core

    model = make_net(seed=0)
    model, optimizers = wrapped(model, list(matrices_and_rest(model)), scheme)
    average = torch.optim.swa_utils.AveragedModel(model)
    for step in range(4):
        trained_by_two(model, optimizers, rank, 1)
        average.update_parameters(model)
    model.gradweave.synchronize()
    own, before = [p.detach().clone() for p in average.module.parameters()], buffers_of(optimizers[0])
    model.gradweave.average(average)
    model.gradweave.install(core.make_plan(workload(), cluster(distributed.get_world_size()), "ddp"))
    after = buffers_of(optimizers[0])
    trained_by_two(model, optimizers, rank, 3)
    model.gradweave.finish()  # ranks are equal, or it raises
    model.gradweave.close()
    return before, after, own, [p.detach().clone() for p in average.module.parameters()]


def test_muons_momenta_and_averages_of_its_weights_become_the_mean_of_the_ranks():
    (mine, after, own, averaged), (theirs, others, own_there, averaged_there) = ranks.run(muon_goes_on_alike, 2,
                                                                                         scheme="local_sgd")
    assert mine and any(not torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    for a, b, mean, other in zip(mine, theirs, after, others, strict=True):
        assert torch.equal(mean, other)
        torch.testing.assert_close(mean, (a + b) / 2)
    for a, b, mean, other in zip(own, own_there, averaged, averaged_there, strict=True):
        assert torch.equal(mean, other)
        torch.testing.assert_close(mean, (a + b) / 2)


class Around(torch.optim.Optimizer):
    """As libraries put them around an optimizer: all that it has is the inner one's."""

    def __init__(self, inner):
        self.inner = inner

    param_groups = property(lambda self: self.inner.param_groups,
                            lambda self, groups: setattr(self.inner, "param_groups", groups))
    state = property(lambda self: self.inner.state, lambda self, state: setattr(self.inner, "state", state))

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)

    def step(self, closure=None):
        return self.inner.step(closure)


def around_another(rank, schemes):
    """(scheme, parameter) that is not DistributedDataParallel's."""
    import gradweave

    def train(model, optimizer):
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()

    expected = make_net(seed=rank)
    train(nn.parallel.DistributedDataParallel(expected), torch.optim.AdamW(expected.parameters(), lr=0.01))
    wrong = []
    for scheme in schemes:
        model = make_net(seed=rank)
        outer = Around(Around(torch.optim.AdamW(model.parameters(), lr=0.01)))
        model, optimizer = wrapped(model, outer, scheme)
        assert optimizer is outer
        train(model, optimizer)
        gradweave.finish(model)
        found = parameters(model)
        wrong += [(scheme, name) for name, value in parameters(expected).items() if not torch.equal(found[name], value)]
        model.gradweave.close()
        assert type(outer) is Around and type(outer.inner.inner) is torch.optim.AdamW
    return wrong


def test_an_optimizer_around_another_trains_as_the_inner_one():
    assert ranks.run(around_another, 2, schemes=all_schemes("exact")) == [[], []]


class Lookahead(Around):
    """Changes parameters in its step(), by values of its own."""

    def __init__(self, inner):
        super().__init__(inner)
        self.slow = None

    @torch.no_grad()
    def step(self, closure=None):
        result = super().step(closure)
        chosen = [p for group in self.param_groups for p in group["params"]]
        self.slow = self.slow or [p.clone() for p in chosen]
        for slow, p in zip(self.slow, chosen):
            p.data.copy_(slow.lerp_(p, 0.5))
        return result


def looks_ahead(rank, schemes):
    """{scheme: the error, or the parameters that are not DistributedDataParallel's}."""
    import gradweave

    found = {}
    for scheme in [None, *schemes]:
        model = run = make_net(seed=0)
        optimizer = Around(Lookahead(torch.optim.SGD(model.parameters(), lr=0.05)))
        if scheme is None:
            run = nn.parallel.DistributedDataParallel(model)
        else:
            run, optimizer = gradweave_auto(model, optimizer, scheme)
        try:
            for step in range(5):
                optimizer.zero_grad()
                loss_of(run, rank, step).backward()
                optimizer.step()
            found[scheme] = parameters(model)
        except gradweave.InvalidInput as error:
            found[scheme] = str(error)
        if scheme is not None:
            model.gradweave.close()
    expected = found.pop(None)
    return {scheme: said if isinstance(said, str) else [n for n in expected if not torch.equal(said[n], expected[n])]
            for scheme, said in found.items()}


def test_an_optimizer_around_another_that_changes_parameters_needs_updates_in_step():
    for found in ranks.run(looks_ahead, 2, schemes=["dear", "auto", "ddp"]):
        assert "whose step() may read and change parameters (Lookahead)" in found["dear"] and "such as ddp" in found["dear"]
        assert found["auto"] == found["ddp"] == []


def around_several(rank):
    model = make_net(seed=rank)
    first, second = matrices_and_rest(model)
    outer = torch.optim.SGD(model.parameters(), lr=0.01)
    outer.inner = [first, second]
    try:
        wrapped(model, outer, "ddp")
    except ValueError as error:
        return str(error)


def test_an_optimizer_around_several_is_refused():
    for words in ranks.run(around_several, 2):
        assert "SGD steps by optimizers inside it" in words and "wrap(model, [a, b])" in words


def by_turns(rank, scheme, stepped, between=None):
    """What differs from DistributedDataParallel where two optimizers are not stepped in every iteration, as in adversarial
    training. `stepped`: the places of those that are, step for step, over and over; `between`: what is called where not all
    are."""
    from gradweave import core

    results = []
    for parallel in (True, False):
        model = make_net(seed=rank)
        optimizers = matrices_and_rest(model)
        if parallel:
            run = nn.parallel.DistributedDataParallel(model)
        else:
            run, optimizers = wrapped(model, list(optimizers), scheme)
        for step in range(6):
            for each in optimizers:
                each.zero_grad()
            loss_of(run, rank, step).backward()
            places = stepped[step % len(stepped)]
            for place in places:
                optimizers[place].step()
            if parallel or between is None or len(places) == 2:
                continue
            if between == "install":
                run.gradweave.install(core.make_plan(workload(), cluster(2), "wfbp"))
            else:
                getattr(run.gradweave, between)()
        if not parallel:
            assert between is None or run.gradweave.counters["iterations"] == 6
            run.gradweave.finish()
        results.append(parameters(model))
    return [name for name, value in results[0].items() if not torch.equal(results[1][name], value)]


@pytest.mark.parametrize("scheme", ["ddp", "wfbp"])
def test_optimizers_that_take_turns_as_in_ddp(scheme):
    assert ranks.run(by_turns, 2, scheme=scheme, stepped=[[1], [0], [0]]) == [[], []]


@pytest.mark.parametrize("between", ["finish", "state_dict", "install"])
def test_calls_between_the_turns_of_optimizers(between):
    assert ranks.run(by_turns, 2, scheme="ddp", stepped=[[0], [0, 1]], between=between) == [[], []]


def left_out(rank, schemes):
    """The second optimizer is the user's alone."""
    import gradweave

    said = {}
    for scheme in schemes:
        distributed.barrier()
        model = make_net(seed=rank)
        first, second = matrices_and_rest(model)
        model, first = wrapped(model, first, scheme)
        try:
            trained_by_two(model, (first, second), rank, 3)
            gradweave.finish(model)
            said[scheme] = "served"
        except gradweave.InvalidInput as error:
            said[scheme] = str(error)
        distributed.barrier()  # each is to find it by itself
        model.gradweave.close(ValueError("refused"))
    return said


def test_an_optimizer_that_is_left_out_is_served_or_refused():
    for said in ranks.run(left_out, 2, schemes=all_schemes()):
        for scheme, words in said.items():
            # Where a plan came out synchronous, finish() has found the ranks equal.
            refused = scheme not in EXACT_AT_STEP and "wrap(model, [a, b])" in words
            assert words == "served" or refused, scheme
        assert all(said[scheme] != "served" for scheme in ("p3", "us_byte", "dear", "deft", "dreamddp", "delayed_averaging"))


def hooked(rank, schemes):
    """Hooks around step(), and how often they ran."""
    import gradweave

    wrong, ran = [], []
    everybodys = (register_optimizer_step_pre_hook(lambda *_: ran.append("before all")),
                  register_optimizer_step_post_hook(lambda *_: ran.append("after all")))
    for scheme in schemes:
        model = make_net(seed=rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model, optimizer = wrapped(model, optimizer, scheme)
        ran.clear()
        optimizer.register_step_pre_hook(lambda *_: ran.append("before"))
        optimizer.register_step_post_hook(lambda *_: ran.append("after"))
        for step in range(6):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        optimizer.zero_grad()
        optimizer.step()  # without a gradient
        optimizer.step()
        if ran != ["before all", "before", "after", "after all"] * 8:
            wrong.append((scheme, list(ran)))
        gradweave.finish(model)
        model.gradweave.close()
    for handle in everybodys:
        handle.remove()
    return wrong


def test_hooks_around_step_run_once_for_each_step_of_the_users():
    assert ranks.run(hooked, 2, schemes=all_schemes()) == [[], []]


def with_others(rank, cases):
    """An optimizer that also steps a parameter of no model, whose gradient is 1: its values, and the user's hooks that ran."""
    import gradweave
    from gradweave import core

    found = {}
    for case, (scheme, options) in cases.items():
        model, own = make_net(seed=0), nn.Parameter(torch.ones(()))
        plan = core.make_plan(workload(), cluster(2, 0.6), scheme, options)
        assert core.demands_of(plan)["delays_gradients"] and not core.demands_of(plan)["partial_steps"]
        model, optimizer = gradweave.wrap(model, torch.optim.SGD([*model.parameters(), own], lr=0.125), plan=plan)
        ran = []
        optimizer.register_step_pre_hook(lambda *_: ran.append("before"))
        optimizer.register_step_post_hook(lambda *_: ran.append("after"))
        values = []
        for step in range(5):
            optimizer.zero_grad()
            (loss_of(model, rank, step) + own).backward()
            optimizer.step()
            values.append(own.item())
        gradweave.finish(model)  # makes steps by what is on its way
        found[case] = [*values, own.item()], ran
        model.gradweave.close()
    return found


def test_parameters_of_no_model_are_stepped_once_in_each_step_and_hooks_run_once():
    cases = {name: CASES[name] for name in ("deft sum", "deft mean")}
    once = [0.875, 0.75, 0.625, 0.5, 0.375, 0.375], ["before", "after"] * 5
    assert ranks.run(with_others, 2, cases=cases) == [dict.fromkeys(cases, once)] * 2


def closures(rank, schemes):
    """As Lightning steps: zero_grad, forward and backward in the closure."""
    import gradweave

    wrong = []
    expected = make_net(seed=rank)
    parallel = nn.parallel.DistributedDataParallel(expected)
    plain = torch.optim.AdamW(expected.parameters(), lr=0.01)
    for step in range(6):
        plain.zero_grad()
        loss_of(parallel, rank, step).backward()
        plain.step()
    for scheme, exact in schemes:
        model = make_net(seed=rank)
        model, optimizer = wrapped(model, torch.optim.AdamW(model.parameters(), lr=0.01), scheme)
        calls = []
        for step in range(6):
            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, rank, step)
                loss.backward()
                calls.append(loss.item())
                return loss
            assert optimizer.step(closure).item() == calls[-1]
        gradweave.finish(model)
        found = parameters(model)
        wrong += [(scheme, name)
                  for name, value in parameters(expected).items() if exact and not torch.equal(found[name], value)]
        if len(calls) != 6:
            wrong.append((scheme, calls))
        model.gradweave.close()
    return wrong


def test_a_closure_is_called_once_under_every_scheme():
    exact = all_schemes("exact")
    assert ranks.run(closures, 2, schemes=[(scheme, scheme in exact) for scheme in all_schemes()]) == [[], []]


def by_lbfgs(rank):
    model = make_net()
    try:
        model, optimizer = wrapped(model, torch.optim.LBFGS(model.parameters()), "deft")
        loss_of(model, rank, 0)
    except ValueError as error:
        return str(error)
    return "accepted"


def as_lbfgs_does(rank, scheme):
    results = []
    for parallel in (True, False):
        model = make_net(seed=rank)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
        if parallel:
            run = nn.parallel.DistributedDataParallel(model)
        else:
            run, optimizer = gradweave_auto(model, optimizer, scheme)
        for step in range(6):
            def closure():
                optimizer.zero_grad()
                loss = loss_of(run, rank, step)
                loss.backward()
                return loss
            optimizer.step(closure)
        if not parallel:
            run.gradweave.finish()
        results.append(parameters(model))
    return [name for name, value in results[0].items() if not torch.equal(results[1][name], value)]


def gradweave_auto(model, optimizer, scheme):
    import gradweave

    links_cost()
    return gradweave.wrap(model, optimizer, scheme, warm_up=1, profile_iterations=1, timeout=20)


def test_an_optimizer_that_evaluates_the_loss_many_times_as_in_ddp():
    assert ranks.run(as_lbfgs_does, 2, scheme="auto") == [[], []]


def test_it_is_refused_where_the_plan_sends_one_backward_of_each_step():
    for message in ranks.run(by_lbfgs, 2):
        assert "LBFGS evaluates the loss many times" in message and "such as ddp" in message


def stepped_in_parts(kind, **options):
    """Why it can't be, or None; before its first step and after it."""
    from gradweave.proofs import prove_partial_steps
    from gradweave.stepping import Stepper

    chosen = [nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5, 5))]
    optimizer = kind(chosen, lr=0.01, **options)
    stepper, found = Stepper(optimizer, kind, chosen), []
    for _ in range(2):
        found.append(prove_partial_steps(stepper))
        for p in chosen:
            p.grad = torch.ones_like(p)
        optimizer.step()
    return found


def test_torchs_own_optimizers_step_in_parts():
    for name in ("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop",
                 "Rprop", "SGD"):
        assert stepped_in_parts(getattr(torch.optim, name)) == [None, None], name
    for name in ("Adagrad", "Adam", "AdamW", "SGD"):
        assert stepped_in_parts(getattr(torch.optim, name), fused=True) == [None, None], name


class Keeps(torch.optim.SGD):
    """`change` changes what it keeps beside its state, `kept`."""

    def __init__(self, parameters, lr, kept, change):
        super().__init__(parameters, lr)
        self.kept, self.change = kept, change

    def step(self, closure=None):
        self.change(self)
        super().step(closure)


def appended(optimizer):
    optimizer.kept["losses"].append(1.0)


def added(optimizer):
    optimizer.kept.add_(1)


def replaced(optimizer):
    optimizer.kept = 2.0


@pytest.mark.parametrize("kept, change", [({"losses": []}, appended), (torch.zeros(()), added), (None, replaced)])
def test_what_an_optimizer_keeps_beside_its_state_is_left_alone(kept, change):
    from gradweave.proofs import prove_partial_steps
    from gradweave.stepping import Stepper

    chosen = [nn.Parameter(torch.randn(shape)) for shape in ((3, 4), (5, 5))]
    optimizer, before = Keeps(chosen, 0.01, kept, change), str(kept)
    assert prove_partial_steps(Stepper(optimizer, Keeps, chosen)) is None  # its steps don't depend on it
    assert str(optimizer.kept) == before
