"""What the demo measures of messages beside a job, with collectives and timelines whose times are known."""

import pytest

from gradweave import core
from gradweave.lab import slow_link


@pytest.fixture
def setting():
    """A link of 100 us and 1 us for 100 bytes."""
    return slow_link.Setting(2.0, 0, 1.0, 1.0, {"links": [{"startup_us": 100.0, "us_per_byte": 0.01}]})


def test_no_more_messages_are_queued_than_a_link_sends_that_seems_to_start_them_at_once(setting, monkeypatch):
    class Work:
        def is_completed(self):
            return True

        def wait(self):
            pass

    class Reference:
        job, segment_seconds = None, [0.01]

    queued = []
    setting.cluster["links"][0].update(startup_us=0.0, us_per_byte=0.0)
    monkeypatch.setattr(slow_link.distributed, "all_reduce", lambda buffer, async_op: queued.append(buffer) or Work())
    monkeypatch.setattr(slow_link.turns, "run_segment", lambda *arguments: None)
    monkeypatch.setattr(slow_link.turns, "slowest", lambda seconds: seconds)
    monkeypatch.setattr(slow_link.training, "train", lambda job, iterations: ([0.02] * iterations, None))
    monkeypatch.setattr(slow_link.ranks, "agreed", lambda value: value)
    contention, launch_us = slow_link.taken_of_compute(setting, Reference, rounds=1)
    assert contention == pytest.approx(2.0) and launch_us == 0.0
    assert len(queued) == 522 + 1200  # of 0.1 ms each, beside 4 iterations that take 1.3 and 3 times as long, and one


@pytest.mark.parametrize("burst_us, expected", [(0.0, (40.0, 60.0)), (40.0, (80.0, 60.0))])
def test_delays_are_those_of_short_ops(setting, monkeypatch, burst_us, expected):
    def span(iteration, begin_us, more_us, size):
        return {"track": 1, "iteration": iteration, "label": f"op {begin_us}", "bytes": size, "begin_us": begin_us,
                "end_us": begin_us + 100 + 0.01 * size + more_us}

    setting.burst_us = burst_us
    # 10,000 bytes take 200 us: behind another op 30 us more, after a pause 100 us more. The long op takes 44 ms, not 40.
    first, behind, idle = span(0, 0, 0, 10_000), span(0, 200, 30, 10_000), span(0, 5_000, 100, 10_000)
    long = span(0, 10_000, 4_000, 4_000_000)

    def of_two_ranks(own):
        """On the other rank each op waits for this one: behind others for its threads, after a pause for its compute."""
        return [own, {op: (us + (1_000 if idle else 20), idle) for op, (us, idle) in own.items()}]

    monkeypatch.setattr(slow_link, "gathered", of_two_ranks)
    monkeypatch.setattr(slow_link.ranks, "agreed", lambda value: value)
    assert slow_link.delays([long, idle, first, behind], setting) == pytest.approx(expected)
    # The machine stands still for a time in one iteration of three.
    again = [span(number, begin_us, more_us, 10_000) for number, still_us in ((1, 0), (2, 50_000))
             for begin_us, more_us in ((20_000 * number, 0), (20_000 * number + 200, 30 + still_us))]
    assert slow_link.delays([long, idle, first, behind, *again], setting)[0] == pytest.approx(expected[0])


def test_the_slowest_rank_is_another_in_each_iteration(monkeypatch):
    def backwards(*times_us):
        """Each in two spans; and what is none."""
        halves = [{"kind": "backward", "iteration": number, "begin_us": at, "end_us": at + us / 2}
                  for number, us in enumerate(times_us) for at in (0, 500)]
        return [*halves, {"kind": "forward", "iteration": 0, "begin_us": 0, "end_us": 9000}]

    monkeypatch.setattr(slow_link, "gathered", lambda own: [own, {0: 120.0, 1: 80.0, 7: 1.0}])
    monkeypatch.setattr(slow_link.ranks, "agreed", lambda value: value)
    assert slow_link.skew(backwards(100, 100, 100)) == pytest.approx((120 + 100) / (110 + 90))


@pytest.mark.parametrize("scheme, slower", [("wfbp", True), ("dear", True), ("deft", False), ("local_sgd", False)])
def test_a_prediction_waits_for_the_slowest_rank_where_every_iteration_does(scheme, slower):
    workload = {"version": 1, "name": "two", "layers": [
        {"name": name, "forward_us": 100.0, "backward_us": 200.0,
         "tensors": [{"name": f"{name}.w", "numel": 1000, "dtype": "float32"}]}
        for name in ("a", "b")]}
    cluster = {"version": 1, "workers": 2, "links": [{"name": "l", "startup_us": 20.0, "us_per_byte": 0.05}]}
    setting = slow_link.Setting(2.0, 0, 1.0, 1.0, cluster, workload=workload)
    plan = core.make_plan(workload, cluster, scheme)

    def iteration_us(**how):
        return setting.simulate(plan, **how)["iteration_us"]

    alone = iteration_us()
    assert (iteration_us(lockstep=1.5) > alone) == slower and iteration_us(speed=1.5) > alone
    setting.skew = 1.5
    assert (iteration_us() > alone) == slower


def test_a_step_of_a_part_takes_what_is_beyond_its_share_of_the_whole_step(monkeypatch):
    def steps(*of_iterations):
        return [{"kind": "optimizer", "iteration": number, "begin_us": 1000 * number, "end_us": 1000 * number + us}
                for number, steps_us in enumerate(of_iterations) for us in steps_us]

    monkeypatch.setattr(slow_link, "gathered", lambda own: [own, own + 4])
    forward = [{"kind": "forward", "iteration": 0, "begin_us": 0, "end_us": 500}]
    # The whole takes 60 us, its three parts take 150: 30 more for each, and 34 on the other rank.
    assert slow_link.of_a_part(steps([50], [70]) + forward, forward + steps([40, 50, 60], [50, 50, 50])) == pytest.approx(32)
    assert slow_link.of_a_part(steps([90]), steps([10, 20, 30])) == 0
