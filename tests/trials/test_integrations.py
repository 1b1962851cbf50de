"""gradweave.integrations under every scheme: exact ones give the bits of the framework's own DistributedDataParallel, with
accumulation, clipping, evaluation, and a job that goes on from a checkpoint. Second tier: every scheme, GRADWEAVE_SLOW=1.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime")]

import integrations  # noqa: E402  the path is set above
import orders  # noqa: E402
import ranks  # noqa: E402
from test_trials import needs_transformers  # noqa: E402

AFTER_THE_STEP = "dreamddp forward_overlap=only"  # so gradients may be clipped
LOOPS = ["accelerate", "fabric", "lightning_trainer", pytest.param("transformers_resnet", marks=needs_transformers),
         pytest.param("transformers_gpt2", marks=needs_transformers)]


def trained(rank, loop, norm, options, folder, resumed=False, precision="32-true"):
    """(parameters, of rank 0 buffers, too; what evaluations told)."""
    import gradweave
    from gradweave.subclasses import sessions

    if rank == 0 and not resumed:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    distributed.barrier()
    trial = integrations.Trial(rank, folder, options, resumed, norm, precision)
    model = getattr(integrations, loop)(trial)
    if model in sessions:
        gradweave.finish(model)
        assert not resumed or model.gradweave.plan["scheme"] == options["scheme"] or options["scheme"] == "auto"
        model.gradweave.close()
    held = model.state_dict() if rank == 0 else dict(model.named_parameters())
    return {name: value.detach().clone() for name, value in held.items()}, trial.told


def differing(found, expected):
    """What of two results of trained() differs; `found` may begin later."""
    names = [name for name, value in expected[0].items() if not torch.equal(found[0][name], value)]
    told = expected[1][len(expected[1]) - len(found[1]):]
    return names + [(one, other) for one, other in zip(found[1], told) if one != other]


def options_of(scheme):
    import gradweave
    from gradweave.lab import methods

    method = methods.parse(scheme)
    return {"scheme": method.scheme, "options": method.plan_options, "links": [gradweave.EmulatedLink(50, 0.001)],
            "timeout": 30, "warm_up": 1, "profile_iterations": 2, "report": False, **method.wrap_options}


def all_schemes(rank, loop, schemes, norm):
    """{scheme: "exact", "other bits", "refused: ...", or what is wrong}."""
    import gradweave
    from gradweave import core
    from gradweave.lab import methods

    effect = {row["name"]: row["consistency"] for row in core.schemes()}
    folder = Path(os.environ["JOB_FOLDER"]) / "checkpoints"
    expected, found = trained(rank, loop, norm, None, folder), {}
    # Lightning leaves each rank its own buffers there, and keeps rank 0's.
    rest_of_ddp = trained(rank, loop, norm, None, folder, resumed=True) if loop == "lightning_manual" else None
    for scheme in schemes or effect:
        options = options_of(scheme)
        try:
            whole = trained(rank, loop, norm, options, folder)
            rest = trained(rank, loop, norm, options, folder, resumed=True)
        except gradweave.InvalidInput as error:
            found[scheme] = f"refused: {error}"
            continue
        other = differing(whole, expected)
        found[scheme] = "other bits" if other else "exact"
        if other and methods.parse(scheme).effect(core.schemes()) == "exact":
            found[scheme] = f"differs from DistributedDataParallel: {other}"
        elif again := differing(rest, rest_of_ddp or whole):
            found[scheme] = f"differs after the checkpoint: {again}"
        elif not rest[1] or len(rest[1]) >= len(whole[1]):
            found[scheme] = "did not go on from the checkpoint"
    return found


def check(loop, schemes=None, refused=(), norm=0.5):
    for found in ranks.run(all_schemes, 2, timeout=500, loop=loop, schemes=schemes, norm=norm):
        wrong = {scheme: what for scheme, what in found.items() if what not in ("exact", "other bits")}
        assert set(wrong) == set(refused), wrong
        assert all(what.startswith("refused: ") for what in wrong.values()), wrong


@pytest.mark.parametrize("loop", LOOPS)
def test_a_frameworks_loop_has_the_bits_of_its_own_ddp(loop):
    check(loop, ["ddp", "dear", AFTER_THE_STEP, "delayed_averaging moments=measured"])


IN_BACKWARD = ["local_sgd", "partial_sgd", "dreamddp"]  # step before the norm is known


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_a_frameworks_loop_under_every_scheme(loop):
    check(loop, refused=IN_BACKWARD)
    check(loop, IN_BACKWARD, norm=None)


def changed_over(rank, loop):
    """What differs when a job goes on by the other way from the checkpoint of DistributedDataParallel, or of `dear`."""
    folder, ways = Path(os.environ["JOB_FOLDER"]) / "checkpoints", [None, options_of("dear")]
    expected = trained(rank, loop, 0.5, None, folder)
    found = [differing(trained(rank, loop, 0.5, ways[1], folder, resumed=True), expected)]
    trained(rank, loop, 0.5, ways[1], folder)
    return found + [differing(trained(rank, loop, 0.5, ways[0], folder, resumed=True), expected)]


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_a_job_changes_over_at_a_checkpoint(loop):
    for found in ranks.run(changed_over, 2, loop=loop):
        assert found == [[], []]


def until_it_is_saved(rank, loop, schemes, folder):
    for scheme in schemes:
        trained(rank, loop, 0.5, options_of(scheme), folder / scheme)


def gone_on(rank, loop, schemes, folder):
    """{scheme: what differs from DistributedDataParallel that goes on from the same checkpoint}."""
    return {scheme: differing(trained(rank, loop, 0.5, options_of(scheme), folder / scheme, resumed=True),
                              trained(rank, loop, 0.5, None, folder / scheme, resumed=True)) for scheme in schemes}


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_a_job_goes_on_with_fewer_ranks(loop, tmp_path):
    from gradweave import core

    effect = {row["name"]: row["consistency"] for row in core.schemes() if row["name"] not in IN_BACKWARD}
    ranks.run(until_it_is_saved, 3, timeout=500, loop=loop, schemes=list(effect), folder=tmp_path)
    for found in ranks.run(gone_on, 2, timeout=500, loop=loop, schemes=list(effect), folder=tmp_path):
        assert not {scheme: other for scheme, other in found.items() if other and effect[scheme] == "exact"}


def in_bfloat16(rank, loop, schemes):
    """{scheme: what differs from the framework's own DistributedDataParallel under autocast, with clipping}."""
    folder = Path(os.environ["JOB_FOLDER"]) / "checkpoints"
    expected = trained(rank, loop, 0.5, None, folder, precision="bf16-mixed")
    return {scheme: differing(trained(rank, loop, 0.5, options_of(scheme), folder, precision="bf16-mixed"), expected)
            for scheme in schemes}


@pytest.mark.parametrize("loop", ["lightning_trainer", "fabric"])
def test_bfloat16_of_lightning_with_clipping(loop):
    from gradweave import core

    effects = {row["name"]: row["consistency"] for row in core.schemes() if row["name"] not in IN_BACKWARD}
    for found in ranks.run(in_bfloat16, 2, timeout=500, loop=loop, schemes=["ddp", "dear", "deft"]):
        assert not {scheme: other for scheme, other in found.items() if other and effects[scheme] == "exact"}


def of_two_jobs(rank, loop):
    """What is said where rank 1 goes on from the checkpoint of another job than rank 0."""
    import gradweave

    folder = Path(os.environ["JOB_FOLDER"])
    for job in ("one", "other"):
        trained(rank, loop, 0.5, options_of("dear"), folder / job)
    distributed.barrier()
    if rank == 1:
        own, = (path for path in (folder / "other").rglob("*rank1*") if path.is_file())
        shutil.copy(own, folder / "one" / own.relative_to(folder / "other"))
    distributed.barrier()
    with pytest.raises(gradweave.InvalidInput) as error:
        trained(rank, loop, 0.5, options_of("dear"), folder / "one", resumed=True)
    return str(error.value)


@pytest.mark.parametrize("loop", ["accelerate", "lightning_trainer", "fabric"])
def test_ranks_that_go_on_from_different_jobs_are_told(loop):
    for said in ranks.run(of_two_jobs, 2, timeout=300, loop=loop):
        assert said.count("of job") == 2, said


ALONE = """
import torch
from accelerate import Accelerator

import gradweave
import gradweave.integrations.accelerate


def trained(wrap):
    accelerator = wrap(Accelerator(cpu=True, gradient_accumulation_steps=2))
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    samples = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(samples, 2))
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    if hasattr(model, "gradweave"):
        assert model.gradweave.plan["scheme"] == "dear"
        gradweave.finish(model)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


expected = trained(lambda accelerator: accelerator)
assert torch.equal(trained(lambda accelerator: gradweave.integrations.accelerate.wrap(accelerator, scheme="dear")), expected)
"""


@pytest.mark.parametrize("launcher", [[sys.executable],
                                      [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]])
def test_one_process_of_accelerate_trains(launcher, tmp_path):
    (tmp_path / "train.py").write_text(ALONE)
    environment = {name: value for name, value in os.environ.items() if name not in ("WORLD_SIZE", "RANK", "LOCAL_RANK")}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "python")
    done = subprocess.run([*launcher, "train.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_manual_optimization_of_lightning():
    check("lightning_manual", ["ddp", "p3", "dear"])


def test_a_wrong_order_says_what_to_do():
    for messages in ranks.run(orders.all_refusals, 2):
        for case, words in orders.REFUSED.items():
            message = messages.get(case.__name__, "accepted")
            assert all(each in message for each in words), (case.__name__, message)
