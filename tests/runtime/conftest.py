import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))


@pytest.fixture
def meeting(tmp_path):
    from gradweave.lab.meeting import Meeting

    with Meeting(tmp_path) as meeting:
        yield meeting
