"""All workloads, as plain data for files.workload_text."""

from . import published
from .measure import ddp_buckets, split_exactly
from .networks import catalogue, layers_of
from .published import COVAP_TABLE1, DEFT_TABLE1, MS, US


def network_workload(name, architecture, compute, dtype, description, source, communication=None):
    """One layer per module; a given total communication (ns) is shared by elements."""
    layers = layers_of(architecture)
    forward = split_exactly(compute[0], [layer.forward_flops for layer in layers])
    backward = split_exactly(compute[1], [layer.backward_flops for layer in layers])
    shares = [None] * len(layers)
    if communication is not None:
        shares = split_exactly(communication, [sum(numel for _, numel in layer.tensors) for layer in layers])
    return {"name": name, "description": description, "source": source, "layers": [
        (layer.name, f, b, c if layer.tensors else None, [(tensor, numel, dtype) for tensor, numel in layer.tensors])
        for layer, f, b, c in zip(layers, forward, backward, shares, strict=True)]}


def bucket_workload(name, architecture, compute, communication, description, source):
    """One layer per bucket. communication is the time of each bucket, or one total that they share by elements (ns)."""
    buckets = ddp_buckets(layers_of(architecture))
    elements = [bucket[2] for bucket in buckets]
    forward = split_exactly(compute[0], [bucket[0] for bucket in buckets])
    backward = split_exactly(compute[1], [bucket[1] for bucket in buckets])
    if isinstance(communication, int):
        communication = split_exactly(communication, elements)
    return table_workload(name, forward, backward, communication, elements, description, source)


def table_workload(name, forward, backward, communication, elements, description, source):
    """A table of buckets as it stands; without elements the file has no tensors."""
    sizes = elements or [None] * len(forward)
    return {"name": name, "description": description, "source": source, "layers": [
        (f"bucket{i}", f, b, c, None if numel is None else [(f"bucket{i}.grad", numel, "float32")])
        for i, (f, b, c, numel) in enumerate(zip(forward, backward, communication, sizes, strict=True), 1)]}


BUCKETS = "bucket 1 is nearest the input"
SHARED = ("Buckets: PyTorch's initial ones (1 MiB, then 25 MiB, forward order); they share the compute by floating-point "
          "operations and the communication by elements.")


DREAMDDP_SOURCE = (
    "Compute and communication: not printed; solved from DreamDDP's Table 1, 32 workers (S-SGD = compute + communication, "
    f"FLSGD = compute + communication / H) with H = {published.DREAMDDP_PERIOD}, which the paper does not state, and "
    "backward = 2 forward. "
    "Layers share compute by floating-point operations and communication by elements.")


def published_workloads():
    forward, backward = published.DEFT_TABLE2_FORWARD, published.DEFT_TABLE2_BACKWARD
    communication, elements = published.DEFT_TABLE2_COMMUNICATION, published.VGG19_BUCKETS
    assert [bucket[2] for bucket in ddp_buckets(layers_of("VGG-19"))] == elements
    table2 = ("DeFT, Table II, in microseconds (printed as ms); its communication column sums to 247725, not to the printed "
              "257725.")
    files = {
        "deft-table2-vgg19": table_workload(
            "VGG-19 in 6 buckets (DeFT, Table II)", forward, backward, communication, elements,
            f"VGG-19 on 16 A100 over 40 GbE; {BUCKETS}", table2 + " Elements: COVAP, Table V."),
        "deft-table2-vgg19-times": table_workload(
            "VGG-19 in 6 buckets, times only (DeFT, Table II)", forward, backward, communication, None,
            f"As deft-table2-vgg19, without tensors; {BUCKETS}", table2),
        "covap-table5-vgg19": bucket_workload(
            "VGG-19 in 6 buckets (COVAP, Table V)", "VGG-19", COVAP_TABLE1["VGG-19"][:2],
            published.COVAP_TABLE5_COMMUNICATION, f"VGG-19 on 64 V100 over 30 Gb/s; {BUCKETS} (the paper's tensor 6)",
            "Elements and communication: COVAP, Table V. Compute: COVAP, Table I, 105 ms before the backward pass and 210 ms, "
            "shared by floating-point operations."),
    }
    for paper, table, rows, machine in (("deft", "DeFT, Table I", DEFT_TABLE1, "16 A100 over 40 GbE"),
                                        ("covap", "COVAP, Table I", COVAP_TABLE1, "64 V100 over 30 Gb/s")):
        for network, (first, second, third) in rows.items():
            architecture = {"GPT-2": "GPT-2, Chinese", "Bert": "BERT-Base, Chinese"}.get(network, network)
            file = f"{paper}-table1-{network.lower().replace('-', '')}"
            files[file] = bucket_workload(f"{network} ({table})", architecture, (first, second), third,
                                          f"{network} on {machine}; {BUCKETS}",
                                          f"Totals: {table}, {first / MS:g}, {second / MS:g} and {third / MS:g} ms. " + SHARED)
    for network, architecture, data in (("ResNet-50", "ResNet-50, CIFAR-100", "CIFAR-100"), ("GPT-2", "GPT-2", "WikiText-2")):
        *compute, communication = published.dreamddp_times(network)
        files[f"dreamddp-table1-{network.lower().replace('-', '')}"] = network_workload(
            f"{network} (DreamDDP, Table 1)", architecture, compute, "float32",
            f"{network} on {data}, 32 workers, by layers", DREAMDDP_SOURCE, communication)
    return files


def synthetic(name, rows, description):
    """rows: (layer, forward us, backward us, tensors); a tensor is (name, numel) or (name, numel, dtype)."""
    return {"name": name, "description": description, "source": "Invented.", "layers": [
        (layer, forward * US, backward * US, None, [(f"{layer}.{t[0]}", t[1], *(t[2:] or ["float32"])) for t in tensors])
        for layer, forward, backward, tensors in rows]}


def synthetic_workloads():
    sizes = [1000, 10000, 30000, 60000, 120000, 250000, 4000000, 500000]
    return {
        "tiny": synthetic("tiny", [
            ("input", 100, 200, [("weight", 50000)]), ("hidden", 200, 400, [("weight", 100000)]),
            ("output", 50, 100, [("weight", 25000)])], "Three layers in round numbers, for the documentation's timelines"),
        "one-layer": synthetic("one-layer", [("only", 1000, 2000, [("weight", 1000000)])],
                               "One layer: nothing in the backward pass to overlap with"),
        "uniform": synthetic("uniform", [(f"layer{i}", 1000, 2000, [("weight", 500000)]) for i in range(1, 13)],
                             "Twelve equal layers"),
        "skewed": synthetic("skewed", [
            (f"layer{i}", 8000 >> i, 16000 >> i, [("weight", size)]) for i, size in enumerate(sizes)],
            "Compute near the input, elements near the output, as in VGG"),
        "many-small": synthetic("many-small", [
            (f"layer{i}", 20, 40, [("weight", 256 + 64 * (i % 60)), ("bias", 16 + i % 5)]) for i in range(100)],
            "200 small tensors: start-up costs dominate"),
        "edge-cases": synthetic("edge-cases", [
            ("embedding", 0, 0, [("weight", 1000003)]), ("activation", 10, 20, []),
            ("half", 100, 200, [("weight", 65537, "float16"), ("bias", 1, "float16")]),
            ("brain", 100, 200, [("weight", 4096, "bfloat16"), ("scale", 1)]), ("free", 0, 0, []),
            ("head", 1, 2, [("weight", 7)])], "Layers without time or tensors, odd sizes, several dtypes"),
    }


def all_workloads():
    """File stem -> workload, in three groups: published tables, networks, synthetic."""
    networks = {row[0]: network_workload(*row[1:]) for row in catalogue()}
    return {"published": published_workloads(), "networks": networks, "synthetic": synthetic_workloads()}
