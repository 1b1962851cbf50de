"""`gradweave meet`: key files, bad usage, and a server that starts and ends."""

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

COMMAND = Path(__file__).resolve().parents[2] / "build/gradweave"


def meet(*words):
    return subprocess.run([COMMAND, "meet", *map(str, words)], capture_output=True, text=True, timeout=60)


@pytest.fixture
def key(tmp_path):
    assert meet("--make-key", tmp_path / "job.key").returncode == 0
    return tmp_path / "job.key"


def test_a_key_is_made_once_for_its_owner(key):
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_text()
    again = meet("--make-key", key)
    assert again.returncode == 2 and "never overwritten" in again.stderr
    assert key.read_text() == before


@pytest.mark.parametrize("words,said", [
    ([], "--listen: is missing"),
    (["--listen", "127.0.0.1:0"], "--key: is missing"),
    (["--listen", "127.0.0.1", "--key", "KEY"], "'127.0.0.1' is no address; give HOST:PORT"),
    (["--listen", "127.0.0.1:99999", "--key", "KEY"], "is no address"),
    (["--listen", "203.0.113.1:0", "--key", "KEY"], "can't listen"),
    (["--listen", "127.0.0.1:0", "--key", "nowhere.key"], "nowhere.key: can't be read"),
    (["--listen", "127.0.0.1:0", "--key", "KEY", "--lease", "1ms"], "is not a time in range"),
    (["--listen", "127.0.0.1:0", "--key", "KEY", "--leave-out-after", "soon"], "is not a time in range"),
    (["--make-key", "other.key", "--key", "KEY"], "can't be combined with other options"),
    (["--make-key", "-"], "writes no key to standard output"),
])
def test_bad_usage_says_the_remedy_and_exits_with_2(words, said, key):
    done = meet(*[key if word == "KEY" else word for word in words])
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_key_that_others_may_read_is_refused(key):
    key.chmod(0o640)
    done = meet("--listen", "127.0.0.1:0", "--key", key)
    assert done.returncode == 2 and "chmod 600" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_listens_and_ends_when_told(key, number):
    process = subprocess.Popen([COMMAND, "meet", "--listen", "127.0.0.1:0", "--key", key], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().startswith("listening on 127.0.0.1:")
        os.kill(process.pid, number)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.stdout.close()
