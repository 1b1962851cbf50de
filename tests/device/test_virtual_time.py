"""The engine's iteration takes what the simulator says, in time that only models move."""

import pytest
import torch
from torch import distributed, nn

import jobs

LAYERS, FORWARD_US, BACKWARD_US = 6, 900.0, 1700.0
STARTUP_US = 40.0
ITERATIONS = 24
OPTIONS = {"horovod": {"cycle_us": 3000, "fusion_bytes": 20000}}  # several messages of one tick, whose delays overlap


class Spend(torch.autograd.Function):
    """Takes a layer's time in both directions, and leaves its gradient."""

    @staticmethod
    def forward(ctx, x, weight, factor):
        from accelerator import native

        native.spend_us(FORWARD_US * factor)
        ctx.save_for_backward(weight)
        ctx.factor = factor
        return x + 1

    @staticmethod
    def backward(ctx, gradient):
        from accelerator import native

        native.spend_us(BACKWARD_US * ctx.factor)
        weight, = ctx.saved_tensors
        return gradient, torch.ones_like(weight), None


class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2000 * (1 + number % 3)))
        self.factor = 1 + number % 2 / 2

    def forward(self, x):
        return Spend.apply(x, self.weight, self.factor)


def times_of(model):
    layers = [{"name": str(n), "forward_us": FORWARD_US * layer.factor, "backward_us": BACKWARD_US * layer.factor,
               "tensors": [{"name": f"{n}.weight", "numel": layer.weight.numel(), "dtype": "float32"}]}
              for n, layer in enumerate(model)]
    return {"version": 1, "name": "spent", "layers": layers}


def both_times(rank, schemes, links, us_per_byte):
    """{scheme: (microseconds of an iteration on the accelerator, the simulator's)}."""
    import gradweave
    from accelerator import native
    from gradweave import core

    native.carry_by(cost_us=(STARTUP_US, us_per_byte))
    world = distributed.get_world_size()
    cluster = {"version": 1, "workers": world, "workers_per_node": 1, "startup_growth": "linear",
               "links": [{"name": f"link{k}", "startup_us": STARTUP_US, "us_per_byte": us_per_byte, "concurrency": 1}
                         for k in range(links)]}
    found = {}
    for scheme in schemes:
        model = nn.Sequential(*(Layer(number) for number in range(LAYERS))).to("sim")
        workload = times_of(model)
        plan = core.make_plan(workload, cluster, scheme, OPTIONS.get(scheme, {}))
        groups = [distributed.new_group() for _ in range(links)] if links > 1 else None
        model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), plan=plan, links=groups,
                                          report=False)
        marks = []
        period = len(plan["period"])
        count = period * -(-ITERATIONS // period)  # whole periods
        for _ in range(ITERATIONS + count + 1):
            marks.append(torch.Event("sim", enable_timing=True))
            marks[-1].record()
            optimizer.zero_grad()
            model(torch.zeros(1, device="sim", requires_grad=True)).sum().backward()
            optimizer.step()
        torch.accelerator.synchronize()
        found[scheme] = (1000 * marks[ITERATIONS].elapsed_time(marks[-1]) / count,
                         core.simulate(plan, workload, cluster)["iteration_us"])
        model.gradweave.close()
    return found


def times_without(rank, schemes):
    """{site of a wait in the engine: whether an iteration takes another time when it is left out}."""
    from accelerator import native

    native.take_sites()
    whole = both_times(rank, schemes, 1, 0.05)
    found = {}
    for site in native.take_sites():
        native.take_sites(left_out=site)
        found[site] = any(times[0] != pytest.approx(whole[scheme][0], rel=0.01)
                          for scheme, times in both_times(rank, schemes, 1, 0.05).items())
    native.take_sites()
    return found


def check(world, links, us_per_byte):
    from gradweave import core

    schemes = [row["name"] for row in core.schemes() if row["name"] != "auto"]
    first, *others = jobs.run(both_times, world, schemes=schemes, links=links, us_per_byte=us_per_byte)
    assert others == [first] * (world - 1)  # ranks that do the same end at the same time
    wrong = {scheme: times for scheme, times in first.items() if times[0] != pytest.approx(times[1], rel=0.01)}
    assert not wrong and len(first) == len(schemes)


@pytest.mark.parametrize("links", [1, 2])
def test_an_iteration_takes_what_the_simulator_says(links):
    check(2, links, us_per_byte=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("us_per_byte", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("links", [1, 2])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_an_iteration_takes_what_the_simulator_says_with_more_ranks_and_other_links(world, links, us_per_byte):
    check(world, links, us_per_byte)


def without_a_timer(rank, of_engine):
    """{cycle_us: what is said of horovod's plan, or None} on an accelerator that can't wait; `of_engine`: where nobody gives
    the engine what lets time pass there, as a session in C++."""
    import gradweave
    from device_loops import Loop
    from gradweave import _native

    if of_engine:
        _native.Engine.set_pause = lambda self, make: None
    else:
        del torch.sim._sleep
    said = {}
    for cycle_us in (1500, 0):
        loop = type("Cycle", (Loop,), {"options": {"cycle_us": cycle_us}})(rank, "sim", "horovod", "sgd")
        try:
            loop.run()
            said[cycle_us] = None
        except gradweave.InvalidInput as refusal:
            said[cycle_us] = str(refusal)
            loop.model.gradweave.close()
    return said


@pytest.mark.parametrize("of_engine", [False, True])
def test_delays_that_an_accelerator_cannot_wait_for_are_refused(of_engine):
    for said in jobs.run(without_a_timer, 2, of_engine=of_engine):
        assert "releases with a delay" in said[1500] and "cycle_us=0" in said[1500] and said[0] is None


def timers_measured(rank):
    """How often the accelerator's clock was measured by then: under ddp, once horovod's plan is in force, under ddp again, and
    once that plan has come back."""
    import gradweave
    from gradweave import core, pausing

    measured, pause_of = [], pausing.pause_of
    pausing.pause_of = lambda device: measured.append(device) or pause_of(device)
    model = nn.Sequential(*(Layer(number) for number in range(LAYERS))).to("sim")
    cluster = {"version": 1, "workers": 2, "workers_per_node": 1, "startup_growth": "linear",
               "links": [{"name": "default", "startup_us": STARTUP_US, "us_per_byte": 0.05, "concurrency": 1}]}
    plans = [core.make_plan(times_of(model), cluster, scheme, OPTIONS.get(scheme, {})) for scheme in ("ddp", "horovod")]
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), plan=plans[0], report=False)
    counts = []
    for plan in (None, plans[1], plans[0], plans[1]):
        if plan:
            model.gradweave.install(plan)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.zeros(1, device="sim", requires_grad=True)).sum().backward()
            optimizer.step()
        counts.append(len(measured))
    model.gradweave.close()
    return counts


def test_the_clock_of_an_accelerator_is_measured_once_and_only_for_plans_with_delays():
    assert jobs.run(timers_measured, 2) == [[0, 1, 1, 1]] * 2
