"""The comparison's measurements, its emulated link for DistributedDataParallel and its report."""

import json
import time

import pytest
import torch
from torch import distributed

import ranks
from gradweave import probe
from gradweave.lab import emulated_ddp, report, slow_link, turns
from gradweave.lab.training import Recipe


def _contestant(name, segments, accuracy=None, loss=0.5, iterations=30):
    made = turns.Contestant(name, None, None, segment_seconds=segments, iterations=iterations, loss=loss)
    made.accuracy = accuracy
    return made


class Setting(slow_link.Setting):
    def coverage(self):
        return 1.9


SETTING = Setting(2.0, 1 << 20, 0.1, 4e8, {}, residual=0.02, contention=1.1, skew=1.05, apply_us=90.0, handover_us=300.0,
                  launch_us=200.0, burst_us=100.0)


def _results(delayed_accuracy):
    contestants = [_contestant("compute alone", [0.10, 0.10, 0.11]),
                   _contestant("DDP (default)", [0.30, 0.36, 0.33], 80.0),
                   _contestant("DDP (tuned: 1 MB)", [0.25, 0.24, 0.26], 80.0),
                   _contestant("late", [0.10, 0.12, 0.11], delayed_accuracy),
                   _contestant("exact", [0.20, 0.20, 0.22], 80.2)]
    predicted = {"iteration_us": 121000.0, "exposed_us": 2000.0, "updates_per_iteration": 0.5, "staleness_max": 2,
                 "lower_bound_us": 1.0, "lower_bound": "compute", "extra_bytes": 3, "more": 1}
    return report.results(SETTING, contestants, {"late": predicted}, Recipe(), 2)


def test_ratios_are_taken_within_a_round():
    default = _contestant("a", [0.30, 0.36, 0.33])
    assert turns.ratio(_contestant("b", [0.10, 0.12, 0.11]), default) == pytest.approx((3, 3, 3))
    assert turns.ratio(_contestant("b", [0.10, 0.18, 0.11]), default) == pytest.approx((3, 2, 3))


def test_the_fastest_way_is_recommended_only_if_it_is_accurate():
    assert _results(79.5)["recommended"] == "late"
    assert _results(70.0)["recommended"] == "exact"


def test_no_speed_stands_without_an_accuracy():
    text = report.text(_results(70.0), "out")
    for line in text.splitlines():
        if " ms " in line and "compute alone" not in line and "link of" not in line:
            assert line.rstrip().endswith("%"), line
        if "times DDP" in line:
            assert "%" in line, line
    assert "not recommended: late is 3.00 times DDP (default) but reaches 70.0%" in text


def test_results_are_json_with_prediction_and_measurement():
    rows = json.loads(json.dumps(_results(79.5)))["contestants"]
    late = next(row for row in rows if row["name"] == "late")
    assert late["measured_ms"] == pytest.approx(110) and late["predicted_ms"] == 121
    assert late["prediction_error"] == pytest.approx(0.1) and late["exposed_ms"] == pytest.approx(10)


def _trained(rank, hook=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
    if hook:
        hook.register(wrapped)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    begin = time.perf_counter()
    for _ in range(5):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 64, generator=generator)).square().sum().backward()
        optimizer.step()
    return list(model.parameters()), (time.perf_counter() - begin) / 5


def _trains_on_an_emulated_link(rank):
    size = 4 * (64 * 64 + 64) * 4
    hook = emulated_ddp.EmulatedHook(startup_us=0, us_per_byte=0.04 / size * 1e6)
    slow, seconds = _trained(rank, hook)
    hook.close()
    plain, _ = _trained(rank)
    assert all(torch.equal(a, b) for a, b in zip(slow, plain))
    assert 0.04 <= seconds < 0.4, seconds


def test_an_emulated_link_takes_its_time_and_changes_no_result():
    ranks.run(_trains_on_an_emulated_link, 2, timeout=60)


def _measures_every_size(rank):
    def measured(seconds, emulation=(0.0, 0.0)):
        cluster, (residual,) = probe.measure_links({"net": distributed.group.WORLD}, "three", seconds, emulation)
        everybodys = [None] * 3
        distributed.all_gather_object(everybodys, (cluster, residual))
        assert everybodys == [(cluster, residual)] * 3
        assert (cluster.workers, cluster["description"]) == (3, "three") and residual >= 0
        return cluster["links"][0]

    link = measured(0.3)
    assert link["name"] == "net"
    for line in (link, link["reduce_scatter"], link["all_gather"]):
        assert line["startup_us"] + 65536 * line["us_per_byte"] > 0
    slow = measured(0.6, (2000.0, 0.01))
    assert slow["startup_us"] + 65536 * slow["us_per_byte"] > 0.9 * (2000 + 655.36), slow
    begin = time.perf_counter()
    slower = measured(0.8, (0.0, 0.2))
    # Sizes that take longer than the time that there is are left out, but for the smallest half of them.
    assert slower["measured_bytes"] == [1 << 13, 1 << 19] and time.perf_counter() - begin < 30, slower


def test_probe_measures_every_size_on_all_ranks():
    ranks.run(_measures_every_size, 3, timeout=60)
