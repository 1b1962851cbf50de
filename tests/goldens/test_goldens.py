"""Every scheme on the published workloads, held to typed results; `make goldens` regenerates them."""

import importlib.util
import json
import os
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("GRADWEAVE_COMMAND", ROOT / "build" / "gradweave")
_spec = importlib.util.spec_from_file_location("make_goldens", ROOT / "scripts" / "make_goldens.py")
make_goldens = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_goldens)


@pytest.mark.parametrize("workload,cluster", make_goldens.INPUTS)
def test_results_are_the_golden_ones(workload, cluster):
    kept = json.loads((make_goldens.GOLDENS / f"{workload}@{cluster}.json").read_text())
    assert make_goldens.golden(COMMAND, workload, cluster) == kept
