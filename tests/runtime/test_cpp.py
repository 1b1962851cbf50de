"""The example program in C++ (examples/cpp): trains as plain all-reduces do, bit for bit, and tells what is wrong."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from gradweave.lab.hosts import free_port

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build/examples/cpp/train"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="cmake --build build --target example_train")


def train(*arguments, world_size=2, last=(), **environment):
    """(exit codes, what rank 0 printed, all errors) of ranks of the program on the loopback interface. last: more arguments,
    of the last rank."""
    common = {**os.environ, "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
              "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **environment}
    started = [subprocess.Popen([PROGRAM, *arguments, *(last if rank == world_size - 1 else ())], text=True,
                                env={**common, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
               for rank in range(world_size)]
    ended = [process.communicate(timeout=170) for process in started]
    return [process.returncode for process in started], ended[0][0], "".join(error for _, error in ended)


@pytest.fixture(scope="module")
def plain():
    codes, told, errors = train("--plain", "--iterations", "10")
    assert codes == [0, 0], errors
    return told


# In step(); in the forward, in parts; the planner's own choice.
@pytest.mark.parametrize("scheme", ["ddp", "dear", "us_byte", "auto"])
def test_exact_schemes_give_the_bits_of_plain_all_reduces(plain, scheme):
    codes, told, errors = train("--scheme", scheme, "--iterations", "10")
    assert codes == [0, 0], errors
    assert re.search(r"parameters [0-9a-f]{16}", told) and told == plain


def test_local_averages_end_with_equal_ranks(plain):
    codes, told, errors = train("--scheme", "delayed_averaging", "--iterations", "10")
    assert codes == [0, 0], errors
    assert "parameters" in told and told != plain


@pytest.mark.parametrize("scheme", ["ddp", "dear", "auto"])
def test_clipping_and_accumulation_give_the_bits_of_plain_all_reduces(scheme):
    loop = "--clip", "0.05", "--passes", "2", "--iterations", "10"
    codes, told, errors = train("--scheme", scheme, *loop)
    assert codes == [0, 0], errors
    assert "in force: " in errors
    assert told == train("--plain", *loop)[1]


def test_plans_are_tried_in_training_and_change_no_bit():
    codes, told, errors = train("--scheme", "dear", "--tune", "2", "--iterations", "110")
    assert codes == [0, 0], errors
    assert "gradweave: tuned by " in errors and errors.count("gradweave: ") == 3  # rank 0: at the switch, then, at the end
    assert told == train("--plain", "--iterations", "110")[1]


def test_one_rank_trains_without_an_environment():
    done = subprocess.run([PROGRAM, "--scheme", "ddp", "--iterations", "8"], capture_output=True, text=True, timeout=170,
                          env={key: value for key, value in os.environ.items() if key != "RANK"})
    assert done.returncode == 0 and "parameters" in done.stdout, done.stderr


def test_a_broken_environment_is_named():
    codes, _, errors = train("--plain", world_size=1, WORLD_SIZE="many")
    assert codes == [1] and "WORLD_SIZE" in errors and "'many'" in errors and "torchrun" in errors


@pytest.mark.parametrize("given, said", [
    (("--tune", "2"), "rank 0 has tune = 0, and rank 1 tune = 2"),
    (("--tune", "-2"), "rank 1 reports: tune: -2 trials"),
])
def test_options_of_one_rank_alone_are_refused_on_every_rank(given, said):
    codes, _, errors = train("--scheme", "dear", "--iterations", "8", last=given)
    assert codes == [1, 1] and said in errors, errors
    assert errors.count("begin it alike on every rank") == (2 if "has" in said else 1)


def test_a_plan_that_does_not_fit_is_refused_on_every_rank(tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text('{"version": 1}')
    codes, _, errors = train("--plan", str(plan), "--iterations", "8")
    assert codes == [1, 1] and errors.count(str(plan)) == 2
