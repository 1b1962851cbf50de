"""What the demo measures of messages beside a job, with collectives and timelines whose times are known."""

import pytest

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
    monkeypatch.setattr(slow_link.core, "make_plan", lambda *arguments: None)
    monkeypatch.setattr(slow_link.turns, "recorded", lambda *arguments: {"spans": [first, behind, idle, long]})

    def of_two_ranks(own):
        """On the other rank each op waits for this one: behind others for its threads, after a pause for its compute."""
        return [own, {op: (us + (1_000 if idle else 20), idle) for op, (us, idle) in own.items()}]

    monkeypatch.setattr(slow_link, "gathered", of_two_ranks)
    monkeypatch.setattr(slow_link.ranks, "agreed", lambda value: value)
    assert slow_link.delays_in(lambda: None, setting) == pytest.approx(expected)
