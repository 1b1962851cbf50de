"""What loops and frameworks put around the model and optimizer of an island: one island, in this process."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gradweave
import ranks
from gradweave import core, islands, lockstep
from gradweave.integrations.jobs import Jobs
from gradweave.lab.meeting import Meeting
from models import batch, cluster, make_net, make_optimizer, workload


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    meeting = Meeting(tmp_path_factory.mktemp("meeting"))
    yield meeting.given | {"island": "alone", "timeout": 30.0, "report": False}
    meeting.end()


class Around(torch.optim.Optimizer):
    """As frameworks put one around another. `keeps`: and keep its step() as it was, as Accelerate does with a loss scale."""

    def __init__(self, optimizer, keeps):
        self.optimizer = optimizer
        self._kept = optimizer.step if keeps else None

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        return (self._kept or self.optimizer.step)(closure)


def loss_of(model, step=0):
    x, y = batch(0, step)
    return nn.functional.cross_entropy(model(x), y)


@pytest.mark.parametrize("keeps", [False, True])
def test_steps_of_an_optimizer_inside_another_count(given, keeps):
    model = make_net(1)
    inner = make_optimizer("adamw", model)
    model, optimizer = gradweave.wrap(model, Around(inner, keeps), **given)
    for step in range(3):
        inner.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    assert model.gradweave.islands.steps == 3 and model.gradweave.islands.names == ["alone"]
    gradweave.finish(model)
    model.gradweave.close()


def stepped(given, closure):
    """Parameters, and the learning rate, after steps as of several islands; the loop sets another rate in each."""
    model = make_net(1)
    model, optimizer = gradweave.wrap(model, make_optimizer("adamw", model), **given)
    rates = []

    def compute(step):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
        return loss

    for step in range(3):
        if closure:
            assert optimizer.step(lambda: compute(step)) is not None
        else:
            compute(step)
            optimizer.step()
    model.gradweave.close()
    return [p.detach().clone() for p in model.parameters()], rates, optimizer.param_groups[0]["lr"]


def test_a_closure_reads_and_sets_learning_rates(given, monkeypatch):
    alone = stepped(given, closure=False)
    monkeypatch.setattr(islands.MomentShare, "share", 0.25)
    plain, closed = stepped(given, closure=False), stepped(given, closure=True)
    assert plain[1:] == closed[1:] == ([0.003, 0.01, 0.005], 0.01 / 3)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], closed[0]))
    assert not all(torch.equal(a, b) for a, b in zip(plain[0], alone[0]))


def test_a_step_that_fails_leaves_the_hyperparameters_as_they_were(given, monkeypatch):
    monkeypatch.setattr(islands.MomentShare, "share", 0.25)
    model = make_net(1)
    model, optimizer = gradweave.wrap(model, make_optimizer("adamw", model), **given)
    loss_of(model).backward()
    group = optimizer.param_groups[0]
    betas, group["betas"] = group["betas"], None
    with pytest.raises(TypeError):
        optimizer.step()
    group["betas"] = betas
    optimizer.step()
    assert group["lr"] == 0.003
    model.gradweave.close()


def test_a_sample_is_of_gradients_without_their_loss_scale(given):
    model = make_net(1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, optimizer = gradweave.wrap(model, torch.optim.AdamW(model.parameters(), fused=True), between={"period": 1}, **given)
    scaler.scale(loss_of(model)).backward()
    scaled = torch.cat([p.grad.flatten() for p in model.parameters()])
    scaler.step(optimizer)
    sample = model.gradweave.islands.moment_share.read()
    assert sample.any() and set(sample.tolist()) <= set((scaled / 1024).tolist())
    model.gradweave.close()


def test_a_step_that_a_loss_scale_drops_moves_nothing(given, monkeypatch):
    monkeypatch.setattr(islands.MomentShare, "share", 0.25)
    model = make_net(1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    model, optimizer = gradweave.wrap(model, torch.optim.AdamW(model.parameters(), fused=True), **given)
    moved = []
    for factor in (1.0, float("inf")):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(loss_of(model) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        moved.append(any(not torch.equal(a, b) for a, b in zip(before, model.parameters())))
    model.gradweave.close()
    assert moved == [True, False]


def jobs_of(given, model, optimizer):
    jobs = Jobs("the framework", given)
    jobs.expect(model)
    jobs.wrap([optimizer])
    return jobs


def step(model, optimizer):
    loss_of(model).backward()
    optimizer.step()


def test_a_framework_joins_at_its_first_step_and_loads_checkpoints_before(given, tmp_path):
    model = make_net(1)
    optimizer = make_optimizer("adamw", model)
    jobs = jobs_of(given, model, optimizer)
    jobs.save(tmp_path)
    jobs.load(tmp_path)
    jobs.count_from(5)
    found = model.gradweave.islands
    assert not found.joined and found.names == [] and found.steps == 5
    step(model, optimizer)
    assert found.names == ["alone"] and found.steps == 6
    jobs.save(tmp_path)
    with pytest.raises(gradweave.InvalidInput, match="load it before the first step"):
        jobs.load(tmp_path)
    assert not jobs.ends(6, 6) and not jobs.ends(1, 7)
    assert jobs.ends(1, 6)  # as of an island that got its state from one that was further
    jobs.finish()
    jobs.close()
    again = jobs_of(given, model, optimizer)
    again.load(tmp_path)
    assert model.gradweave.islands.steps == 6
    again.close()


def test_what_is_carried_is_loaded_where_the_state_was_taken(given):
    model = make_net(1)
    optimizer = make_optimizer("adamw", model)
    model, optimizer = gradweave.wrap(model, optimizer, **given)
    found = model.gradweave.islands
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    found.carry(schedule)
    step(model, optimizer)
    schedule.step()
    state = found._state()
    other = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    found.carry()
    found._set_state(state)  # as a newcomer does it in wrap(), before its loop has a schedule
    found.carry(other)
    assert other.last_epoch == schedule.last_epoch == 1 and other.milestones == schedule.milestones
    with pytest.raises(gradweave.InvalidInput, match="let it be of tensors"):
        found.carry(type("Odd", (), {"state_dict": lambda self: {"odd": Around}})())
    model.gradweave.close()


def test_a_learning_rate_of_numpys_is_given_as_a_number(given):
    numpy = pytest.importorskip("numpy")
    model = make_net(1)
    model, optimizer = gradweave.wrap(model, make_optimizer("adamw", model), **given)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + numpy.cos(step)))
    model.gradweave.islands.carry(schedule)
    step(model, optimizer)
    schedule.step()
    rate = optimizer.param_groups[0]["lr"]
    assert type(rate) is numpy.float64
    kept = islands._unpacked(model.gradweave.islands._state())
    assert kept["optimizers"][0]["param_groups"][0]["lr"] == kept["carried"][0]["_last_lr"][0] == rate
    model.gradweave.close()


@pytest.mark.parametrize("between, said", [
    ({"outer_momentum": 5.0}, "outer_momentum is 5.0; give a number from 0 to 0.999"),
    ({"outer_momentum": "0.9"}, "outer_momentum is '0.9'"), ({"outer_learning_rate": 0}, "a number from 1e-06 to 100"),
    ({"outer_learning_rate": float("nan")}, "outer_learning_rate is nan"), ({"ranks": "1"}, "ranks is '1'"),
    ({"ranks": 0}, "ranks is 0"), ({"compressor": None}, "compressor is None; give one of int4"),
    ({"period": 0.5}, "period is")])
def test_options_between_islands_that_make_no_sense_are_refused(between, said):
    with pytest.raises(gradweave.InvalidInput, match=said):
        islands.checked(between)


def test_options_between_islands_are_what_schemes_that_average_take():
    [scheme] = [each for each in core.schemes() if each["name"] == "delayed_averaging"]
    ranges = {each["name"]: (each["minimum"], each["maximum"]) for each in scheme["options"] if each["name"] in islands.OUTER}
    assert ranges == islands.OUTER
    given = {"outer_momentum": 0, "outer_learning_rate": 2, "ranks": 1.0, "period": 8.0}
    assert [repr(islands.checked(given)[name]) for name in given] == ["0.0", "2.0", "1", "8"]


def test_an_optimizer_whose_state_no_other_island_could_read_is_refused(given):
    model = make_net(1)
    optimizer = make_optimizer("adamw", model)
    optimizer.param_groups[0]["odd"] = Around
    with pytest.raises(gradweave.InvalidInput, match="the state of this AdamW can't be sent to other islands"):
        gradweave.wrap(model, optimizer, **given)


def test_what_is_gained_alone_is_told_and_a_loop_may_wait(given):
    model = make_net(1)
    model, optimizer = gradweave.wrap(model, make_optimizer("adamw", model), **given)
    found, kept = model.gradweave.islands, []
    assert found.since == {"alone": found.epoch} and found.last_average == 0 and not found.under_way
    found.on_keep(lambda: kept.append(found.steps))
    step(model, optimizer)
    found.wait()
    assert found.steps == 1 and not kept  # nobody has come
    model.gradweave.close()


def test_what_is_of_plans_is_named_where_an_island_has_none(given):
    model = make_net(1)
    model, optimizer = gradweave.wrap(model, make_optimizer("adamw", model), **given)
    with pytest.raises(AttributeError, match="model.gradweave.report is there only where Gradweave's schemes communicate"):
        model.gradweave.report()
    with pytest.raises(gradweave.InvalidInput, match="load model and optimizer alone"):
        model.gradweave.load_state_dict({"rank0": None})
    model.gradweave.close()
    with pytest.raises(gradweave.InvalidInput, match="'daer'"):
        gradweave.wrap(model, make_optimizer("adamw", model), "daer", **given)


def test_a_checkpoint_takes_no_steps_back(given):
    model = make_net(1)
    model, optimizer = gradweave.wrap(model, make_optimizer("adamw", model), **given)
    for steps, expected in ((4, 4), (2, 4)):  # the latter as where the state of an island that was further was taken
        model.gradweave.load_state_dict({"steps": steps})
        assert model.gradweave.islands.steps == expected
    model.gradweave.close()


@pytest.mark.parametrize("between", [{"period": 2}, {"average": "gradients"}])
def test_what_torch_steps_to_fill_a_state_is_no_step(given, between):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = make_net(1)
    model, optimizer = gradweave.wrap(model, make_optimizer("adamw", model), **given, between=between)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert all("exp_avg" in kept for kept in get_optimizer_state_dict(model, optimizer)["state"].values())
    assert model.gradweave.islands.steps == 0
    assert all(map(torch.equal, before, model.parameters()))
    step(model, optimizer)
    assert model.gradweave.islands.steps == 1
    model.gradweave.close()


def test_only_what_islands_average_steps_by_other_hyperparameters(given):
    """Elsewhere a parameter's Adam has the moments of all of its gradients."""
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(3, dtype=dtype))
                              for name, dtype in (("mean", None), ("own", None), ("complex", torch.complex64))})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.0)
    model, optimizer = gradweave.wrap(model, optimizer, exclude=["own"], **given)
    session, held = model.gradweave, list(optimizer.param_groups[0]["params"])
    session._moments = SimpleNamespace(before_step=lambda group, pieces: group | {"lr": 0.0})
    sum(p.abs().sum() for p in model.values()).backward()
    optimizer.step()
    assert {name: p.real.tolist() == [1.0] * 3 for name, p in model.items()} == {"mean": True, "own": False, "complex": False}
    [group] = optimizer.param_groups
    assert group["lr"] == 0.5 and all(a is b for a, b in zip(group["params"], held, strict=True))
    model.gradweave.close()


def test_trouble_that_lasts_is_told_once(given, monkeypatch, caplog):
    model = make_net(1)
    model, optimizer = gradweave.wrap(model, make_optimizer("adamw", model), **given)
    found = model.gradweave.islands
    step(model, optimizer)
    monkeypatch.setattr("gradweave.islands.TELL_S", 0.0)
    with monkeypatch.context() as changed:
        changed.setattr(found, "_member", SimpleNamespace(trouble="the others have waited for it for a minute"))
        for _ in range(4):
            found._tell_trouble()
    assert [record.getMessage() for record in caplog.records if "waited" in record.getMessage()] == [
        "gradweave: island 'alone': the others have waited for it for a minute"]
    model.gradweave.close()


def test_what_islands_cannot_average_is_refused(given):
    model = make_net(1)
    model, optimizer = gradweave.wrap(model, make_optimizer("adamw", model), **given)
    other = make_net(2)
    with pytest.raises(gradweave.InvalidInput, match="make one module of the models"):
        gradweave.wrap(other, make_optimizer("adamw", other), **given)
    model.gradweave.close()
    next(other.parameters())._fsdp_flattened = True
    with pytest.raises(gradweave.InvalidInput, match="fully_shard"):
        gradweave.wrap(other, make_optimizer("adamw", other), **given)
    with pytest.raises(ValueError, match="go together"):
        Jobs("the framework", {"islands": given["islands"]})


def in_an_island(rank, given, named):
    model = make_net(1)
    with pytest.raises(gradweave.InvalidInput, match="choose a scheme without local steps"):
        gradweave.wrap(model, make_optimizer("sgd", model), **given, **named)


def test_local_steps_inside_an_island_are_refused_at_once(given):
    for named in ({"scheme": "dreamddp"}, {"plan": core.make_plan(workload(), cluster(2), "local_sgd")}):
        ranks.run(in_an_island, 2, given=given, named=named)


@pytest.mark.parametrize("named", [{"island": "a"}, {"listen": "0.0.0.0:29700"}, {"between": {"period": 4}}])
def test_arguments_about_islands_without_a_meeting_point_are_refused(named):
    model = make_net(1)
    with pytest.raises(ValueError, match=f"{next(iter(named))}= needs islands= and key="):
        gradweave.wrap(model, make_optimizer("adamw", model), **named)
    with pytest.raises(ValueError, match="needs islands= and key="):
        Jobs("the framework", named)


def test_an_island_that_cannot_join_leaves_the_model_plain(given, tmp_path):
    model = make_net(1)
    kind = type(model)
    with pytest.raises(gradweave.InvalidInput, match="can't join"):
        gradweave.wrap(model, make_optimizer("adamw", model), **given | {"islands": "127.0.0.1:1", "arrival_timeout": 0.1})
    assert type(model) is kind
    with pytest.raises(gradweave.InvalidInput):
        gradweave.wrap(model, make_optimizer("adamw", model), **given | {"key": tmp_path / "none"})
    assert type(model) is kind


@torch.no_grad()
def test_complex_and_double_values_are_averaged_as_they_are():
    fine = 1.0 + 2.0**-40
    tensors = [torch.ones(3), torch.tensor([1 + 2j, 3 - 4j]), torch.full((2,), fine, dtype=torch.float64)]
    section = islands.Section(tensors, (0,), None, 1)
    share = torch.empty(section.share)
    section.read(share)
    assert share[:9].tolist() == [1, 1, 1, 1, 2, 3, -4, 1, 1] and not share[9:].any()
    section.add(share, 0, section.share)
    assert tensors[1].tolist() == [2 + 4j, 6 - 8j] and tensors[2].tolist() == [1 + fine] * 2
    section.set(share)
    assert tensors[1].tolist() == [1 + 2j, 3 - 4j]


def test_complex_gradients_are_averaged_whole():
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2, dtype=torch.complex64))]
    bucket = lockstep.Bucket(parameters, (0,), None, 1, sums=False)
    share = torch.empty(bucket.share)
    parameters[0].grad = torch.ones(3)
    for given in (torch.tensor([1 + 2j, 3 - 4j]), torch.tensor([1 - 2j, 3 + 4j]).conj()):
        parameters[1].grad = given
        bucket.read(share, 1)
        bucket.write(2 * share)
        assert parameters[1].grad.tolist() == [2 + 4j, 6 - 8j]


def test_a_state_comes_as_it_was_whatever_it_holds():
    norm = torch.nn.BatchNorm1d(3).state_dict()
    kept = {"steps": 7, "carried": [norm, {"none": None, 3: [1.5, (torch.tensor(2, dtype=torch.int64), "text")]}],
            "tensors": [torch.randn(5, 7).t(), torch.empty(0, 4), torch.randn(3).bfloat16(), torch.tensor([True, False, True]),
                        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.eye(3).to_sparse(),
                        torch.tensor([1 + 2j])]}
    found = islands._unpacked(islands._packed(kept))

    def told(value):
        if isinstance(value, torch.Tensor):
            return [str(value.dtype), list(value.shape), value.to_dense().tolist()]
        if isinstance(value, dict):
            return [type(value).__name__, [(name, told(of)) for name, of in value.items()]]
        return [type(value).__name__, list(map(told, value))] if isinstance(value, (list, tuple)) else value

    assert told(found) == told(kept)
    assert found["carried"][0]._metadata == norm._metadata
