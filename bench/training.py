"""Iteration times of real training at several coverage rates, measured and predicted, on shaped and emulated links.

Each measurement is one `python -m gradweave train demo` in which all contestants take turns. Results that exist are
kept, so that an interrupted benchmark continues where it stopped; delete a file to measure it again.

    .venv/bin/python bench/training.py                    # about 25 minutes on two processors
    .venv/bin/python bench/training.py --coverage 2 --links shaped
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

RESULTS = Path(__file__).parent.parent / "docs/results"
COVERAGE_RATES = (0.5, 1, 2, 4)


def measure(links, coverage, rounds, iterations):
    """The demo's results as data. Errors: CalledProcessError when the demo fails; what it said is on stderr."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gradweave", "train", "demo", "--json", "--links", links, "--coverage", str(coverage),
                   "--rounds", str(rounds), "--iterations", str(iterations), "--output", folder]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--links", choices=["shaped", "emulated"], nargs="*", default=["shaped", "emulated"])
    parser.add_argument("--coverage", type=float, nargs="*", default=COVERAGE_RATES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    for links in options.links:
        for coverage in options.coverage:
            path = options.results / f"training-{links}-{coverage:g}.json"
            if not path.exists():
                print(f"coverage rate {coverage:g}, {links} link", file=sys.stderr)
                path.write_text(json.dumps(measure(links, coverage, options.rounds, options.iterations), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
