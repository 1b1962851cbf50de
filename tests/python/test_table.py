"""The table of every scheme: which rows there are, what is missing, how times and accuracies are put together."""

import dataclasses
import fnmatch
import json
import sys
import time
import types
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import accuracy  # noqa: E402
import first_screen  # noqa: E402
import following  # noqa: E402
import islands  # noqa: E402
import meeting  # noqa: E402
import peers  # noqa: E402
import predicted  # noqa: E402
import preserving  # noqa: E402
import ranks  # noqa: E402
import rows  # noqa: E402
import table  # noqa: E402
import table_page  # noqa: E402
import training_tables  # noqa: E402
import tuning  # noqa: E402
from streaming_diloco import StreamingDiLoCo, rounded  # noqa: E402

from gradweave import core  # noqa: E402
from gradweave.lab import training  # noqa: E402


def line(row, ms, **more):
    anchors = {name: {"measured_ms": value, "over_compute": [value / 100] * 3, "speedup_over_tuned": [290 / value] * 3,
                      "sent_bytes": 1e6} for name, value in zip(table.ANCHORS, (100, 300, 290))}
    return {"job": "small", "coverage": 2.0, "row": row, "measured_ms": ms, "over_compute": [ms / 100, ms / 110, ms / 90],
            "speedup_over_tuned": [290 / ms] * 3, "sent_bytes": 5e5, "anchors": anchors, "bits_per_second": 4e8,
            "parameter_bytes": 4e5, "workers": 2, **more}


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "table.jsonl"
    lines = [line("ddp", 280, predicted_ms=266), {"job": "small", "coverage": 2.0, "row": "dear", "refused": "first"},
             line("delayed_averaging", 105, predicted_ms=105),
             {"job": "small", "coverage": 2.0, "row": "us_byte", "refused": "no"}, line("dear", 250, predicted_ms=250)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def test_every_scheme_of_the_registry_and_every_peer_has_a_row():
    names = table.all_rows()
    assert {scheme["name"] for scheme in core.schemes()} <= set(names)
    assert {"DDP (fp16 hook)", "DDP (PowerSGD hook)", "post-local SGD", "Streaming DiLoCo"} <= set(names)
    assert len(names) == len(set(names))
    assert rows.is_exact("dear") and not rows.is_exact("local_sgd") and not rows.is_exact("ddp compressor=fp16")


def test_only_what_is_missing_is_measured_and_what_was_refused_again(results):
    options = table.parsed(["--jobs", "small", "--coverage", "2", "--results", str(results)])
    missing = [name for _, _, names in table.pieces(options) for name in names]
    assert set(table.all_rows()) - set(missing) == {"ddp", "delayed_averaging", "dear"}
    options = table.parsed(["--jobs", "small", "--coverage", "2", "--only", "delayed*", "--results", str(results)])
    assert all(name.startswith("delayed") for _, _, names in table.pieces(options) for name in names)


def test_a_turn_is_whole_periods_and_short_where_iterations_are_slow():
    assert table.turn_of(0.15) == (6, 2)
    assert table.turn_of(9.6) == (1, 2)
    timed, warm_up = table.turn_of(0.15, period=13, prologue=2)
    assert timed == 13 and warm_up == 14


def test_what_a_turn_waits_for_before_its_first_iteration_counts():
    class Slow(torch.nn.Linear):
        def parameters(self, recurse=True):  # as where an update is on its way
            time.sleep(0.1)
            return super().parameters(recurse)

    job = types.SimpleNamespace(model=Slow(2, 1), batches=iter([(torch.ones(2, 2), torch.ones(2, 1))] * 2),
                                loss=torch.nn.functional.mse_loss, zero_grad=lambda: None, step=lambda: None)
    durations, _ = training.train(job, 2)
    assert len(durations) == 2 and durations[0] >= 0.1


def test_a_peer_is_timed_once_it_sends_as_it_does_from_then_on(monkeypatch):
    trained = []
    monkeypatch.setattr(training, "train", lambda job, iterations: (trained.append(iterations), ([0.09], 0.0))[1])
    monkeypatch.setattr(table.turns, "slowest", lambda seconds: seconds)
    setting = types.SimpleNamespace(emulation=None, coverage_wanted=64.0, compute_s=0.02, coverage=lambda: 64.0)
    hook = dataclasses.replace(rows.peers()["DDP (PowerSGD hook)"], train=lambda job, steps: None)
    contestant, _ = table.peer_contestant(hook.name, hook, types.SimpleNamespace(model=None), setting, "small")
    assert trained == [peers.WHOLE, 1]
    assert contestant.turn == table.turn_of(0.09)  # by what an iteration takes then


def test_accuracy_of_compressed_gradients_is_that_of_every_rate():
    curve = [[(10, 50.0)]]
    found = {("ddp compressor=int8", 2.0): curve, ("local_sgd", 2.0): curve}
    assert table_page.curves_of("ddp compressor=int8", 64.0, found) == curve
    assert table_page.curves_of("local_sgd", 64.0, found) == []
    assert table_page.curves_of("covap", 64.0, found | {("covap", 2.0): curve}) == []  # how much it sends follows the rate
    assert table_page.curves_of("compute alone", 2.0, found) == []


def test_a_piece_at_a_high_coverage_rate_takes_longer():
    names = ["ddp", "delayed_averaging"]
    assert table.estimated_s("wide", 64, names, 2) > table.estimated_s("wide", 2, names, 2) > table.SETTING_S


def test_time_to_a_target_lies_between_the_points_of_a_curve():
    assert table_page.iterations_to([(100, 80.0), (200, 90.0)], 85.0) == 150
    assert table_page.iterations_to([(100, 80.0)], 85.0) is None
    curves = {("ddp", 2.0): [[(100, 80.0), (200, 90.0)], [(100, 85.0)]], ("local_sgd", 2.0): [[(100, 85.0)]]}
    line = {"compared_ms": 1000, "compute_ms": 500}
    assert table_page.seconds_to_target("dear", 64.0, line, curves, 85.0) == (125.0, 2, 2)
    assert table_page.seconds_to_target("local_sgd", 2.0, line, curves, 85.0) == (101.0, 1, 1)  # and one average in the end
    assert table_page.seconds_to_target("partial_sgd", 2.0, line, curves, 85.0) is None
    apart = {"post-local SGD", "Streaming DiLoCo", "delayed_averaging", "auto allow=exact+local+compressed"}
    assert {name for name in apart | {"DDP (fp16 hook)", "auto", "deft", "dear compressor=int8"}
            if table_page.differ_at_the_end(name)} == apart


def test_a_seed_that_does_not_reach_the_target_counts():
    curves = {("ddp", 2.0): [[(100, 85.0)], [(300, 85.0)], [(400, 84.0)]]}
    line = {"compared_ms": 1000, "compute_ms": 500}
    assert table_page.seconds_told(table_page.seconds_to_target("dear", 2.0, line, curves, 85.0)) == "300 s (2 of 3)"
    curves["ddp", 2.0].append([(400, 84.0)])
    assert table_page.seconds_told(table_page.seconds_to_target("dear", 2.0, line, curves, 85.0)) == "not reached (2 of 4)"


def test_the_page_has_each_row_once_and_says_what_was_refused(results):
    page = table_page.page(table_page.timed(results), {("ddp", 2.0): [[(468, 90.0)]]})
    assert page.count("| dear |") == 1 and "| dear | 250 | 2.50 (2.27 - 2.78) | 1.16 | 250 | +0.0 | 0.50 |" in page
    assert "| us_byte | refused: no |" in page and "| ddp | 280 |" in page and "| -5.0 |" in page
    assert "mean error 1.7 %, worst 5.0 %" in page
    assert "| DDP (default) | 300 |" in page


def test_times_are_compared_as_if_the_link_had_one_rate(results):
    """Of three runs, the last on a link a third as fast: what is halfway between compute and DDP (tuned) stays so."""
    slower = line("ddp compressor=int8", 385, speedup_over_tuned=[670 / 385] * 3)
    slower["anchors"][table_page.TUNED] |= {"measured_ms": 670, "over_compute": [6.7] * 3}
    hidden = slower | {"row": "delayed_averaging", "over_compute": [1.0] * 3, "speedup_over_tuned": [6.7] * 3}
    lines = [line("ddp", 280), line("dear", 250), line("wfbp", 285), slower, hidden]
    results.write_text("".join(json.dumps(each) + "\n" for each in lines))
    compared = {name: each["compared"] for name, each in table_page.timed(results)["small", 2.0].items()}
    assert compared["ddp compressor=int8"] == pytest.approx(290 / 195) and compared["ddp"] == pytest.approx(290 / 280)
    assert compared["delayed_averaging"] == pytest.approx(2.9) and compared[table_page.TUNED] == 1.0


def test_the_picture_has_a_curve_for_each_drawn_row_with_an_accuracy(results):
    drawn = (table_page.TUNED, "dear", "us_byte", "delayed_averaging", "local_sgd")
    judged = dataclasses.replace(table_page.SMALL, drawn=dict.fromkeys(table_page.PICTURED, drawn))
    curves = {("ddp", 2.0): [[(100, 80.0), (468, 90.0)]], ("delayed_averaging", 2.0): [[(100, 79.0), (468, 89.0)]]}
    drawn = table_page.picture(table_page.timed(results), curves, judged)
    assert drawn.count("<polyline") == 3  # us_byte was refused, local_sgd not measured
    assert "prefers-color-scheme: dark" in drawn and drawn.startswith("<svg") and drawn.endswith("</svg>\n")
    assert table_page.picture(table_page.timed(results), {}, judged) is None


def test_times_are_compared_as_if_the_machine_had_one_speed(results):
    """Of two lines, the second measured on a machine half as fast."""
    slow = line("local_sgd", 260)
    slow["over_compute"], slow["speedup_over_tuned"] = [1.3] * 3, [580 / 260] * 3
    for anchor in slow["anchors"].values():
        anchor["measured_ms"] *= 2
    results.write_text("".join(json.dumps(each) + "\n" for each in (line("ddp", 280), slow, slow | {"row": "partial_sgd"})))
    compared = {name: each["compared_ms"] for name, each in table_page.timed(results)["small", 2.0].items()}
    assert compared["compute alone"] == pytest.approx(200) and compared["local_sgd"] == pytest.approx(260)
    assert compared["ddp"] == pytest.approx(560) and compared[table_page.TUNED] == pytest.approx(580)


def test_in_short_the_accuracy_stands_beside_the_speed(results):
    told = table_page.in_short(table_page.timed(results), {("ddp", 2.0): [[(100, 80.0), (468, 90.0)]]})
    dear = next(row for row in told.splitlines() if row.startswith("| dear |"))
    assert dear == "| dear |  |  | 1.16 |  |  |  | 90.0 | 90.0 |"


def test_the_pages_show_what_was_measured():
    training = training_tables.sections(training_tables.load(training_tables.DOCS / "results"))
    for page, name, content in table_page.sections(*table_page.measured()) + training:
        assert training_tables.with_section(page, name, content) == page.read_text(), f"{page}, {name}: scripts/bench tables"
    others = (preserving, following, tuning, predicted, islands, meeting)
    for page, name, content in [section for module in others for section in module.sections()]:
        assert training_tables.with_section(page, name, content) == page.read_text(), f"{page}, {name}"
    for name, drawn in table_page.pictures(*table_page.measured()).items():
        assert (table_page.DOCS / name).read_text() == drawn, f"{name}: scripts/bench tables"


def test_the_first_screen_says_how_many_seeds_its_accuracies_have():
    curve = [(468, 90.0)]
    found = {("ddp", 2.0): 3 * [curve], ("DDP (fp16 hook)", 2.0): 3 * [curve], ("DDP (PowerSGD hook)", 2.0): 6 * [curve]}
    found |= {(name, rate): 3 * [curve] for name in (table_page.AVERAGES, "post-local SGD") for rate in (2.0, 64.0)}
    found |= {("Streaming DiLoCo", 2.0): 3 * [curve], ("Streaming DiLoCo", 64.0): [curve]}
    assert table_page.seeds_told(found) == "three seeds (six for DDP (PowerSGD hook), one for Streaming DiLoCo at 64)"


def test_the_first_screen_is_measured_again_by_one_command():
    (_, _, *times), (_, _, *accuracies) = first_screen.commands()
    options = table.parsed(times)
    timed = {name for name in table.all_rows() if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)}
    assert timed == set(table_page.SHOWN) - set(table.ANCHORS)
    trained = {run.method for run in accuracy.chosen_runs(accuracy.parsed(accuracies))}
    assert trained == {accuracy.SYNCHRONOUS, *(name for name in timed if not rows.is_exact(name))}


def _lands_the_mean_that_was_sent(rank):
    weight = torch.nn.Parameter(torch.zeros(3))
    inner = torch.optim.SGD([weight], lr=1.0)
    # The outer step takes over the mean: rate 1, no momentum, nothing of the own parameters.
    outer = StreamingDiLoCo([weight], inner, period=2, fragments=1, learning_rate=1.0, momentum=0.0, mixing=0.0)
    seen = []
    for step in range(4):
        outer.zero_grad()
        weight.grad = torch.full((3,), -1.0 - rank)
        outer.step()
        seen.append(weight[0].item())
    # Steps 1 and 2 are local; what was sent after step 2 has the mean 3 and lands after step 3, in place of it.
    assert seen == [1.0 + rank, 2.0 + 2 * rank, 3.0, 4.0 + rank], seen
    outer.finish()
    assert weight.tolist() == [4.5] * 3, weight


def test_plain_streaming_diloco_lands_the_mean_that_was_sent():
    ranks.run(_lands_the_mean_that_was_sent, 2, timeout=100)


def test_fragments_have_equal_shares_of_parameters_of_any_size():
    parameters = [torch.nn.Parameter(torch.arange(float(first), first + size)) for first, size in ((0, 1), (1, 9), (10, 2))]
    outer = StreamingDiLoCo(parameters, None, period=4, fragments=4)
    assert [fragment.anchor.tolist() for fragment in outer.fragments] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    for fragment in outer.fragments:
        fragment._write(-fragment.anchor)
    assert torch.equal(torch.cat([parameter.detach() for parameter in parameters]), -torch.arange(12.0))


def test_four_bits_are_a_sign_and_a_power_of_two_of_the_largest():
    message = torch.tensor([8.0, -3.1, 2.0, 0.1, 0.05, 0.0] + [0.0] * 250 + [-0.3, 0.2])
    assert rounded(message).tolist() == pytest.approx([8.0, -4.0, 2.0, 0.125, 0.0, 0.0] + [0.0] * 250 + [-0.3, 0.15])


def test_a_learning_rate_that_falls_rises_first():
    part = accuracy.RISE
    assert [accuracy.learning_rate("cosine", each) for each in (part / 2, part, 1.0)] == pytest.approx([0.5, 1.0, 0.0])
    assert accuracy.learning_rate("constant", part / 2) == 1.0


def test_results_at_a_falling_rate_have_a_table_of_their_own(tmp_path):
    path = tmp_path / "accuracy.jsonl"
    for schedule, loss in (("constant", 2.0), ("cosine", 1.5)):
        run = accuracy.asdict(accuracy.Run("ddp", "adamw", 2, 0, job="gpt", schedule=schedule))
        with path.open("a") as file:
            file.write(json.dumps({"run": run, "test_loss": [3.0, loss], "spread": 0.0}) + "\n")
    assert "| 2.000 |" in training_tables.accuracy_table(path, "gpt")
    assert "| 1.500 |" in training_tables.accuracy_table(path, "gpt", "cosine")
    assert len(accuracy.done_runs(path)) == 2


def test_the_summary_says_what_is_lost_by_how_many_seeds(tmp_path):
    path = tmp_path / "accuracy.jsonl"

    def add(method, seed, value, job="vit", rate=2.0):
        run = accuracy.asdict(accuracy.Run(method, "adamw", 2, seed, job=job, schedule="cosine", coverage=rate))
        with path.open("a") as file:
            file.write(json.dumps({"run": run, "accuracy": [value], "test_loss": [value], "spread": 0.0}) + "\n")

    for seed in range(3):
        add("ddp", seed, 85.0)
        add("ddp compressor=int8", seed, 85.001)
    add("delayed_averaging compressor=auto", 1, 84.5, rate=64.0)
    add("delayed_averaging compressor=auto", 7, 10.0, rate=64.0)  # no seed of DistributedDataParallel's
    add("ddp", 0, 1.7, job="gpt")
    add("ddp compressor=int8", 0, 1.69, job="gpt")
    _, _, pictures, text = training_tables.summary_table(path, training_tables.RECOMMENDED).splitlines()
    assert pictures == "| vision transformer | AdamW | 2 | points | 0.00 |  |  | **0.50** (1) |  |  |  |"
    assert text == "| small GPT | AdamW | 2 | nats | -0.010 (1) |  |  |  |  |  |  |"


def test_runs_whose_table_has_rows_of_another_text_are_refused(monkeypatch):
    monkeypatch.setattr(accuracy, "digest", lambda data: "this text")
    monkeypatch.setattr(accuracy, "KINDS", {name: dataclasses.replace(kind, load=lambda split: split)
                                            for name, kind in accuracy.KINDS.items()})

    def run(job, seed):
        return accuracy.Run("ddp", "adamw", 2, seed, job=job, schedule=accuracy.FALLING)

    missing = [run("gpt", 1), run("vit", 1), run("lora", 1)]
    done = {run("gpt", 0): {"text": "another"}, run("vit", 0): {}, run("lora", 0): {"text": "this text"}}
    assert accuracy.of_other_texts(missing, done) == missing[:1]
    assert accuracy.of_other_texts(missing, {run("gpt", 0): {}}) == missing[:1]  # a row that does not tell its text
    assert accuracy.of_other_texts(missing, {}) == []
