"""Workload and cluster files: one layer, one link a line; numbers as exact decimals."""

import json
from decimal import Decimal
from fractions import Fraction


def microseconds(ns):
    """Integer nanoseconds as a decimal of microseconds without trailing zeros."""
    return f"{ns // 1000}.{ns % 1000:03d}".rstrip("0").rstrip(".")


def significant(value, digits=5):
    """A positive rational rounded to that many significant digits, in plain notation."""
    value = Fraction(value)
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits + 1)) if exact else Decimal(0)
    text = format(rounded, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _document(head, key, lines):
    body = "".join(f'  {json.dumps(name)}: {value},\n' for name, value in head)
    return "{\n" + body + f'  "{key}": [\n' + ",\n".join("    " + line for line in lines) + "\n  ]\n}\n"


def workload_text(workload):
    """The file's text.

    workload: name, description, source, layers of (name, forward ns, backward ns, communication ns or None, tensors).
    """
    lines = []
    for name, forward, backward, communication, tensors in workload["layers"]:
        fields = [f'"name": {json.dumps(name)}', f'"forward_us": {microseconds(forward)}',
                  f'"backward_us": {microseconds(backward)}']
        if communication is not None:
            fields.append(f'"communication_us": {microseconds(communication)}')
        if tensors is not None:
            texts = [json.dumps({"name": n, "numel": numel, "dtype": dtype}) for n, numel, dtype in tensors]
            fields.append(f'"tensors": [{", ".join(texts)}]')
        lines.append("{" + ", ".join(fields) + "}")
    head = [("version", "1")] + [(key, json.dumps(workload[key])) for key in ("name", "description", "source")]
    return _document(head, "layers", lines)


def cluster_text(cluster):
    """The file's text.

    cluster: description, source, workers, workers_per_node, startup_growth, links of (name, startup us, us per byte,
    concurrency, relative time).
    """
    lines = [f'{{"name": {json.dumps(name)}, "startup_us": {significant(startup)}, "us_per_byte": {significant(rate)}, '
             f'"concurrency": {concurrency}, "relative_time": {significant(relative)}}}'
             for name, startup, rate, concurrency, relative in cluster["links"]]
    head = [("version", "1"), ("description", json.dumps(cluster["description"])),
            ("source", json.dumps(cluster["source"])), ("workers", cluster["workers"]),
            ("workers_per_node", cluster["workers_per_node"]), ("startup_growth", json.dumps(cluster["startup_growth"]))]
    return _document(head, "links", lines)
