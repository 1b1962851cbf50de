"""What a page says was measured stands in what is written from results: on the page itself, or on the pages that it quotes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# {page: (pages of docs/ that it quotes, figures that are settings, aims, or of what keeps no results)}
PAGES = {
    "README.md": ((), "2.13 2.15"),
    "docs/performance.md": (("results/engine.md", "results/following.md"), "2.13 5"),
    "docs/choosing.md": (("results/schemes.md", "results/accuracy.md", "preserver.md"), ""),
    "docs/limits.md": (("../README.md", "performance.md", "results/accuracy.md"), ""),
    "docs/results/accuracy.md": ((), "0.9 0.05 0.001 0.02 3.3 1.462 1.576 1.715 1.563"),
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
