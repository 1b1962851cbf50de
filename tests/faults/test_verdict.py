"""The judge of the fault driver: every verdict is given where it is due."""

import collections
import dataclasses

import pytest

import case as cases
from phases import FUNCTIONS, PHASES, Calls, codes
from verdict import VERDICTS, Rank, judge, suspects

KILL = dataclasses.replace(cases.draw(0), fault="kill", phase="training", world_size=3, victims=(1,))
UNEVEN = dataclasses.replace(KILL, fault="uneven")
PAUSE = dataclasses.replace(KILL, fault="pause", pause_s=0.3)
TWO = dataclasses.replace(KILL, fault="two", victims=(1, 2))
STORE = dataclasses.replace(KILL, fault="store")
LOSS = dataclasses.replace(KILL, fault="loss", loss=0.1)
LOST = Rank(None, -9)
NAMED = "rank 0 reports: op 'x' failed after 3.0 s; suspect: rank 1 (no sign of life). Where ranks are: ranks 0, 2: here"


def raised(error=NAMED, at=104.0, status=1, left_s=0.5):
    return Rank({"ended": "raised", "type": "RuntimeFailure", "error": error, "time": at, "progress": 100.5}, status, left_s)


def finished(digest="a" * 64):
    return Rank({"ended": "finished", "digest": digest, "time": 102.0, "progress": 101.0}, 0, 0.1)


@pytest.mark.parametrize("case, ranks, expected", [
    (KILL, [raised(), LOST, raised()], "ok"),
    (KILL, [raised(), LOST, Rank(None)], "hang"),
    (KILL, [raised(), LOST, raised(status=-6)], "abort"),
    (KILL, [raised(), LOST, raised(status=None, left_s=60)], "leftover"),
    (KILL, [raised(), LOST, raised(at=107.0)], "late"),
    (KILL, [raised(), LOST, raised(NAMED.replace("rank 1", "rank 2"))], "wrong suspect"),
    (KILL, [raised(), LOST, raised("nobody knows")], "wrong suspect"),
    (KILL, [finished(), LOST, finished()], "silent divergence"),
    (dataclasses.replace(KILL, phase="finish"), [finished(), LOST, finished()], "ok"),
    (dataclasses.replace(KILL, phase="finish"), [finished(), LOST, finished("b" * 64)], "silent divergence"),
    (dataclasses.replace(KILL, fault="exception"), [finished(), finished(), finished()], "ok"),  # the interpreter dropped it
    (PAUSE, [finished(), finished(), finished()], "ok"),
    (PAUSE, [finished(), finished(), finished("b" * 64)], "silent divergence"),
    (PAUSE, [raised(), raised(), raised()], "false alarm"),
    (dataclasses.replace(PAUSE, pause_s=9.0), [raised(), raised("gone"), raised()], "ok"),
    (UNEVEN, [raised("rank 1 differs from rank 0 in parameters"), raised("anything"),
              raised("rank 1 differs from rank 0 in parameters")], "ok"),
    (UNEVEN, [raised(), finished(), raised()], "silent divergence"),
    (TWO, [raised(), LOST, LOST], "ok"),
    (TWO, [raised(NAMED.replace("rank 1 ", "ranks 1, 2 ")), LOST, LOST], "ok"),
    (TWO, [raised(NAMED.replace("rank 1 ", "ranks 0, 1 ")), LOST, LOST], "wrong suspect"),
    (LOSS, [raised(), finished(), finished()], "silent divergence"),
    (LOSS, [raised(), raised("rank 0"), raised("gone")], "ok"),
    (LOSS, [finished()] * 3, "ok"),
    (LOSS, [finished(), Rank(None), finished()], "hang"),
    (STORE, [raised("the store is gone")] * 3, "ok"),
    (STORE, [raised()] * 3, "wrong suspect"),
    (STORE, [finished()] * 3, "ok"),
    (STORE, [finished(), raised("the store is gone"), finished()], "silent divergence"),
])
def test_a_verdict_is_what_the_ranks_did(case, ranks, expected):
    assert judge(case, case.phase, 100.0, None, ranks, slack_s=0.5)[0] == expected
    assert expected in VERDICTS


def test_a_pause_that_lasted_longer_than_the_timeout_is_no_false_alarm():
    ranks = [raised(), raised("gone"), raised()]
    assert [judge(PAUSE, "training", 100.0, 100.0 + paused_s, ranks, 1)[0] for paused_s in (0.4, 3.1)] == ["false alarm", "ok"]


def test_a_run_that_ended_before_its_fault_is_no_success():
    assert judge(KILL, None, None, None, [raised(), raised(), raised()], 0)[0] == "early"


@pytest.mark.parametrize("error, expected", [
    (NAMED, {1}),
    ("rank 2 ended with ValueError: x (training iteration 6). Training can't go on without it", {2}),
    ("ranks are at different points of their training: ranks 0-2: in wrap(); rank 3: training iteration 0", {3}),
    ("rank 1 has ended its training after 1 iteration, and others train on. Where ranks are: rank 0: training iteration 1",
     {1}),
    ("rank 0: after 3 iterations; rank 1: after 4", {0, 1}),
    ("ranks 1 3 differ from ranks 0 2 in parameters", {0, 1, 2, 3}),
    ("rank 2 differs from ranks 0 1 3 in parameters", {2}),
    ("the connection was closed", set()),
])
def test_the_suspects_of_an_error(error, expected):
    assert suspects(error) == expected


def test_a_seed_gives_one_case_and_phases_come_evenly():
    drawn = [cases.draw(seed) for seed in range(3000)]
    assert drawn[:50] == [cases.draw(seed) for seed in range(50)]
    counts = collections.Counter(case.phase for case in drawn)
    assert set(counts) == set(PHASES) and min(counts.values()) > 0.7 * len(drawn) / len(PHASES)
    assert {case.fault for case in drawn} == set(cases.FAULTS) - {"loss"}
    assert all(case.fault == "loss" and case.loss in cases.LOSSES and case.fresh
               for case in (cases.draw(seed, of=["loss"]) for seed in range(50)))
    assert {case.scheme for case in drawn} == set(cases.SCHEMES) and {case.world_size for case in drawn} == {2, 3, 4}
    for case in drawn:
        assert max(case.victims) < case.world_size and len(set(case.victims)) == (2 if case.fault == "two" else 1)
        assert (case.iteration is None) == (case.fault not in cases.OF_THE_LOOP)
    shares = sorted(case.share for case in drawn)
    assert abs(shares[len(shares) // 2] - 0.5) < 0.05


def test_calls_belong_to_the_phase_that_is_running():
    """Functions that stand for phases are found, and the innermost counts."""
    found = set(codes().values())
    assert set(FUNCTIONS) == found
    told = []
    calls = Calls(lambda phase, number: told.append((phase, number)))
    calls.loop = "training"

    def inner():
        return len("inner")

    def outer():
        inner()
        len("outer")
    calls._codes = {outer.__code__: "finish", inner.__code__: "close"}
    calls.begin()
    outer()
    calls.end()
    assert told[:5] == [("finish", 0), ("close", 0), ("close", 1), ("finish", 1), ("training", 0)]
