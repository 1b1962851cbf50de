"""What a run tells as it goes."""

import copy
import itertools
import json
import types

import pytest
import torch

import ranks
from gradweave.integrations.jobs import Jobs
from models import batch, make_net


class Writer:
    """As TensorBoard's SummaryWriter."""

    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))


def train(rank, folder, scheme):
    import gradweave

    model = make_net()
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), scheme, warm_up=1,
                                      links=gradweave.EmulatedLink(2000, 0.1), profile_iterations=2, timeout=20, report=False)
    writer, errors = Writer(), []
    for target, every in ((folder / "none" / "lines", 10), (folder, 10), (None, 10), (folder / "lines", 0)):
        try:
            model.gradweave.log_to(target, every)
        except gradweave.InvalidInput as error:
            errors.append(str(error))
    model.gradweave.log_to(folder / f"lines{rank}", every=10)
    model.gradweave.log_to("/dev/full", every=5)
    model.gradweave.log_to(writer, every=15)
    for step in range(32):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    gradweave.finish(model)
    model.gradweave.close()
    return writer.scalars, errors


@pytest.mark.parametrize("scheme", ["dear", "deft", "delayed_averaging"])
def test_lines_and_scalars_are_told_on_rank_0(scheme, tmp_path):
    (scalars, errors), others = ranks.run(train, 2, folder=tmp_path, scheme=scheme)
    assert others == ([], [])
    for error, told in zip(errors, ("none/lines", "directory", "None", "every=0"), strict=True):
        assert told in error
    assert {path.name for path in tmp_path.iterdir()} == {"lines0"}
    lines = [json.loads(line) for line in (tmp_path / "lines0").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [10, 20, 30]
    assert [line["scheme"] for line in lines] == [scheme] * 3
    for line in lines:
        assert line["iteration_ms"] > 0 and line["predicted_ms"] > 0 and line["bytes"] > 0 and line["ops"] > 0
        assert 0 <= line["exposed_ms"] <= line["iteration_ms"]
    assert {step for _, _, step in scalars} == {15, 30}
    assert {tag for tag, _, _ in scalars} == {f"gradweave/{name}" for name in lines[-1].keys() - {"iteration", "scheme"}}


def test_the_first_line_after_a_checkpoint_is_of_the_iterations_since(tmp_path, monkeypatch):
    import gradweave
    from gradweave import scalars

    state = None
    for part in range(2):
        model, told = make_net(), tmp_path / f"lines{part}"
        model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), warm_up=1, report=False,
                                          profile_iterations=1)
        seconds = itertools.count()
        monkeypatch.setattr(scalars, "time", types.SimpleNamespace(monotonic=lambda: next(seconds)))  # noqa: B023
        model.gradweave.log_to(told, every=5)
        if state is not None:
            model.gradweave.load_state_dict(state)
        for step in range(5):
            x, y = batch(0, step)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        state = model.gradweave.state_dict()
        model.gradweave.close()
        line = json.loads(told.read_text())
        assert (line["iteration"], line["iteration_ms"]) == (5 * part + 5, 200)  # each look at the clock is a second


def test_logs_and_timelines_go_on_once_a_framework_has_loaded_a_checkpoint(tmp_path):
    model, told = make_net(), tmp_path / "lines"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    jobs = Jobs("the framework", {"warm_up": 1, "profile_iterations": 1, "report": False})
    jobs.expect(model)
    jobs.wrap([optimizer])
    begun = copy.deepcopy(model.state_dict())
    jobs.save(tmp_path)
    model.gradweave.log_to(told, every=1)
    model.gradweave.record_timeline()
    for part in range(2):
        for step in range(3):
            x, y = batch(0, step)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert not model.gradweave.timeline().empty
        if part == 0:
            model.load_state_dict(begun)
            jobs.load(tmp_path)
    jobs.close()
    assert [json.loads(line)["iteration"] for line in told.read_text().splitlines()] == [1, 2, 3, 1, 2, 3]
