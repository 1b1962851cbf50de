"""Models sharded by FSDP2 on the simulated accelerator: FSDP2's bits, and in order on its streams."""

import pytest

import accelerator_trials as trials
import jobs
from test_engine import schemes


@pytest.mark.parametrize("chosen", [["ddp", "dear", "delayed_averaging"],
                                    pytest.param(None, marks=pytest.mark.slow, id="every scheme")])
def test_islands_are_equal_and_exact_schemes_have_the_bits_of_fsdp2(chosen):
    results = jobs.run(trials.sharded, 4, schemes=chosen or schemes())
    for scheme in chosen or schemes():
        for island in (results[0::2], results[1::2]):  # of those with the same shard
            outcome = trials.together([rank[scheme] for rank in island])
            assert outcome.well, (scheme, outcome.said)
