"""What the environment says in place of arguments."""

import pytest
import ranks
import torch
from models import make_net


@pytest.mark.parametrize("said, on", [("1", True), ("true", True), ("TRUE", True), ("on", True), ("0", False),
                                      ("false", False), ("off", False), ("", False), (None, False)])
def test_the_environment_may_switch_the_check_on(monkeypatch, said, on):
    from gradweave.settings import Settings

    monkeypatch.delenv("GRADWEAVE_CHECK", raising=False)
    if said is not None:
        monkeypatch.setenv("GRADWEAVE_CHECK", said)
    assert Settings().checks is on and Settings(check=not on).checks is not on


def with_an_unknown_switch(rank):
    import os

    import gradweave

    os.environ["GRADWEAVE_CHECK"] = "maybe"
    model = make_net()
    with pytest.raises(gradweave.InvalidInput) as error:
        gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1))
    return str(error.value)


def test_another_word_for_the_check_is_refused_on_every_rank():
    for told in ranks.run(with_an_unknown_switch, 2):
        assert "GRADWEAVE_CHECK='maybe'" in told and "1, true or on" in told
