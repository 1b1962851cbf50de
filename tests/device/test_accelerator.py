"""The simulated accelerator itself, with one rank: torch's ops on it, its order, and what a host must not do."""

import signal

import pytest
import torch
from torch import nn

import jobs
from models import make_optimizer


def reports(rank, case):
    from accelerator import native

    native.take_reports()
    globals()[case]()
    return native.take_reports()


def two_streams():
    """A stream, a tensor that it has written, and another stream."""
    first, second = torch.Stream("sim"), torch.Stream("sim")
    with first:
        x = torch.ones(10, device="sim")
    return first, x, second


def unordered_read():
    _, x, second = two_streams()
    with second:
        x.sum()


def ordered_read():
    first, x, second = two_streams()
    second.wait_stream(first)
    with second:
        x.sum()
    first.wait_stream(second)


def other_half():
    first, x, second = two_streams()
    done = first.record_event()
    with first:
        x[:5].zero_()
    second.wait_event(done)
    with second:
        x[5:].sum()
    first.wait_stream(second)


def freed_too_early():
    first, x, second = two_streams()
    second.wait_stream(first)
    with second:
        y = x * 2
    del x
    first.wait_stream(second)
    del y


def freed_after_recording():
    first, x, second = two_streams()
    second.wait_stream(first)
    with second:
        x.mul_(2)
    x.record_stream(second)
    del x


def host_has_waited():
    first, x, second = two_streams()
    first.synchronize()
    with second:
        x.sum()
    torch.accelerator.synchronize()


@pytest.mark.parametrize("case, said", [
    ("unordered_read", ["aten::sum on stream 3 reads and is not ordered after aten::ones on stream 2, which wrote: memory of",
                        "may follow its being freed and is not ordered after aten::sum on stream 3, which read"]),
    ("freed_too_early", ["may follow its being freed and is not ordered after aten::mul.Tensor on stream 3, which read"]),
    ("ordered_read", []), ("other_half", []), ("freed_after_recording", []), ("host_has_waited", [])])
def test_what_is_not_ordered_is_reported(case, said):
    found, = jobs.run(reports, 1, case=case)
    assert len(found) == len(said)
    assert all(part in whole for part, whole in zip(said, found, strict=True)), found


def the_host_waits(rank):
    from accelerator import native

    x = torch.arange(4.0, device="sim")
    assert torch.empty(3, device="sim").isnan().all().item()
    before, waits = x.to("cpu", non_blocking=True), native.host_waits()
    early = before.clone()
    torch.accelerator.synchronize()
    assert native.host_waits() == waits + 1
    kept = x + 1
    kept.mul_(2)
    nn.functional.relu(kept)
    assert native.host_waits() == waits + 1  # launching doesn't
    assert kept.sum().item() == 20 and native.host_waits() == waits + 2
    with pytest.raises(RuntimeError, match="a tensor of the host among"):
        x + torch.ones(4)
    return early, before


def test_copies_arrive_when_the_host_waits_and_launches_do_not_wait():
    (early, before), = jobs.run(the_host_waits, 1)
    assert early.isnan().all() and before.tolist() == [0, 1, 2, 3]


def time_passes(rank):
    from accelerator import native

    begin, end = (torch.Event("sim", enable_timing=True) for _ in range(2))
    side = torch.Stream("sim")
    begin.record()
    with side:
        native.spend_us(1500)
    native.spend_us(400)
    torch.accelerator.current_stream().wait_stream(side)
    native.spend_us(100)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def test_time_is_what_was_spent():
    assert jobs.run(time_passes, 1) == [1.6]


def read_by_the_host(rank):
    import ctypes

    ctypes.string_at(torch.ones(4, device="sim").data_ptr(), 4)


def test_a_host_that_reads_the_accelerators_memory_dies():
    job = jobs.start(read_by_the_host, 1)
    assert job.wait(0, 60) == -signal.SIGSEGV


def alike(rank, optimizer):
    from accelerator import native

    trained = []
    for device in ("cpu", "sim"):
        model = jobs.net_on(device)
        jobs.train(model, make_optimizer(optimizer, model), rank, 5, device)
        trained.append(jobs.values(model))
    assert native.take_reports() == []
    return [name for name, value in trained[0].items() if not torch.equal(value, trained[1][name])]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_has_the_processors_bits(optimizer):
    assert jobs.run(alike, 1, optimizer=optimizer) == [[]]
