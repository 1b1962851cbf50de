"""Measures what README.md shows first again, and nothing else, into out/first-screen/, and prints it. Rows that are there are
kept.

    .venv/bin/python bench/first_screen.py    # as root, or where a user may make network namespaces
"""

import argparse
import subprocess
import sys
from pathlib import Path

import accuracy
import table
import table_page

FOLDER = Path(__file__).parent.parent / "out/first-screen"
TIMES, ACCURACIES = FOLDER / "table.jsonl", FOLDER / "accuracy.jsonl"


def commands():
    """What measures the times and the accuracies."""
    rates = [f"{rate:g}" for rate in table_page.PICTURED]
    rows = [name for name in table_page.SHOWN if name not in table.ANCHORS]
    judged = table_page.SMALL
    runs = [f"{judged.job}/2 workers/{judged.optimizer}/{name}/" for name in (accuracy.SYNCHRONOUS, *rows)]
    return [[sys.executable, module.__file__, "--coverage", *rates, "--only", *only, "--results", str(results), *more]
            for module, only, results, more in ((table, rows, TIMES, ["--jobs", judged.job]),
                                                (accuracy, runs, ACCURACIES, []))]


def main():
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for command in commands():
        subprocess.run(command, check=True)
    print(table_page.first_screen(table_page.timed(TIMES), table_page.curves(ACCURACIES)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
