#!/usr/bin/env python3
"""Writes examples/workloads, examples/clusters and the tables of examples/README.md.

    python scripts/make_examples.py            write them
    python scripts/make_examples.py --check    exit 1 and name the files that differ
    python scripts/make_examples.py -o DIR     write below DIR instead (README.md is taken from examples/)

Needs torch (any build: networks live on the meta device, nothing is computed).
"""

import argparse
import sys
from pathlib import Path

from examples.clusters import all_clusters
from examples.files import cluster_text, workload_text
from examples.readme import with_tables
from examples.workloads import all_workloads

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def texts():
    """Path below examples/ -> content, in a fixed order."""
    groups, clusters = all_workloads(), all_clusters()
    files = {f"workloads/{stem}.json": workload_text(workload)
             for group in groups.values() for stem, workload in group.items()}
    files |= {f"clusters/{stem}.json": cluster_text(cluster) for stem, cluster in clusters.items()}
    files["README.md"] = with_tables((EXAMPLES / "README.md").read_text(encoding="utf-8"), groups, clusters)
    return files


def main():
    parser = argparse.ArgumentParser(description="Regenerate the example workloads and clusters.")
    parser.add_argument("-o", "--output", type=Path, default=EXAMPLES, help="folder to write to (default: examples/)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file differs")
    arguments = parser.parse_args()
    files = texts()
    known = {path.relative_to(arguments.output).as_posix() for folder in ("workloads", "clusters")
             for path in (arguments.output / folder).glob("*.json")}
    stale = sorted(known - set(files))
    if arguments.check:
        differing = stale + [name for name, text in files.items() if not (arguments.output / name).is_file()
                             or (arguments.output / name).read_bytes() != text.encode()]
        for name in differing:
            print(f"{name}: differs; run `make examples`", file=sys.stderr)
        return 1 if differing else 0
    for name, text in files.items():
        path = arguments.output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    for name in stale:
        print(f"{name}: nothing generates this file", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
