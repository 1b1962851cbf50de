"""What ranks agree on in wrap(), which ranks a job has, and what is refused there."""

import gc
import weakref

import pytest
import torch
from torch import distributed, nn

import ranks
from models import batch, cluster, differing, make_net, train, workload


def net_and_sgd(**named):
    model = make_net()
    return model, torch.optim.SGD(model.parameters(), **{"lr": 0.1, **named})


def plan_for(scheme):
    from gradweave import core

    return core.make_plan(workload(), cluster(distributed.get_world_size()), scheme)


def differ(scheme="ddp", model=None, rate=0.1, **arguments):
    import gradweave

    model = model or make_net()
    gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=rate), scheme, **arguments)


def emulated(us_per_byte):
    import gradweave

    return gradweave.EmulatedLink(50, us_per_byte)


# name: (what rank 1 of three does, what the others do, what rank 0 is told)
DISAGREEMENTS = {
    "scheme": (lambda: differ("dear"), differ, "scheme differs: 'ddp' on ranks 0 2, 'dear' on rank 1"),
    "option": (lambda: differ(options={"bucket_cap_bytes": 1000}), differ, "options differs: {} on ranks 0 2"),
    "warm_up": (lambda: differ(warm_up=5), differ, "warm_up differs: 3 on ranks 0 2, 5 on rank 1"),
    "buffers": (lambda: differ(broadcast_buffers=True), differ,
                "broadcast_buffers differs: False on ranks 0 2, True on rank 1"),
    "plan": (lambda: differ("auto", plan=plan_for("dear")), lambda: differ("auto", plan=plan_for("ddp")),
             "rank 1 differs from ranks 0 2 in plan"),
    "no plan": (lambda: differ("auto", plan=plan_for("dear")), lambda: differ("auto"), "plan"),
    "plan and options": (lambda: differ("dear", plan=plan_for("dear"), options={"buffer_bytes": 1000}), differ,
                         "gradweave.wrap: scheme= and options= make a plan, and plan= gives one, of scheme 'dear'"),
    "plan of another scheme": (lambda: differ("ddp", plan=plan_for("dear")), differ, "of scheme 'dear': leave out plan="),
    "rate": (lambda: differ(rate=0.2), differ, "SGD 0, group 0, lr differs: 0.1 on ranks 0 2, 0.2 on rank 1"),
    "model": (lambda: differ(model=nn.Linear(3, 3)), differ, "rank 1 differs from ranks 0 2 in parameters"),
    "links": (lambda: differ(links=[emulated(0.02)]), lambda: differ(links=[emulated(0.01)]),
              "links differs: emulated (50.0, 0.01) on ranks 0 2, emulated (50.0, 0.02) on rank 1"),
    "number of links": (lambda: differ(links=[emulated(0.01)]), lambda: differ(links=[emulated(0.01), emulated(0.01)]),
                        "links differs: emulated0 (50.0, 0.01), emulated1 (50.0, 0.01) on ranks 0 2"),
    "refusal": (lambda: differ("nothing"), differ, "rank 1 reports: scheme: unknown scheme 'nothing'"),
    "range": (lambda: differ(warm_up=0), differ, "rank 1 reports: gradweave.wrap: warm_up=0: give a whole number, at least 1"),
}


def disagree(rank):
    said = {}
    for name, (one, others, _) in DISAGREEMENTS.items():
        distributed.barrier()
        try:
            one() if rank == 1 else others()
        except (ValueError, RuntimeError) as error:
            said[name] = str(error)
    return said


def test_ranks_that_do_not_mean_the_same_are_told_what_differs_and_where():
    first, second, third = ranks.run(disagree, 3)
    for name, (_, _, words) in DISAGREEMENTS.items():
        for said in (first, third):
            assert words in said[name], (name, said.get(name))
        assert name in second, name


def does_not_come(rank):
    try:
        if rank != 1:
            differ("nothing" if rank == 3 else "ddp", arrival_timeout=2.0)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "did not come"


def test_a_rank_that_does_not_come_to_wrap_is_named_soon():
    first, _, third, wrong = ranks.run(does_not_come, 4)
    assert wrong.startswith("scheme: unknown scheme 'nothing'")
    for text in (first, third):
        assert "gradweave.wrap() failed after" in text and "suspect: rank 1 (has not arrived)" in text, text
        assert "wrap(arrival_timeout=)" in text, text


def ends_inside(rank, error):
    import gradweave
    from gradweave import session

    def stop(*arguments):
        raise error

    if rank == 1:
        session.Control = stop
    try:
        differ(timeout=3)
    except (RuntimeError, SystemExit) as raised:
        return str(raised)
    return "wrapped"


def test_a_rank_that_ends_inside_wrap_is_told_to_the_others():
    first, own, third = ranks.run(ends_inside, 3, error=SystemExit(3))
    assert own == "3"
    for text in (first, third):
        assert "rank 1 ended with SystemExit: 3 (before the backward of iteration 0)" in text and "batches" not in text, text


def hybrid(rank):
    """Two jobs of two ranks side by side: each pair trains its own model, and `conv` is left to others."""
    import gradweave

    pairs = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    mine = pairs[rank // 2]
    wrong = []
    for scheme in ("ddp", "dear", "deft", "p3", "partial_sgd"):
        model = make_net(seed=rank)
        expected = make_net(seed=rank)
        untouched = model.conv.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        model, optimizer = gradweave.wrap(model, optimizer, scheme, process_group=mine, exclude=["conv", "norm"], warm_up=1,
                                          profile_iterations=1, timeout=20, broadcast_buffers=True)
        if scheme == "ddp":
            assert torch.equal(model.conv.weight, untouched)  # not broadcast
            parallel = nn.parallel.DistributedDataParallel
            parallel._set_params_and_buffers_to_ignore_for_model(
                expected, [name for name, _ in [*expected.named_parameters(), *expected.named_buffers()]
                           if name.startswith(("conv", "norm"))])
            train(parallel(expected, process_group=mine), torch.optim.SGD(expected.parameters(), lr=0.05, momentum=0.9), rank,
                  6)
        train(model, optimizer, rank, 6)
        gradweave.finish(model)
        if scheme == "ddp":
            wrong += differing(model, expected)
        own = model.out.weight.detach().clone()
        everybodys = [torch.empty_like(own) for _ in range(4)]
        distributed.all_gather(everybodys, own)
        if not torch.equal(everybodys[0], everybodys[1]) or torch.equal(everybodys[0], everybodys[2]):
            wrong.append((scheme, "out"))
        if torch.equal(model.conv.weight, untouched):
            wrong.append((scheme, "conv was not stepped"))
        model.gradweave.close()
    return wrong


def test_hybrid_jobs_train_within_their_group_and_leave_parameters_to_others():
    assert ranks.run(hybrid, 4) == [[]] * 4


def groups_of_others(rank):
    import gradweave

    part = distributed.new_group([0, 1])
    said = []
    for arguments in ({"links": [part]}, {"process_group": part}, {"exclude": ["nothing"]}, {"links": [3]}):
        distributed.barrier()
        try:
            gradweave.wrap(*net_and_sgd(), "ddp", timeout=3.0, **arguments)[0].gradweave.close()
            said.append("accepted")
        except ValueError as error:
            said.append(str(error))
    return said


def test_groups_that_are_not_the_jobs_are_refused():
    for rank, (links, group, exclude, nonsense) in enumerate(ranks.run(groups_of_others, 3)):
        assert "process_group=" in links if rank < 2 else "reports" in links or "NON_GROUP" in links or "links[0]" in links
        assert group == "accepted" if rank < 2 else "not a member of process_group" in group
        assert "exclude names 'nothing'" in exclude and "links[0] is 3" in nonsense


def users_group(rank, schemes):
    """The default group as a link, and broadcasts in every forward, and the loop's own collectives on it."""
    import gradweave

    for scheme in schemes:
        model, optimizer = net_and_sgd()
        model, optimizer = gradweave.wrap(model, optimizer, plan=plan_for(scheme), links=[distributed.group.WORLD],
                                          broadcast_buffers=True, timeout=20)
        for step in range(5):
            train(model, optimizer, rank, 1, first=step)
            distributed.all_reduce(torch.ones(3))
        gradweave.finish(model)
        model.gradweave.close()
    return True


def test_a_group_of_the_users_stays_the_users():
    assert all(ranks.run(users_group, 2, schemes=["ddp", "dear", "deft"]))


def around(rank, schemes):
    """DistributedDataParallel, or FullyShardedDataParallel, around a wrapped model."""
    import gradweave
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh, said = init_device_mesh("cpu", (2,)), []
    for scheme in schemes:
        for library in (nn.parallel.DistributedDataParallel, lambda model: fully_shard(model, mesh=mesh)):
            distributed.barrier()
            model, optimizer = gradweave.wrap(*net_and_sgd(), plan=plan_for(scheme), timeout=20)
            try:
                library(model)(batch(rank, 0)[0])
                said.append("accepted")
            except (ValueError, RuntimeError) as error:
                said.append(str(error))
            model.gradweave.close(ValueError("refused"))
    return said


def test_another_library_around_the_model_is_refused_in_the_first_forward():
    for said in ranks.run(around, 2, schemes=["ddp", "dear"]):
        assert all("sent twice" in words and "use one of them alone" in words for words in said), said


def freed(rank, scheme):
    import gradweave

    model, optimizer = net_and_sgd()
    model, optimizer = gradweave.wrap(model, optimizer, scheme, timeout=20, warm_up=1, profile_iterations=1)
    train(model, optimizer, rank, 4)
    session = model.gradweave
    gradweave.finish(model)
    left = [weakref.ref(held) for held in (model, optimizer, session, session.engine, session.control.group,
                                           session.links[0].group)]
    session.close()
    del model, optimizer, session
    gc.collect()
    return [reference() is None for reference in left], threads_of_this_process()


def threads_of_this_process():
    import os

    return len(os.listdir("/proc/self/task"))


def freed_again(rank, scheme):
    first, threads = freed(rank, scheme)
    again, threads_again = freed(rank, scheme)
    return first, again, threads_again - threads


@pytest.mark.parametrize("scheme", ["ddp", "dear", "deft"])
def test_a_closed_model_is_freed_with_its_groups_and_threads(scheme):
    for first, again, more_threads in ranks.run(freed_again, 2, scheme=scheme):
        assert all(first) and all(again) and more_threads == 0, (first, again, more_threads)


def unlike(rank):
    """What is said where memory, or a buffer that has grown, is not the same on all ranks."""
    import gradweave

    said = []
    model, optimizer = net_and_sgd()
    model.conv.weight.data = model.conv.weight.data.transpose(2, 3) if rank else model.conv.weight.data
    with pytest.raises(gradweave.InvalidInput) as refused:
        gradweave.wrap(model, optimizer, "ddp", timeout=20.0)
    said.append(str(refused.value))
    model, optimizer = net_and_sgd()
    model.register_buffer("table", torch.zeros(3))
    model, optimizer = gradweave.wrap(model, optimizer, "ddp", report=False, timeout=20.0)
    model.table = torch.zeros(3 + rank)
    with pytest.raises(gradweave.InvalidInput) as refused:
        gradweave.finish(model)
    said.append(str(refused.value))
    model.table = torch.zeros(4)
    gradweave.finish(model)
    model.gradweave.close()
    return said


def test_what_is_not_alike_in_memory_is_named():
    for strides, buffers in ranks.run(unlike, 2):
        assert "strides" in strides and "differ" in strides
        assert buffers.startswith("gradweave.finish(): ") and "rank 1 differs from rank 0 in buffers" in buffers


def sharing(rank):
    """[what is said] of a wrapped model's part, of a model around it, and of one that leaves what they share out."""
    import gradweave

    def wrap(model, **settings):
        return gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=0.05), report=False, **settings)

    said = []
    for first in ("whole", "part"):
        whole = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        models = {"whole": whole, "part": whole[1]}
        wrapped, _ = wrap(models.pop(first))
        (other,) = models.values()
        try:
            wrap(other)
        except gradweave.InvalidInput as error:
            said.append(str(error))
        if first == "part":
            wrap(whole, exclude=["1"])[0].gradweave.close()
        wrapped.gradweave.close()
        wrap(other)[0].gradweave.close()
    return said


def test_models_that_share_parameters_are_refused():
    for of_part, of_whole in ranks.run(sharing, 2):
        assert "parameter 'weight' is of another wrapped model, Sequential, too" in of_part
        assert "parameter '1.weight' is of another wrapped model, Linear, too" in of_whole
