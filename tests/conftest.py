import os

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: second tier, which GRADWEAVE_SLOW=1 runs")


def pytest_collection_modifyitems(items):
    if not os.environ.get("GRADWEAVE_SLOW"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="second tier; GRADWEAVE_SLOW=1 runs it"))
