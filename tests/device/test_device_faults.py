"""Lost peers, where the host waits for no op: what is under way on the accelerator is ended, and every rank raises."""

import functools
import signal

import pytest

import accelerator_trials as trials
import jobs


@pytest.mark.parametrize("scheme, fault", [
    ("ddp", signal.SIGKILL), ("dear", signal.SIGSTOP), ("delayed_averaging", signal.SIGKILL),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("ddp", signal.SIGSTOP), ("dear", signal.SIGKILL), ("delayed_averaging", signal.SIGSTOP)))])
def test_the_survivor_ends_in_time_and_names_the_suspect(scheme, fault):
    outcome = trials.lost(functools.partial(jobs.start, world_size=2), scheme, fault)
    assert outcome.well, outcome.said
