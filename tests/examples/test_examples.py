"""The example files keep the format's rules and the published sums; regenerating them changes nothing."""

import importlib.util
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = sorted((ROOT / "examples" / "workloads").glob("*.json"))
CLUSTERS = sorted((ROOT / "examples" / "clusters").glob("*.json"))
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def unique_object(pairs):
    keys = [key for key, _ in pairs]
    assert len(keys) == len(set(keys)), f"duplicate key in {keys}"
    return dict(pairs)


def load(path):
    return json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal, object_pairs_hook=unique_object)


def workload(stem):
    return load(ROOT / "examples" / "workloads" / f"{stem}.json")


def cluster(stem):
    return load(ROOT / "examples" / "clusters" / f"{stem}.json")


def column(document, key):
    return [layer[key] for layer in document["layers"] if key in layer]


def tensors(document):
    return [tensor for layer in document["layers"] for tensor in layer.get("tensors", [])]


def is_time(value):
    """A number of microseconds, at least 0, that is a whole number of nanoseconds."""
    return not isinstance(value, bool) and isinstance(value, (int, Decimal)) and value >= 0 and value * 1000 % 1 == 0


def test_there_are_files():
    assert len(WORKLOADS) >= 25 and len(CLUSTERS) >= 10


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.stem)
def test_workload_keeps_the_format(path):
    document = load(path)
    assert set(document) == {"version", "name", "description", "source", "layers"}
    assert document["version"] == 1
    assert all(document[key] for key in ("name", "description", "source")) and document["layers"]
    for layer in document["layers"]:
        assert {"name", "forward_us", "backward_us"} <= set(layer)
        assert set(layer) <= {"name", "forward_us", "backward_us", "communication_us", "tensors"}
        assert is_time(layer["forward_us"]) and is_time(layer["backward_us"]) and is_time(layer.get("communication_us", 0))
        # Without tensors a layer communicates only if it gives a time instead.
        assert bool(layer.get("tensors")) or ("tensors" in layer) != ("communication_us" in layer)
        for tensor in layer.get("tensors", []):
            assert set(tensor) == {"name", "numel", "dtype"}
            assert type(tensor["numel"]) is int and tensor["numel"] >= 1 and tensor["dtype"] in DTYPE_BYTES
    for names in (column(document, "name"), [tensor["name"] for tensor in tensors(document)]):
        assert all(names) and len(names) == len(set(names))


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_cluster_keeps_the_format(path):
    document = load(path)
    assert set(document) == {"version", "description", "source", "workers", "workers_per_node", "startup_growth", "links"}
    assert document["version"] == 1 and document["description"] and document["source"] and document["links"]
    assert type(document["workers"]) is int and document["workers"] >= 2
    assert document["workers"] % document["workers_per_node"] == 0
    assert document["startup_growth"] in {"linear", "log", "constant"}
    for link in document["links"]:
        assert set(link) == {"name", "startup_us", "us_per_byte", "concurrency", "relative_time"}
        assert is_time(link["startup_us"]) and link["us_per_byte"] > 0
        assert type(link["concurrency"]) is int and link["concurrency"] >= 0 and link["relative_time"] > 0
    names = [link["name"] for link in document["links"]]
    assert all(names) and len(names) == len(set(names))


def test_names_of_workloads_are_unique():
    names = [load(path)["name"] for path in WORKLOADS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("stem", ["deft-table2-vgg19", "deft-table2-vgg19-times"])
def test_deft_table_2(stem):
    document = workload(stem)
    assert column(document, "forward_us") == [1238, 28799, 4801, 1899, 326, 103]
    assert column(document, "backward_us") == [72496, 12786, 4872, 2319, 484, 162]
    assert column(document, "communication_us") == [1968, 11262, 15447, 178643, 31754, 8651]
    sums = [sum(column(document, key)) for key in ("forward_us", "backward_us", "communication_us")]
    assert sums == [37166, 93119, 247725]


# Elements, tensors, layers with tensors. Tensors and layers of the five networks of DeAR's Table I are the paper's.
NETWORKS = {
    "vgg16": (138357544, 32, 16), "vgg19": (143667240, 38, 19), "vgg19-v100": (143667240, 38, 19),
    "resnet50": (25557032, 161, 107), "resnet101": (44549160, 314, 209), "resnet101-v100": (44549160, 314, 209),
    "resnet152": (60192808, 467, 311), "densenet201": (20013928, 604, 402), "inception-v4": (42679816, 449, 299),
    "bert-base": (110106428, 206, 105), "bert-large": (336226108, 398, 201),
    "bert-base-chinese-v100": (102267648, 199, 101), "gpt2": (124439808, 148, 75), "gpt2-chinese": (81894144, 124, 63),
    "llama-1.1b": (1100048384, 201, 201), "dreamddp-table1-resnet50": (23712932, 161, 107),
    "dreamddp-table1-gpt2": (124439808, 148, 75)}


@pytest.mark.parametrize("stem", NETWORKS)
def test_network_has_the_published_size(stem):
    document = workload(stem)
    own = tensors(document)
    with_tensors = sum(bool(layer["tensors"]) for layer in document["layers"])
    assert (sum(tensor["numel"] for tensor in own), len(own), with_tensors) == NETWORKS[stem]


# Forward, backward and communication in ms, as printed.
TOTALS = {
    "vgg19": ("37.166", "93.119"), "resnet101": (59, 118), "gpt2-chinese": (169, 381),
    "vgg19-v100": (105, 210), "resnet101-v100": (55, 135), "bert-base-chinese-v100": (80, 170),
    "deft-table1-resnet101": (59, 118, 242), "deft-table1-vgg19": (37, 93, 258), "deft-table1-gpt2": (169, 381, "546.4"),
    "covap-table1-resnet101": (55, 135, 280), "covap-table1-vgg19": (105, 210, 842), "covap-table1-bert": (80, 170, 520),
    "covap-table5-vgg19": (105, 210, "830.094")}


@pytest.mark.parametrize("stem", TOTALS)
def test_times_sum_to_the_published_totals(stem):
    document = workload(stem)
    keys = ("forward_us", "backward_us", "communication_us")[:len(TOTALS[stem])]
    assert [sum(column(document, key)) for key in keys] == [1000 * Decimal(total) for total in TOTALS[stem]]


def pytorch_buckets(document, first=1 << 20, cap=25 << 20):
    """Elements of PyTorch's initial buckets: tensors in forward order, a bucket closes once it reaches its cap."""
    sizes = [0]
    for tensor in tensors(document):
        if sizes[-1] * DTYPE_BYTES[tensor["dtype"]] >= (first if len(sizes) == 1 else cap):
            sizes.append(0)
        sizes[-1] += tensor["numel"]
    return sizes


@pytest.mark.parametrize(("network", "table"), [
    ("vgg19", "deft-table2-vgg19"), ("vgg19", "covap-table5-vgg19"), ("vgg19", "deft-table1-vgg19"),
    ("resnet101", "deft-table1-resnet101"), ("gpt2-chinese", "deft-table1-gpt2"),
    ("bert-base-chinese-v100", "covap-table1-bert")])
def test_papers_buckets_are_pytorchs(network, table):
    assert [tensor["numel"] for tensor in tensors(workload(table))] == pytorch_buckets(workload(network))


def test_published_buckets_of_vgg19():
    elements = [tensor["numel"] for tensor in tensors(workload("deft-table2-vgg19"))]
    assert elements == [555072, 7669760, 7079424, 107480576, 16781312, 4101096] and sum(elements) == 143667240
    communication = column(workload("covap-table5-vgg19"), "communication_us")
    assert communication == [34218, 40743, 36513, 603238, 99205, 16177]


# Millions of parameters, S_max over 10 GbE and over 100 Gb InfiniBand (DeAR, Tables I and II).
DEAR = {"resnet50": ("25.6", "61.6", 64), "densenet201": ("20.0", 64, 64), "inception-v4": ("42.7", "59.8", 64),
        "bert-base": ("110.1", "25.5", 64), "bert-large": ("336.2", "12.1", "51.8")}


@pytest.mark.parametrize("stem", DEAR)
def test_dear_speed_limits_follow_from_the_files(stem):
    """Eq. 6, with half an all-reduce = m / B: B is 10 Gb/s, and what ib-100g-64 implies by its ring of 64."""
    millions, *expected = DEAR[stem]
    forward, backward = (sum(column(workload(stem), key)) for key in ("forward_us", "backward_us"))
    ring = Decimal(2 * 63) / 64
    for rate, limit in zip((Decimal("0.0008"), cluster("ib-100g-64")["links"][0]["us_per_byte"] / ring), expected,
                           strict=True):
        half = Decimal(millions) * 4 * 10**6 * rate
        exposed = max(half - backward, 0) + max(half - forward, 0)
        assert abs(64 * (forward + backward) / (forward + backward + exposed) - Decimal(limit)) < Decimal("0.05")


# Seconds of S-SGD and of FLSGD (DreamDDP, Table 1, 32 workers).
@pytest.mark.parametrize(("stem", "ssgd", "flsgd"),
                         [("dreamddp-table1-resnet50", "4.52", "0.94"), ("dreamddp-table1-gpt2", "8.67", "2.08")])
def test_dreamddp_times_follow_from_the_files(stem, ssgd, flsgd):
    forward, backward, communication = (sum(column(workload(stem), key))
                                        for key in ("forward_us", "backward_us", "communication_us"))
    assert backward == 2 * forward
    assert abs(forward + backward + communication - Decimal(ssgd) * 10**6) <= 2
    assert abs(forward + backward + communication / 8 - Decimal(flsgd) * 10**6) <= 2


def test_fitted_links_reproduce_their_tables_total():
    for table, name in (("deft-table2-vgg19", "deft-table2-one-link"), ("covap-table5-vgg19", "eth-30g-64")):
        link = cluster(name)["links"][0]
        predicted = sum(link["startup_us"] + 4 * tensor["numel"] * link["us_per_byte"] for tensor in tensors(workload(table)))
        assert abs(predicted / sum(column(workload(table), "communication_us")) - 1) < Decimal("0.0001")


def test_second_link_is_deft_mu_times_slower():
    fast, slow = cluster("deft-table2-two-links")["links"]
    assert slow["relative_time"] == Decimal("1.65") * fast["relative_time"]
    assert abs(slow["us_per_byte"] / fast["us_per_byte"] - Decimal("1.65")) < Decimal("0.001")


def test_readme_lists_every_file():
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    missing = [path.stem for path in WORKLOADS + CLUSTERS if f"({path.parent.name}/{path.name})" not in text]
    assert not missing


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_regenerating_changes_nothing():
    script = ROOT / "scripts" / "make_examples.py"
    result = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
