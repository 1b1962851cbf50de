"""The accelerator's collectives: on their own stream, in one queue, with Gloo's bits."""

import datetime

import torch
from torch import distributed

import jobs
from models import make_optimizer


def every_collective(rank):
    from accelerator import native
    from gradweave.groups import all_gather_single, reduce_scatter_single

    world = distributed.get_world_size()

    def mine(count, dtype=torch.float32):
        return (torch.arange(count) * (rank + 1) / 7).to(dtype)

    def on(device):
        found = {}
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            x = mine(5000, dtype).to(device)
            distributed.all_reduce(x)
            found[f"all_reduce {dtype}"] = x
        x = mine(10).to(device)
        distributed.broadcast(x, 1)
        found["broadcast"] = x
        parts = [torch.empty(3, device=device) for _ in range(world)]
        distributed.all_gather(parts, mine(3).to(device))
        found["all_gather"] = torch.cat(parts)
        x = torch.empty(3 * world, device=device)
        all_gather_single(x, mine(3).to(device))
        found["all_gather_single"] = x
        x = torch.empty(4, device=device)
        reduce_scatter_single(x, mine(4 * world).to(device))
        found["reduce_scatter_single"] = x
        x = torch.empty(2 * world, device=device)
        distributed.all_to_all_single(x, mine(2 * world).to(device))
        found["all_to_all_single"] = x
        return {name: value.cpu() for name, value in found.items()}

    expected, found = on("cpu"), on("sim")
    assert native.take_reports() == []
    return [name for name in expected if not torch.equal(expected[name], found[name])]


def test_every_collective_has_gloos_bits():
    assert jobs.run(every_collective, 3) == [[]] * 3


def not_waited_for(rank, waits):
    from accelerator import native

    x = torch.ones(4, device="sim")
    work = distributed.all_reduce(x, async_op=True)
    before = native.host_waits()
    if waits:
        work.wait()
    x.add_(1)
    assert native.host_waits() == before
    distributed.barrier()
    return native.take_reports()


def test_a_result_is_ready_once_its_stream_has_waited():
    assert jobs.run(not_waited_for, 2, waits=True) == [[], []]
    for found in jobs.run(not_waited_for, 2, waits=False):
        assert "ALLREDUCE 1 of group" in found[0] and "aten::add_" in found[0]


def two_groups(rank, orders, one_queue):
    """Launches collectives on two groups, each rank in its order. None, or what the first to fail said; and its launches."""
    from accelerator import native

    native.carry_by(one_queue=one_queue)
    groups = [distributed.new_group(timeout=datetime.timedelta(seconds=3)) for _ in range(2)]
    x = [torch.ones(4, device="sim") for _ in groups]
    for each, group in zip(x, groups):  # connects
        distributed.all_reduce(each, group=group)
    torch.accelerator.synchronize()
    native.take_launches()
    works = [distributed.all_reduce(x[which], group=groups[which], async_op=True) for which in orders[rank]]
    for work in works:
        work.wait()
    try:
        return x[0].sum().item(), native.take_launches()
    except RuntimeError as error:
        return str(error), native.take_launches()


def test_in_one_queue_another_order_of_launches_hangs():
    apart, alike = [[0, 1], [1, 0]], [[0, 1], [0, 1]]
    for orders, one_queue in ((apart, False), (alike, True)):
        assert [result for result, _ in jobs.run(two_groups, 2, orders=orders, one_queue=one_queue)] == [16, 16]
    (said, first), (_, second) = jobs.run(two_groups, 2, orders=apart, one_queue=True)
    assert "ALLREDUCE 2 of group" in said
    assert first == second[::-1] != second


def as_on_the_processor(rank, optimizer):
    from accelerator import native

    trained = []
    for device in ("cpu", "sim"):
        model = jobs.net_on(device, seed=rank)
        parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
        jobs.train(parallel, make_optimizer(optimizer, model), rank, 6, device)
        trained.append(jobs.values(model))
    assert native.take_reports() == []
    return [name for name, value in trained[0].items() if not torch.equal(value, trained[1][name])]


def test_distributed_data_parallel_is_silent_and_has_the_processors_bits():
    for optimizer in ("sgd", "adamw"):
        assert jobs.run(as_on_the_processor, 3, optimizer=optimizer) == [[]] * 3
