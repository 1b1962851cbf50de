"""Islands whose loops are frameworks': by gradweave.integrations, with Gradweave's schemes between the ranks of an island, and
by hand around what Accelerate and Fabric have prepared, with their own DistributedDataParallel inside. Second tier:
GRADWEAVE_SLOW=1.
"""

import signal
import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime")]

import islanders  # noqa: E402  the path is set above
import ranks  # noqa: E402
from gradweave.lab.meeting import Meeting  # noqa: E402
from test_trials import needs_transformers  # noqa: E402

pytestmark = pytest.mark.slow

LOOPS = ["accelerate", "fabric", "lightning_trainer", pytest.param("transformers_trainer", marks=needs_transformers)]
BY_HAND = ["accelerate_by_hand", "fabric_by_hand"]


@pytest.fixture
def meeting(tmp_path):
    meeting = Meeting(tmp_path)
    yield meeting
    meeting.end()


def assert_equal(results):
    for each in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0]["values"], each["values"], strict=True))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("loop", LOOPS + BY_HAND)
def test_islands_of_a_framework_end_equal(meeting, loop, size):
    jobs = [ranks.start(islanders.islander, size, loop=loop, number=number, given=meeting.given) for number in (1, 2)]
    found = [result for job in jobs for result in job.results()]
    assert_equal(found)
    own_means = size == 1 or loop in BY_HAND
    for each in found:
        assert each["session"] == ("gradweave.islands" if own_means else "gradweave.session")
        assert each["steps"] == islanders.TOTAL and each["averages"] > 2
        assert each["names"] == ["island1", "island2"]


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("loop", LOOPS + BY_HAND)
def test_islands_of_a_framework_that_average_gradients_end_equal(meeting, loop, size):
    jobs = [ranks.start(islanders.islander, size, loop=loop, number=number, given=meeting.given, total=40,
                        between={"average": "gradients"}) for number in (1, 2)]
    found = [result for job in jobs for result in job.results()]
    assert_equal(found)
    assert all(each["steps"] == 40 and each["names"] == ["island1", "island2"] for each in found)


@pytest.mark.parametrize("loop, size", [("accelerate", 1), ("fabric", 1), ("lightning_trainer", 2),
                                        pytest.param("transformers_trainer", 2, marks=needs_transformers),
                                        ("accelerate_by_hand", 2)])
def test_an_island_of_a_framework_that_is_killed_comes_back(meeting, tmp_path, loop, size):
    hurry = str(tmp_path / "hurry")

    def start(number):
        return ranks.start(islanders.islander, size, loop=loop, number=number, given=meeting.given, hurry=hurry)

    first = start(1)
    first.wait_for_file("joined0")
    second = start(2)
    second.wait_for_file("averaged0")
    for process in second.processes:
        process.send_signal(signal.SIGKILL)
    second.end()
    again = start(2)
    again.wait_for_file("averaged0")
    Path(hurry).touch()
    stayed, came = first.results(), again.results()
    assert_equal(stayed + came)
    for each in stayed + came:
        assert each["steps"] == islanders.TOTAL
        assert each["rate"] == pytest.approx(stayed[0]["rate"], abs=1e-5) and each["rate"] < 1e-3
    assert all(each["own"] == islanders.TOTAL for each in stayed)
    assert all(each["first"] > 10 and each["own"] <= islanders.TOTAL - 10 for each in came)


@pytest.mark.parametrize("loop, size", [("accelerate", 2), ("fabric", 1), ("lightning_trainer", 2),
                                        pytest.param("transformers_trainer", 1, marks=needs_transformers)])
def test_a_job_whose_islands_have_all_ended_goes_on_from_a_checkpoint(meeting, tmp_path, loop, size):
    folder = tmp_path / "checkpoint"
    folder.mkdir()

    def run(**how):
        return ranks.run(islanders.islander, size, loop=loop, number=1, given=meeting.given, hurry=str(folder), **how)

    before, after = run(total=20, saves=folder), run(total=30, loads=folder)
    assert all(each["own"] == each["steps"] == 20 for each in before)
    assert all((each["first"], each["own"], each["steps"]) == (21, 10, 30) for each in after)
    assert after[0]["rate"] < before[0]["rate"] or loop == "transformers_trainer"
    assert_equal(after)
