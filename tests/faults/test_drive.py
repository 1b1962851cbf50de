"""A few runs of the fault driver; the tool runs hundreds. Second tier: half a minute. GRADWEAVE_SLOW=1 runs it."""

import pytest

import case as cases
import drive

SEEDS = range(7000, 7012)


@pytest.mark.slow
def test_struck_jobs_end_in_time_and_name_the_right_rank():
    lines = []
    drive.drive(map(cases.draw, SEEDS), jobs=3, slack_s=3.0, on_result=lambda line, run: lines.append(line))
    assert len(lines) == len(SEEDS)
    assert all(line["verdict"] == "ok" for line in lines), [line for line in lines if line["verdict"] != "ok"]
