"""Islands: jobs of their own, which average their models over the loopback, come, go and die."""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import ranks
from gradweave import _native
from islander import agreed, made, values_of
from gradweave.lab.meeting import Meeting


def file_of(name):
    return Path(os.environ["JOB_FOLDER"]) / name


def trained(rank, kind, number, given, averages=6, until=None, between=None, pace_s=0.01, exactly=False):
    """Trains until so many averages have landed, or until the file `until` is there; returns what it ends with."""
    import gradweave

    options = {} if exactly else {"period": 4, "compressor": "int4"}
    given = given | {"island": f"island{number}", "between": options | (between or {})}
    model, optimizer, loss = made(kind, rank, number, given)
    islands = model.gradweave.islands
    seen, first, moments = [], islands.steps, islands.moment_share and islands.moment_share.state()
    islands.on_change(seen.append)
    file_of(f"joined{rank}").touch()
    step = 0
    while islands.averages < averages if until is None else not agreed(Path(until).exists()):
        optimizer.zero_grad()
        loss(100 * number + step).backward()
        optimizer.step()
        step += 1
        time.sleep(pace_s)
        if islands.averages == 3:
            file_of(f"averaged{rank}").touch()
    gradweave.finish(model)
    found = {"values": values_of(model), "averages": islands.averages, "seen": seen, "first": first, "steps": islands.steps,
             "names": islands.names, "optimizer": optimizer.state_dict()["state"], "moments": moments}
    model.gradweave.close()
    return found


def refused(rank, given, between, kind="ddp"):
    import gradweave

    with pytest.raises(gradweave.InvalidInput) as error:
        made(kind, rank, 1, given | {"island": "another", "between": between})
    return str(error.value)


def equal_states(a, b):
    return all(torch.equal(a[place][name], b[place][name]) for place in a for name in a[place])


def equal(results):
    return all(torch.equal(a, b) for each in results[1:] for a, b in zip(results[0]["values"], each["values"]))


@pytest.mark.parametrize("kind, size, fragments", [
    ("plain", 1, 1), ("ddp", 2, 3), ("fsdp2", 2, 1), ("gradweave", 2, 2), pytest.param("hsdp", 4, 3, marks=pytest.mark.slow),
    pytest.param("tp", 2, 2, marks=pytest.mark.slow)])
def test_islands_that_train_together_end_equal(meeting, kind, size, fragments):
    jobs = [ranks.start(trained, size, kind=kind, number=number, given=meeting.given, between={"fragments": fragments})
            for number in (1, 2)]
    islands = [job.results() for job in jobs]
    for rank in range(size):
        of_rank = [island[rank] for island in islands]
        assert equal(of_rank)
    if kind not in ("fsdp2", "hsdp", "tp"):
        assert all(equal(island) for island in islands)


def measures_moments(rank, kind, number, given):
    """What the island's samples were, by average, what is known after each, and what it stepped by."""
    import gradweave

    given = given | {"island": f"island{number}", "between": {"period": 2, "fragments": 2}}
    model, optimizer, loss = made(kind, rank, number, given)
    islands = model.gradweave.islands
    share, own = islands.moment_share, islands.moment_share.read
    begun, sampled, known, stepped, gradients = [], {}, [], [], []

    def read():
        sample = own()
        if sample is not None:
            sampled[begun[-1]] = sample.clone()
            assert set(sample.tolist()) <= set(gradients[-1].tolist()) | {0.0}
        return sample

    share.read = read
    islands.on_begin(lambda average, _: begun.append(average))
    islands.on_land(lambda average, names: known.append((average, names, islands.steps, share.state())))

    def before_step(optimizer, *_):
        gradients.append(torch.cat([getattr(p.grad, "_local_tensor", p.grad).flatten() for p in model.parameters()]))
        group = optimizer.param_groups[0]
        stepped.append((islands.workers, share.state(), group["lr"], group["eps"], group["weight_decay"]))

    optimizer.register_step_pre_hook(before_step)
    rates = optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["eps"], optimizer.param_groups[0]["weight_decay"]
    step = 0
    while islands.averages < 8:
        optimizer.zero_grad()
        loss(100 * number + step).backward()
        optimizer.step()
        step += 1
        time.sleep(0.01)
    gradweave.finish(model)
    model.gradweave.close()
    group = optimizer.param_groups[0]
    assert (group["lr"], group["eps"], group["weight_decay"]) == rates
    return sampled, known, stepped, rates


@pytest.mark.parametrize("kind, size", [("plain", 1), ("ddp", 2), ("fsdp2", 2)])
def test_islands_measure_the_second_moment_of_all(meeting, kind, size):
    jobs = [ranks.start(measures_moments, size, kind=kind, number=number, given=meeting.given) for number in (1, 2)]
    islands = [job.results() for job in jobs]
    samples = [island[0][0] for island in islands]
    for ranks_of, other in zip(islands, reversed(samples)):
        sampled, known, stepped, (lr, eps, decay) = ranks_of[0]
        noise, last = _native.GradientNoise(), 0
        for average, names, steps, state in known:
            if len(names) == 2 and sampled[average].any() and other[average].any():
                both = torch.stack([sampled[average], other[average]]).double()
                noise.add(both.mean(0).square().sum().item(), both.square().sum().item() / 2, 2, steps - last)
                last = steps
            assert state == pytest.approx({"signal": noise.signal, "noise": noise.noise, "step": last}, rel=1e-4)
        assert noise.noise > 0
        for rank in ranks_of:
            assert [each[3] for each in rank[1]] == [each[3] for each in known]
            assert rank[2] == stepped
        for workers, state, *by in stepped:
            now = _native.GradientNoise()
            now.signal, now.noise = state["signal"], state["noise"]
            root = now.share(workers) ** 0.5
            assert by == pytest.approx([lr / root, eps / root, decay * root], rel=1e-6)
        assert any(by[0] > 1.02 * lr for _, _, *by in stepped)


def test_an_island_that_is_killed_comes_back_while_the_others_train(meeting, tmp_path):
    end = str(tmp_path / "end")
    between = {"fragments": 3}
    first, second = (ranks.start(trained, 2, kind="fsdp2", number=number, given=meeting.given, until=end, between=between)
                     for number in (1, 2))
    second.wait_for_file("averaged0")
    for process in second.processes:
        process.send_signal(signal.SIGKILL)
    second.end()
    again = ranks.start(trained, 2, kind="fsdp2", number=2, given=meeting.given, until=end, between=between)
    again.wait_for_file("averaged0")
    Path(end).touch()
    islands = [first.results(), again.results()]
    for rank in range(2):
        assert equal([island[rank] for island in islands])
        assert islands[1][rank]["first"] > 10
        assert islands[1][rank]["moments"]["noise"] > 0
        assert ["island1", "island2"] in islands[0][rank]["seen"]


@pytest.mark.parametrize("kind, sizes, between", [
    ("gradweave", (3, 2), {"ranks": 2, "fragments": 3}), ("plain", (1, 3), {"ranks": 1, "average": "gradients"}),
    pytest.param("ddp", (1, 3), {"ranks": 1}, marks=pytest.mark.slow),
    pytest.param("ddp", (2, 1), {"ranks": 1, "average": "gradients"}, marks=pytest.mark.slow)])
def test_islands_of_other_sizes_take_each_others_state_and_end_equal(meeting, tmp_path, kind, sizes, between):
    end, of_gradients = str(tmp_path / "end"), "average" in between

    def start(number):
        of = "plain" if kind == "gradweave" and sizes[number - 1] == 1 else kind
        return ranks.start(trained, sizes[number - 1], kind=of, number=number, given=meeting.given, until=end,
                           between=between, exactly=of_gradients)

    first, second = start(1), start(2)
    for job in (first, second):
        job.wait_for_file("averaged0")
    for struck, number in ((second, 2), (first, 1)):  # each size takes the other's state
        for process in struck.processes:
            process.send_signal(signal.SIGKILL)
        struck.end()
        again = start(number)
        again.wait_for_file("averaged0")
        first, second = (first, again) if number == 2 else (again, second)
    Path(end).touch()
    islands = [first.results(), second.results()]
    assert equal([rank for island in islands for rank in island])
    assert all(island[0]["first"] > 3 for island in islands)
    assert len({rank["steps"] for rank in islands[0]}) == 1
    for island in islands:
        assert all(equal_states(island[0]["optimizer"], rank["optimizer"]) for rank in island)


def test_ranks_that_cant_exchange_are_refused(meeting):
    said = ranks.run(refused, 2, given=meeting.given, between={"ranks": 3})
    assert all("3 ranks of each island are to exchange with others, and this one has 2" in each for each in said)
    [said, _] = ranks.run(refused, 2, given=meeting.given, between={"ranks": 1}, kind="fsdp2")
    assert "leave ranks out, and start islands with as many ranks each" in said


@pytest.mark.parametrize("average", ["parameters", "gradients"])
def test_a_parameter_that_is_left_whole_beside_shards_is_refused(meeting, average):
    for said in ranks.run(refused, 2, given=meeting.given, between={"average": average}, kind="blocks"):
        assert "parameter 'enter.weight' is whole, while others are sharded by fully_shard()" in said


def test_islands_that_differ_are_told_in_what_and_how_they_can_train_together(meeting, tmp_path):
    end = str(tmp_path / "end")
    first = ranks.start(trained, 1, kind="plain", number=1, given=meeting.given, until=end)
    first.wait_for_file("joined0")
    [said, _] = ranks.run(refused, 2, given=meeting.given | {"arrival_timeout": 1.0}, between={})
    assert "2 of its ranks exchange with other islands, and 1 of that one's (between={'ranks': N}" in said
    [said] = ranks.run(refused, 1, given=meeting.given | {"arrival_timeout": 1.0, "moments": "local"},
                       between={"period": 4, "compressor": "int4"}, kind="plain")
    assert "'moments local', not 'moments measured'; start all islands with the same model and options" in said
    Path(end).touch()
    first.results()


def test_an_island_for_which_the_others_wait_is_left_out_on_request(tmp_path):
    end = str(tmp_path / "end")
    with Meeting(tmp_path, options=("--leave-out-after", "6s")) as meeting:
        slow = ranks.start(trained, 2, kind="ddp", number=3, given=meeting.given, until=end, pace_s=3)  # 12 s an average
        slow.wait_for_file("joined0")
        fast = [ranks.start(trained, 2, kind="ddp", number=number, given=meeting.given, until=end) for number in (1, 2)]
        assert all(slow.wait(rank, 150) != 0 for rank in range(2))
        for rank in range(2):
            assert "island 'island3' has been left out: the others have waited for it longer than" in slow.log(rank)
        fast[0].wait_for_file("averaged0")
        Path(end).touch()
        results = [rank for job in fast for rank in job.results()]
    assert equal(results)
    # Whoever joins last has seen no change.
    assert {"island1", "island2"} in [set(names) for each in results for names in each["seen"]]


def test_ranks_of_a_host_listen_at_ports_that_follow(monkeypatch):
    from gradweave import islands

    monkeypatch.setenv("LOCAL_RANK", "3")
    assert islands._own_port("10.0.0.1:29700", "10.0.0.1") == "10.0.0.1:29703"
    assert islands._own_port("[::1]:29700", "[::1]") == "[::1]:29703"
    assert islands._own_port(None, "10.0.0.1") == "0.0.0.0:0"
    assert islands._own_host("10.0.0.1:29600", "[2001:db8::1]:29700") == "[2001:db8::1]"


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 on this machine")
def test_islands_of_a_meeting_point_with_an_address_of_ipv6_connect(tmp_path):
    from gradweave import islands

    assert islands._own_port(None, "[::1]") == "[::]:0" and islands._own_port("0.0.0.0:29700", "[::1]") == "[::]:29700"
    with Meeting(tmp_path, host="[::1]") as meeting:
        jobs = [ranks.start(trained, 1, kind="plain", number=number, given=meeting.given, averages=2) for number in (1, 2)]
        assert equal([job.results()[0] for job in jobs])


def read_and_moved(rank, exchanging, fragments):
    """Adds to one fragment after the other what is read of it, and sets all to what it was."""
    from gradweave.islands import Values

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(37, 53), torch.nn.BatchNorm1d(53), torch.nn.Conv2d(5, 7, 3)).to(
        memory_format=torch.channels_last)
    values = Values(model, model.parameters(), (), exchanging, fragments)
    before = values_of(model)
    whole = values.read().clone()
    for place in range(fragments):
        values.add(place, values.read_fragment(place).clone())
    doubled = values_of(model)
    values.set(whole, buffers=True)
    found = {"before": before, "doubled": doubled, "after": values_of(model), "count": whole.numel(),
             "fragments": values.fragments}
    values.close()
    return found


@pytest.mark.parametrize("ranks_there, exchanging", [(1, 1), (3, 3), (3, 2)])
@pytest.mark.parametrize("fragments", [1, 3, 8])
def test_fragments_hold_each_parameter_once(ranks_there, exchanging, fragments):
    for rank, found in enumerate(ranks.run(read_and_moved, ranks_there, exchanging=exchanging, fragments=fragments)):
        assert all(torch.equal(2 * was, now) for was, now in zip(found["before"], found["doubled"]))
        assert all(torch.equal(was, now) for was, now in zip(found["before"], found["after"]))
        assert (found["count"] > sum(found["fragments"]) > 0) == (rank < exchanging)
        assert len(found["fragments"]) == fragments


@pytest.mark.parametrize("sizes, fragments", [([1000, 24], 1), ([1 << 20, 1 << 21], 3), ([1 << 22, 1 << 24], 8)])
def test_a_large_model_is_averaged_in_fragments(sizes, fragments):
    from gradweave import islands

    parameters = [torch.empty(size, device="meta") for size in sizes]
    assert islands._fragments_of(parameters) == fragments


@pytest.mark.parametrize("steps, told", [(3, 0), (4, 1), (60, 1)])
def test_averages_that_land_late_are_told_once(steps, told, caplog):
    from gradweave.islands import Islands

    inside = SimpleNamespace(rank=0)
    islands = SimpleNamespace(name="island1", steps_to_land=steps, _period=8, _fragments=1, _inside=inside, _told_late=False)
    for _ in range(2):
        Islands._tell_late(islands)
    assert [record.getMessage().count(f"landed {steps} steps after it began") for record in caplog.records] == [1] * told


class Counter(torch.nn.Linear):
    """A step of SGD adds exactly 1."""

    def __init__(self):
        super().__init__(1, 1, bias=False)
        torch.nn.init.zeros_(self.weight)
        self.register_buffer("chosen", torch.zeros(3, dtype=torch.bool))


def wrapped_counter(rank, given, number, **between):
    import gradweave

    model = Counter()
    model.chosen[number] = True
    held = torch.nn.parallel.DistributedDataParallel(model) if torch.distributed.get_world_size() > 1 else model
    held, optimizer = gradweave.wrap(held, torch.optim.SGD(held.parameters(), lr=1.0), **given, island=f"island{number}",
                                     timeout=30.0, report=False, between={"compressor": "none", "fragments": 1} | between)

    def step(factor=1.0):
        optimizer.zero_grad()
        (-factor * held(torch.ones(1, 1))).sum().backward()
        optimizer.step()
        time.sleep(0.02)
        return model.weight.item()

    while not agreed(len(held.gradweave.islands.names) == 2):
        step()
    return model, held, step


def trains_on(rank, number, given):
    import gradweave

    model, held, step = wrapped_counter(rank, given, number, period=1_000_000)
    gradweave.finish(held)
    first, chosen = model.weight.item(), model.chosen.tolist()
    steps = [step() - first for _ in range(20)]
    held.gradweave.close()
    return steps, chosen


@pytest.mark.parametrize("size", [1, 2])
def test_training_goes_on_after_finish_and_loses_nothing(meeting, size):
    jobs = [ranks.start(trains_on, size, number=number, given=meeting.given) for number in (1, 2)]
    found = [result for job in jobs for result in job.results()]
    assert all(steps == [*range(1, 21)] for steps, _ in found)
    assert len({tuple(chosen) for _, chosen in found}) == 1  # the newcomer's buffers that have no mean


def comes_at_once(rank, number, given, folder):
    """Number 1 trains alone, and the others come within one of its steps. What each begins with, and how often what was gained
    alone was kept."""
    import gradweave

    def of(name):
        return Path(folder) / name

    def wait_for(*names):
        while not all(of(name).exists() for name in names):
            time.sleep(0.01)

    model = Counter()
    if number > 1:
        wait_for("alone")
        of(f"comes{number}").touch()
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), **given, island=f"island{number}",
                                      timeout=30.0, report=False, between={"period": 1_000_000})
    islands, taken, kept = model.gradweave.islands, model.weight.item(), []
    islands.on_keep(lambda: kept.append(model.weight.item()))
    step = 0
    while number == 1 and len(islands.names) < 3:
        optimizer.zero_grad()
        (-model(torch.ones(1, 1))).sum().backward()
        step += 1
        if step == 50:
            of("alone").touch()
            wait_for("comes2", "comes3")
            time.sleep(1.0)
        optimizer.step()
    gradweave.finish(model)
    model.gradweave.close()
    return taken, kept


def test_two_that_come_at_once_take_what_one_has_trained_alone(meeting, tmp_path):
    jobs = [ranks.start(comes_at_once, 1, number=number, given=meeting.given, folder=str(tmp_path)) for number in (1, 2, 3)]
    (_, kept), *others = (job.results()[0] for job in jobs)
    assert len(kept) == 1 and kept[0] >= 50
    assert [taken for taken, _ in others] == kept * 2


def diverges(rank, number, given):
    import gradweave

    model, held, step = wrapped_counter(rank, given, number, period=4, compressor="int4")
    islands = held.gradweave.islands
    try:
        if number == 2:
            step(float("nan"))
        for _ in range(400):
            step()
            if number == 1 and len(islands.names) == 1:
                break
    except gradweave.InvalidInput as error:
        return str(error)
    finally:
        held.gradweave.close()
    return model.weight.isfinite().item()


def test_an_island_whose_parameters_are_not_finite_ends_alone(meeting):
    jobs = [ranks.start(diverges, 1, number=number, given=meeting.given) for number in (1, 2)]
    sound, broken = (job.results()[0] for job in jobs)
    assert sound is True
    assert "parameters of island 'island2' are not finite" in broken


def with_frozen(rank, number, given, until, value):
    import gradweave

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    torch.nn.init.constant_(model[0].weight, value)
    torch.nn.init.zeros_(model[0].bias)
    model[0].requires_grad_(False)
    try:
        model, optimizer = gradweave.wrap(model, torch.optim.SGD(model[1].parameters(), lr=0.1), **given, report=False,
                                          island=f"island{number}", timeout=30.0, arrival_timeout=5.0)
        file_of("joined").touch()
        while not Path(until).exists():
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        model[0].requires_grad_(True)
        optimizer.step()
    except gradweave.InvalidInput as error:
        return str(error)
    return ""


def test_frozen_parameters_are_alike_and_stay_frozen(meeting, tmp_path):
    end = tmp_path / "end"
    first = ranks.start(with_frozen, 1, number=1, given=meeting.given, until=str(end), value=1.0)
    first.wait_for_file("joined")
    other = ranks.run(with_frozen, 1, number=2, given=meeting.given, until=str(end), value=2.0)[0]
    assert "it trains something different from island 'island1': 'frozen parameters" in other
    end.touch()
    assert "requires a gradient now, and was frozen in gradweave.wrap()" in first.results()[0]


def test_a_state_keeps_its_strides():
    from gradweave.islands import _packed, _unpacked

    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    held = {"image": image, "turned": torch.randn(3, 4).t(), "half": torch.ones(3, dtype=torch.float16), "rest": [1, "a"]}
    found = _unpacked(_packed(held))
    for name in ("image", "turned", "half"):
        assert torch.equal(found[name], held[name]) and found[name].stride() == held[name].stride()
    assert found["rest"] == held["rest"]


def masked(rank, number, given):
    """What finish() comes to where a buffer is a mask of infinities."""
    import gradweave

    model = Counter()
    model.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), **given, island=f"island{number}",
                                      timeout=30.0, report=False)
    while len(model.gradweave.islands.names) < 2:
        optimizer.zero_grad()
        (-model(torch.ones(1, 1))).sum().backward()
        optimizer.step()
    gradweave.finish(model)
    model.gradweave.close()
    return model.weight.item(), model.mask.tolist()


def test_a_mask_of_infinities_is_no_part_of_an_average(meeting):
    jobs = [ranks.start(masked, 1, number=number, given=meeting.given) for number in (1, 2)]
    one, other = (job.results()[0] for job in jobs)
    assert one == other and one[1][0][1] == float("-inf") and one[1][1][0] == 0


class Replacing(Counter):
    """Forwards replace its buffers: one by another of the same shape, one by a longer one."""

    def __init__(self, number):
        super().__init__()
        self.number = number
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * torch.tensor([1.0, self.number])
        self.seen = torch.zeros(len(self.seen) + 1)
        return super().forward(x)


def replaces(rank, number, given, came):
    """What the newcomer takes of buffers, and what they are before and after finish()."""
    import gradweave

    model = Replacing(number)
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), **given, island=f"island{number}",
                                      timeout=30.0, report=False)
    taken = model.mean.tolist()
    while len(model.gradweave.islands.names) < 2 or len(model.seen) < 20:
        optimizer.zero_grad()
        (-model(torch.ones(1, 1))).sum().backward()
        optimizer.step()
        if len(model.seen) == 20:
            Path(came).touch()
        time.sleep(0.01)
    before = len(model.seen)
    gradweave.finish(model)
    model.gradweave.close()
    return taken, model.mean.tolist(), len(model.seen) - before


def test_buffers_that_modules_replace_are_given_and_averaged(meeting, tmp_path):
    came = tmp_path / "came"
    first = ranks.start(replaces, 1, number=1, given=meeting.given, came=str(came))
    while not came.exists():
        time.sleep(0.01)
    second = ranks.start(replaces, 1, number=2, given=meeting.given, came=str(came))
    [[_, one, longer]], [[taken, other, also_longer]] = first.results(), second.results()
    assert taken == pytest.approx([1, 1], abs=1e-4)
    assert one == other == pytest.approx([1, 1.5], abs=0.4)
    assert longer == also_longer == 0


def bounded(rank, number, given, until, largest):
    import gradweave

    model = Counter()
    model.register_buffer("largest", torch.tensor(largest))
    try:
        model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), **given, report=False,
                                          island=f"island{number}", timeout=30.0, arrival_timeout=1.0)
    except gradweave.InvalidInput as error:
        return str(error)
    file_of("joined").touch()
    while not Path(until).exists():
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    return ""


def test_buffers_that_are_finite_on_one_island_alone_are_named(meeting, tmp_path):
    end = tmp_path / "end"
    first = ranks.start(bounded, 1, number=1, given=meeting.given, until=str(end), largest=float("-inf"))
    first.wait_for_file("joined")
    said = ranks.run(bounded, 1, number=2, given=meeting.given, until=str(end), largest=3.0)[0]
    end.touch()
    first.results()
    assert "'buffers not finite (exclude= them): none', not 'buffers not finite (exclude= them): largest'" in said


def test_checksums_of_what_lies_in_pieces_or_elsewhere():
    from gradweave.islands import _sum_of

    values = torch.arange(6.0)
    assert _sum_of(values[::2]) == _sum_of(values[::2].clone()) != _sum_of(values[1::2])
    assert _sum_of(torch.ones(1).expand(3)) == _sum_of(torch.ones(3))
    subclass = type("Elsewhere", (torch.Tensor,), {"__torch_dispatch__": classmethod(lambda *_: None)})
    elsewhere = torch.Tensor._make_wrapper_subclass(subclass, (3,))
    assert "Elsewhere" in _sum_of(elsewhere) and "Tensor" in _sum_of(torch.ones(3, device="meta"))
