"""The generated tables of examples/README.md."""

from .files import significant


def ms(ns):
    return f"{ns / 1e6:.3f}".rstrip("0").rstrip(".")


def workload_row(stem, workload):
    layers = workload["layers"]
    sizes = [numel for *_, tensors in layers for _, numel, _ in tensors or []]
    total = ms(sum(layer[3] or 0 for layer in layers)) if any(layer[3] is not None for layer in layers) else "–"
    elements = f"{sum(sizes):,}" if sizes else "–"
    return (f"| [`{stem}`](workloads/{stem}.json) | {workload['description']} | {len(layers)} | {len(sizes) or '–'} "
            f"| {elements} | {ms(sum(layer[1] for layer in layers))} | {ms(sum(layer[2] for layer in layers))} | {total} "
            f"| {workload['source']} |")


def workload_table(workloads):
    head = ("| file | what | layers | tensors | elements | forward (ms) | backward (ms) | communication (ms) "
            "| where the numbers come from |\n"
            "|---|---|--:|--:|--:|--:|--:|--:|---|\n")
    return head + "".join(workload_row(stem, workload) + "\n" for stem, workload in workloads.items())


def cluster_row(stem, cluster):
    links = "; ".join(f"`{name}` {significant(startup)} µs + {significant(rate)} µs/byte"
                      for name, startup, rate, *_ in cluster["links"])
    return (f"| [`{stem}`](clusters/{stem}.json) | {cluster['description']} | {cluster['workers']} | {links} "
            f"| {cluster['startup_growth']} | {cluster['source'].strip()} |")


def cluster_table(clusters):
    head = "| file | what | workers | links | start-up growth | where the numbers come from |\n|---|---|--:|---|---|---|\n"
    return head + "".join(cluster_row(stem, cluster) + "\n" for stem, cluster in clusters.items())


def with_tables(text, groups, clusters):
    """The README with each table between its markers replaced."""
    tables = {name: workload_table(workloads) for name, workloads in groups.items()}
    tables["clusters"] = cluster_table(clusters)
    for name, table in tables.items():
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
        before, rest = text.split(begin)
        text = before + begin + table + end + rest.split(end)[1]
    return text
