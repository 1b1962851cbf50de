"""What bench/churn.py measures with islands that come and go: what its page shows."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import churn  # noqa: E402
import runs  # noqa: E402
import training_tables  # noqa: E402


def test_the_page_shows_what_was_measured():
    for page, name, content in churn.sections(churn.RESULTS):
        assert training_tables.with_section(page, name, content) == page.read_text(), f"{name}: bench/churn.py --page"


def test_results_are_of_runs_that_can_be_made_again():
    done = runs.done(churn.RESULTS, churn.Run)
    assert set(done) <= set(churn.all_runs())
    assert all(result.get("equal", True) for result in done.values())  # islands, after finish(), as the page says


def test_a_target_is_reached_where_two_in_a_row_are_above_it():
    curve = [(10.0, 80.0, 0.5), (20.0, 86.0, 0.4), (30.0, 85.0, 0.4), (40.0, 87.0, 0.3), (50.0, 88.0, 0.3)]
    assert churn.seconds_to(curve, 86.0) == pytest.approx(35.0)
    assert churn.seconds_to(curve, 79.0) == pytest.approx(10 * 69 / 70)
    assert churn.seconds_to(curve, 89.0) is None
