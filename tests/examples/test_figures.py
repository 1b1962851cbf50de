"""What a page says was measured stands in what is written from results: on the page itself, or on the pages that it quotes."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("GRADWEAVE_COMMAND", ROOT / "build" / "gradweave"))
# {page: (pages of docs/ that it quotes, figures that are settings, aims, or of what keeps no results)}
PAGES = {
    "README.md": ((), "2.11 2.13 2.15"),
    "docs/performance.md": (
        ("results/accuracy.md", "results/engine.md", "results/following.md", "results/schemes.md"), "2.13 5"),
    "docs/choosing.md": (("results/schemes.md", "results/accuracy.md", "preserver.md"), ""),
    "docs/limits.md": (("../README.md", "performance.md", "results/accuracy.md", "results/churn.md"), "2.11 2.12 2.13"),
    "docs/schemes/auto.md": (("results/accuracy.md", "preserver.md"), "0.05 0.9 0.01 0.4 0.6"),
    "docs/schemes/compressors.md": (
        ("results/accuracy.md",),
        "0.01 0.001 0.05 0.5 0.6 0.9 88.57 88.74 88.76 88.85 88.89 88.97 89.16 89.30 89.45 87.23 87.67"),
    "docs/results/accuracy.md": (
        ("results/schemes.md",),
        "0.9 0.05 0.001 0.003 0.02 0.3 0.8 2.8 3.3 5 0.25 0.5 1.5 4.30 1.433 1.462 1.507 1.510 1.516 1.534 1.551 1.569 "
        "1.563 1.670 1.715 2.354 1.508 1.585 1.615 1.659 1.689 1.810 1.917 1.857 1.949 1.657 1.441 1.490 1.515 1.428 1.709 "
        "1.460 1.565 1.535 1.516 1.554 1.612 1.626"),
    "docs/results/islands.md": ((), "0.1"),
    "docs/results/churn.md": ((), "0.05 0.9 0.001 0.3 5"),
}
GENERATED = re.compile(r"^<!-- ([\w ]+): begin -->$.*?^<!-- \1: end -->$", re.M | re.S)
NO_PROSE = re.compile(r"^```.*?^```$|^    .*?$|`[^`\n]*`|\]\([^)]*\)", re.M | re.S)
# With a point, a sign, or a unit of what is measured.
FIGURE = re.compile(r"(?<![\w.^/+-])([-+]?\d+\.\d+|[-+]\d+|\d+(?= (?:%|s |times as fast|points)))(?![\w.]*\w)")


def generated(text):
    return "".join(found[0] for found in GENERATED.finditer(text))


def unfounded(told, measured, settings):
    """Figures of `told`, outside of what is generated there, that no number in `measured` rounds to."""
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", measured)]
    prose = NO_PROSE.sub("", GENERATED.sub("", told))
    return [figure for figure in FIGURE.findall(prose) if figure not in settings.split()
            and abs(float(figure)) not in (round(number, len(figure.partition(".")[2])) for number in numbers)]


@pytest.mark.parametrize("page", PAGES)
def test_figures_are_those_of_the_results(page):
    quoted, settings = PAGES[page]
    text = (ROOT / page).read_text()
    measured = generated(text) + "".join(generated((ROOT / "docs" / name).read_text()) for name in quoted)
    assert not unfounded(text, measured, settings)


def test_a_figure_that_was_not_measured_is_found():
    page = "<!-- a table: begin -->\n| 3.14 | -0.33 |\n<!-- a table: end -->\n"
    assert not unfounded(page + "It loses 0.33 points, 0.3 in short; 3 % of 3.1, by C++20.", generated(page), "")
    assert unfounded(page + "It loses 0.34 points, 4 % and 2.5 of that.", generated(page), "2.5") == ["0.34", "4"]


# page, workload, cluster, scheme with options, milliseconds of an iteration as the page has them
SIMULATED = [
    *(("schemes/local_sgd.md", "resnet50", "slow-400m-2", f"local_sgd period=5{more}", ms)
      for more, ms in (("", "629.1"), (" compressor=int4", "272.8"), (" compressor=ef_signsgd", "234.5"))),
    *(("schemes/partial_sgd.md", "resnet50", "slow-400m-2", f"{scheme} period=5{more}", ms)
      for scheme, more, ms in (("partial_sgd", "", "546.0"), ("dreamddp", "", "491.0"),
                               ("partial_sgd", " compressor=int4", "226.0"), ("dreamddp", " compressor=int4", "220.1"))),
    ("schemes/delayed_averaging.md", "resnet50", "slow-400m-2", "delayed_averaging", "220.0"),
    ("schemes/delayed_averaging.md", "resnet50", "slow-400m-2", "wfbp", "2198"),
    *(("schemes/covap.md", f"covap-{network}", "eth-30g-64", scheme, ms)
      for network, scheme, ms in (("table5-vgg19", "ddp", "935.1"), ("table5-vgg19", "covap", "323.6"),
                                  ("table1-resnet101", "ddp", "335.9"), ("table1-resnet101", "covap", "199.5"),
                                  ("table1-bert", "ddp", "611.2"), ("table1-bert", "covap", "287.5"))),
    *(("schemes.md", f"resnet101{kind}", "eth-10g-16", scheme, ms)
      for scheme, *both in (("wfbp", "707.5", "703.5"), ("ddp", "336.0", "332.0"), ("mg_wfbp", "333.2", "330.7"),
                            ("us_byte", "278.4", "280.0"), ("dear", "280.4", "282.0"), ("delayed_averaging", "177.0", "190.0"))
      for kind, ms in zip(("", "-v100"), both)),
    ("schemes/bytescheduler.md", "densenet201", "eth-10g-8", "bytescheduler", "662"),
    ("schemes/bytescheduler.md", "densenet201", "eth-10g-8", "us_byte", "193"),
    ("schemes/sequential.md", "deft-table2-vgg19", "deft-table2-one-link", "sequential", "378.0"),
    ("schemes/wfbp.md", "deft-table2-vgg19", "deft-table2-one-link", "wfbp", "285.053"),
    ("schemes/optimal.md", "deft-table2-vgg19", "deft-table2-one-link", "p3", "247.990"),
]


def iteration_us(workload, cluster, scheme, given=None):
    """What `gradweave compare` predicts for a scheme with its options; `given`: its standard input."""
    name, *options = scheme.split()
    settings = [word for option in options for word in ("--set", option)]
    printed = subprocess.run([COMMAND, "compare", "--workload", workload, "--cluster", cluster, "--schemes", name, *settings,
                              "--json"], input=given, capture_output=True, text=True, check=True).stdout
    found, = [row["iteration_us"] for row in json.loads(printed)["schemes"] if row["name"] == name]
    return found


@pytest.mark.parametrize("page, workload, cluster, scheme, ms", SIMULATED, ids=lambda value: value)
def test_simulated_figures_are_those_of_the_simulator(page, workload, cluster, scheme, ms):
    examples = ROOT / "examples"
    found = iteration_us(examples / f"workloads/{workload}.json", examples / f"clusters/{cluster}.json", scheme) / 1e3
    assert f"{found:.{len(ms.partition('.')[2])}f}" == ms
    assert ms in (ROOT / "docs" / page).read_text()


@pytest.mark.parametrize("rate, scheme, times", [
    (2, "ddp", "2.8"), (64, "ddp", "64"), (2, "delayed_averaging compressor=int4", "1.0"),
    (2, "local_sgd compressor=int4 period=1", "1.26"), (64, "local_sgd compressor=ef_signsgd period=3", "1.75")])
def test_what_waiting_for_averages_takes(rate, scheme, times):
    workload = ROOT / "bench/workloads/large-gpt.json"
    layers = json.loads(workload.read_text())["layers"]
    compute_us = sum(layer["forward_us"] + layer["backward_us"] for layer in layers)
    size = sum(4 * tensor["numel"] for layer in layers for tensor in layer["tensors"])
    link = {"name": "link", "startup_us": 50, "us_per_byte": (rate * compute_us - 50) / size}
    found = iteration_us(workload, "-", scheme, json.dumps({"version": 1, "workers": 2, "links": [link]})) / compute_us
    assert f"{found:.{len(times.partition('.')[2])}f}" == times
