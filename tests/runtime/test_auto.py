"""What the starter sees of a loop, the plan that `auto` then takes, what is refused early, and what is told."""

import pytest
import torch
from torch import distributed, nn

import ranks
from models import batch, links_cost, make_net, parameters


def slow_links():
    links_cost(halves=True)  # slow enough for every overlap to be worth while


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model, rank, step):
    x, y = batch(rank, step)
    return nn.functional.cross_entropy(model(x), y)


def plain(model, optimizer, rank, step):
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()
    optimizer.step()


def clipped(model, optimizer, rank, step):
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def accumulated(model, optimizer, rank, step):
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()
    loss_of(model, rank, step + 100).backward()
    optimizer.step()


def accumulated_by_closure(model, optimizer, rank, step):
    """As Lightning accumulates: only the last backward is the closure's."""
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()

    def closure():
        loss = loss_of(model, rank, step + 100)
        loss.backward()
        return loss
    optimizer.step(closure)


def dropped(model, optimizer, rank, step):
    """As a loop that leaves out bad batches."""
    optimizer.zero_grad()
    loss_of(model, rank, step).backward()
    if step % 3 != 1:
        optimizer.step()


def with_closure(model, optimizer, rank, step):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # where Lightning does it
        return loss
    optimizer.step(closure)


class Normed(torch.optim.SGD):
    """Couples its parameters."""

    def step(self, closure=None):
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)


# name: (one iteration, optimizer, the trait that the starter sees or None)
LOOPS = {
    "plain": (plain, sgd, None),
    "clipped": (clipped, sgd, "edits"),
    "accumulated": (accumulated, sgd, "accumulates"),
    "accumulated by closure": (accumulated_by_closure, sgd, "accumulates"),
    "dropped": (dropped, sgd, None),
    "closure": (with_closure, sgd, "edits"),
    "coupled": (plain, lambda model: Normed(model.parameters(), lr=0.05), "couples"),
}


def as_it_is(rank, options):
    """Every loop as it is under `auto`, beside DistributedDataParallel."""
    import gradweave
    from gradweave import core

    slow_links()
    found = {}
    for name, (iterate, make, trait) in LOOPS.items():
        expected = make_net(seed=rank)
        parallel, optimizer = nn.parallel.DistributedDataParallel(expected), make(expected)
        for step in range(10):
            iterate(parallel, optimizer, rank, step)
        model = make_net(seed=rank)
        model, optimizer = gradweave.wrap(model, make(model), options=options, warm_up=2, profile_iterations=2, timeout=20)
        for step in range(10):
            iterate(model, optimizer, rank, step)
        gradweave.finish(model)
        session = model.gradweave
        others = [other for _, _, other in LOOPS.values() if other]
        seen = session._loop.seen(trait) if trait else not any(map(session._loop.seen, others))
        found[name] = (core.demands_of(session.plan), seen,
                       [n for n, value in parameters(expected).items() if not torch.equal(parameters(model)[n], value)])
        session.close()
    return found


def test_auto_takes_a_plan_that_the_loop_bears_and_changes_nothing():
    for found in ranks.run(as_it_is, 2, options=None):
        for name, (demands, seen, wrong) in found.items():
            assert seen and not wrong, (name, seen, wrong)
            if name in ("accumulated", "accumulated by closure"):
                assert demands["synchronous"], name
            if name in ("clipped", "closure"):
                assert not demands["steps_in_forward"], name
            if name == "coupled":
                assert not demands["partial_steps"], name
        # The others were kept from something.
        assert found["plain"][0]["steps_in_forward"]


def averages_on_time(rank, loop):
    """What the plan asks for that `auto` takes for the loop where local steps are allowed."""
    import gradweave
    from gradweave import core

    slow_links()
    iterate, make, _ = LOOPS[loop]
    model = make_net(seed=rank)
    model, optimizer = gradweave.wrap(model, make(model), options={"allow": "local"}, warm_up=2, profile_iterations=2,
                                      timeout=20)
    for step in range(30):
        iterate(model, optimizer, rank, step)
    gradweave.finish(model)
    demands = core.demands_of(model.gradweave.plan)
    model.gradweave.close()
    return {name: demands[name] for name in ("local_steps", "steps_in_backward")}


def test_averages_are_sent_after_the_step_where_gradients_are_clipped():
    for loop, in_backward in (("plain", True), ("clipped", False)):
        wanted = {"local_steps": True, "steps_in_backward": in_backward}
        assert ranks.run(averages_on_time, 2, loop=loop) == [wanted, wanted]


def by_name(rank, loops):
    """{loop: what the first iterations said} with p3, which the loops don't support."""
    import gradweave

    slow_links()
    said = {}
    for name in loops:
        iterate, make, _ = LOOPS[name]
        distributed.barrier()
        model = make_net(seed=rank)
        model, optimizer = gradweave.wrap(model, make(model), "p3", warm_up=3, profile_iterations=3, timeout=20)
        try:
            for step in range(3):
                iterate(model, optimizer, rank, step)
            said[name] = "accepted"
        except (ValueError, RuntimeError) as error:
            said[name] = str(error)
        model.gradweave.close(ValueError("refused"))
    return said


def test_a_scheme_that_cannot_serve_the_loop_is_refused_before_the_profile():
    for said in ranks.run(by_name, 2, loops=["clipped", "accumulated", "accumulated by closure", "closure", "coupled"]):
        for name, words in said.items():
            assert "scheme 'p3' doesn't work with this loop" in words and "such as" in words, (name, words)


EARLY = {
    "covap": ({"interval": 0}, "'0' is out of range"),
    "local_sgd": ({"period": "x"}, "'x' is out of range"),
    "deft": ({"solver": "quick"}, "use one of greedy, exact, search"),
    "ddp": ({"compressor": "fp16", "compressor_rank": 2}, "compressor 'fp16' has no rank"),
    "dear": ({"compressor": "top_k"}, "can't be split into reduce-scatter and all-gather"),
}


def early(rank):
    import gradweave

    said = {}
    for scheme, (options, _) in EARLY.items():
        model = make_net()
        try:
            gradweave.wrap(model, sgd(model), scheme, options=options)
        except ValueError as error:
            said[scheme] = str(error)
    return said


def test_options_are_refused_in_wrap():
    for said in ranks.run(early, 2):
        assert all(words in said[scheme] for scheme, (_, words) in EARLY.items()), said


def refused_of_float64(rank):
    import gradweave

    for options in ({"compressor": "int4"}, {"outer_momentum": 0.5}):
        model = make_net().double()
        with pytest.raises(gradweave.InvalidInput, match="only floats of 16 or 32 bits.*torch.autocast"):
            gradweave.wrap(model, sgd(model), "delayed_averaging", options=options)


def test_averages_of_gains_in_float64_are_refused_in_wrap():
    ranks.run(refused_of_float64, 2)


# (scheme, options, compressors of its plan; None: whatever it chooses)
COMPRESSED = [
    ("delayed_averaging", {"compressor": "int4"}, {"int4"}),
    ("delayed_averaging", {"compressor": "auto"}, None),  # or none at all, where the link allows it
    ("local_sgd", {"compressor": "int8", "period": 2}, {"int8"}),
    ("dreamddp", {"compressor": "int8", "period": 2}, {"int8"}),
    ("auto", {"allow": "exact+compressed"}, None),
]


def compressed(rank, cases):
    """The compressors of each case's plan; trained to its end, equal on all ranks."""
    import gradweave

    slow_links()
    found = []
    for scheme, options, _ in cases:
        model = make_net()
        with gradweave.wrap(model, sgd(model), scheme, options=options, warm_up=1, profile_iterations=2,
                            timeout=20) as (model, optimizer):
            for step in range(9):
                plain(model, optimizer, rank, step)
            gradweave.finish(model)
            plan = model.gradweave.plan
            assert plan["scheme"] != "sequential"
            found.append({op["compression"]["name"] for iteration in plan["period"] for op in iteration["ops"]
                          if "compression" in op})
    return found


def test_wrap_compresses_what_it_is_asked_for():
    for found in ranks.run(compressed, 2, cases=COMPRESSED):
        for names, (_, _, expected) in zip(found, COMPRESSED):
            assert expected is None or names == expected


def told(rank, report):
    import gradweave

    slow_links()
    model = make_net()
    with gradweave.wrap(model, sgd(model), warm_up=1, profile_iterations=2, timeout=20,
                        report=report and rank == 0) as (model, optimizer):  # may differ
        for step in range(10):
            clipped(model, optimizer, rank, step)


def predicted(rank):
    """(what the job predicts of its plan, what simulate() says of it with the job's overheads, these)."""
    import gradweave
    from gradweave import core

    slow_links()
    model = make_net()
    with gradweave.wrap(model, sgd(model), warm_up=1, profile_iterations=2, timeout=20, follow=False,
                        report=False) as (model, optimizer):
        session = model.gradweave
        assert session.overheads is None
        for step in range(10):
            plain(model, optimizer, rank, step)
        simulated = core.simulate(session.plan, session.workload, session.cluster, **session.overheads)
        return session.prediction["iteration_us"], simulated["iteration_us"], session.overheads


def test_what_is_predicted_is_what_simulate_says_with_the_overheads():
    found = ranks.run(predicted, 2)
    assert found[0] == found[1]
    prediction, simulated, overheads = found[0]
    assert prediction == simulated and overheads["optimizer_us"] > 0
    assert overheads["contention"] == 1 and overheads["burst_us"] == 0  # of emulated links


@pytest.mark.parametrize("report", [True, False])
def test_rank_0_tells_the_plan_and_what_was_gained(report):
    job = ranks.start(told, 2, report=report)
    assert [job.wait(rank, 150) for rank in range(2)] == [0, 0], job.log(0)
    lines = [line for line in job.log(0).splitlines() if line.startswith("gradweave: ")]
    assert not any("gradweave: " in line for line in job.log(1).splitlines())
    if not report:
        assert not lines
        return
    assert len(lines) == 2, lines
    assert "in force: " in lines[0] and "was not chosen, because the loop changes gradients" in lines[0]
    assert "exact+corrected" in lines[0]
    assert "an iteration predicted, from measured layers and links; " in lines[0] and "ddp would take" in lines[0]
    assert "ms an iteration measured" in lines[1] and "as fast as ddp, which was not measured" in lines[1]


def beside_its_call(rank):
    """(scheme in force, what is told) of a loop that calls the model itself only once."""
    import gradweave

    lines = ranks.lines_told()
    slow_links()
    model = make_net()
    model, optimizer = gradweave.wrap(model, sgd(model), warm_up=1, profile_iterations=2, timeout=20)
    for step in range(10):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        nn.functional.cross_entropy(model.forward(x) if step else model(x), y).backward()
        optimizer.step()
    scheme = model.gradweave.plan["scheme"]
    gradweave.finish(model)
    model.gradweave.close()
    return scheme, lines


def test_a_model_that_is_not_called_itself_keeps_the_plan_of_the_first_iterations():
    (scheme, lines), (also, _) = ranks.run(beside_its_call, 2)
    assert scheme == also == "sequential"
    assert any("no iteration could be profiled" in line for line in lines), lines


def waits(rank):
    """How often compute has waited, at moments of a loop whose link is slow."""
    import gradweave
    from gradweave import core
    from models import cluster, workload

    model = make_net()
    plan = core.make_plan(workload(), cluster(2, us_per_byte=2.0), "p3")  # the first layer is sent before others
    model, optimizer = gradweave.wrap(model, sgd(model), plan=plan, timeout=20,
                                      links=[gradweave.EmulatedLink(startup_us=50000, us_per_byte=0)])
    counts = []

    def count():
        counts.append(model.gradweave.counters["waits"])

    for step in range(2):
        plain(model, optimizer, rank, step)
    count()
    model.zero_grad()
    count()
    next(model.parameters())
    count()
    list(model.parameters())
    count()
    gradweave.finish(model)
    model.gradweave.close()
    return counts


def test_zero_grad_waits_for_nothing_and_parameters_for_what_they_hand_out():
    for before, zeroed, first, everything in ranks.run(waits, 2):
        assert zeroed == before < first < everything
