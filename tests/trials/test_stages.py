"""What scripts of frameworks do besides one training from beginning to end: stages, rollbacks, averages of weights, several
models, checkpoints that were written over. Beside their own DistributedDataParallel."""

import itertools
import os
import shutil
import sys
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime")]

import integrations  # noqa: E402  the path is set above
import ranks  # noqa: E402
from test_integrations import options_of  # noqa: E402


def net(seed, norm=False):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16) if norm else nn.ReLU(), nn.Linear(16, 4))


def samples():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x[:, :4].argmax(1)), 4)


def folder_of(name):
    folder = Path(os.environ["JOB_FOLDER"]) / name
    if distributed.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    distributed.barrier()
    return folder


def accelerator_of(scheme):
    from accelerate import Accelerator

    integrations.forget_accelerator()
    accelerator = Accelerator(cpu=True)
    if scheme is None:
        return accelerator
    import gradweave.integrations.accelerate

    return gradweave.integrations.accelerate.wrap(accelerator, **options_of(scheme))


def prepared(accelerator, model):
    return accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-2), samples())


def train(accelerator, model, optimizer, loader, steps=8):
    for x, y in itertools.islice(loader, steps):
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()


def values(*models):
    """Of the ended training."""
    import gradweave

    for model in models:
        if hasattr(model, "gradweave"):
            gradweave.finish(model)
    return [p.detach().clone() for model in models for p in model.parameters()]


def rollback(scheme):
    """What was saved is loaded once training has gone on."""
    accelerator, folder = accelerator_of(scheme), folder_of("rollback")
    objects = prepared(accelerator, net(1))
    train(accelerator, *objects)
    accelerator.save_state(folder)
    distributed.barrier()
    train(accelerator, *objects, steps=4)
    accelerator.load_state(folder)
    train(accelerator, *objects, steps=6)
    return values(objects[0])


def stages(scheme):
    """Two Accelerators train one model, one after the other."""
    model = net(1)
    for _ in range(2):
        accelerator = accelerator_of(scheme)
        wrapped, *others = prepared(accelerator, model)
        train(accelerator, wrapped, *others)
        model = accelerator.unwrap_model(wrapped)
        values(model)
    return values(model)


def freed(scheme):
    """After free_memory() another model is trained, and goes on from its checkpoint."""
    accelerator, folder = accelerator_of(scheme), folder_of("freed")
    objects = prepared(accelerator, nn.Linear(8, 4))
    train(accelerator, *objects)
    values(objects[0])
    gone = weakref.ref(accelerator.unwrap_model(objects[0]))
    objects = accelerator.free_memory(*objects)
    assert gone() is None
    objects = prepared(accelerator, net(2))
    train(accelerator, *objects)
    accelerator.save_state(folder)
    distributed.barrier()
    accelerator = accelerator_of(scheme)
    objects = prepared(accelerator, net(3))
    accelerator.load_state(folder)
    train(accelerator, *objects)
    return values(objects[0])


def clipped_together(scheme):
    accelerator = accelerator_of(scheme)
    first, one, loader = prepared(accelerator, net(1))
    second, other, _ = prepared(accelerator, net(2))
    for x, y in loader:
        accelerator.backward(nn.functional.cross_entropy(first(x), y) + nn.functional.cross_entropy(second(x), y))
        accelerator.clip_grad_norm_(itertools.chain(first.parameters(), second.parameters()), 0.1)
        for optimizer in (one, other):
            optimizer.step()
            optimizer.zero_grad()
    return values(first, second)


def unlike_ddp(rank, cases, schemes):
    """[(case, scheme)] that don't give what DistributedDataParallel gives."""
    from gradweave.subclasses import sessions

    wrong = []
    for case in cases:
        expected = case(None)
        for scheme in schemes:
            wrong += [(case.__name__, scheme)] * (not all(map(torch.equal, case(scheme), expected)))
            for session in set(sessions.values()):
                session.close()
            distributed.barrier()
    return wrong


def test_accelerate_as_its_own_ddp():
    cases = [rollback, stages, freed, clipped_together]
    # us_byte waits for results where it clips.
    assert ranks.run(unlike_ddp, 2, cases=cases, schemes=["ddp", "dear", "us_byte"]) == [[], []]


def trigger(rank):
    import gradweave

    accelerator = accelerator_of("ddp")
    model, *_ = prepared(accelerator, net(1))
    with pytest.raises(gradweave.InvalidInput) as error:
        with accelerator.trigger_sync_in_backward(model):
            pass
    model.gradweave.close()
    return str(error.value)


def test_a_sync_that_is_triggered_in_the_backward_is_refused():
    for said in ranks.run(trigger, 2):
        assert "put each backward pass but the last into accelerator.no_sync(model)" in said


def replaced(rank):
    """DistributedDataParallel writes over a checkpoint, and training then goes on from it: what was loaded, and warnings."""
    folder, loaded, saved, told = folder_of("replaced"), [], [], []
    for scheme in ("local_sgd", None, "local_sgd"):
        accelerator = accelerator_of(scheme)
        objects = prepared(accelerator, net(1))
        if saved:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                accelerator.load_state(folder)
            loaded.append([p.detach().clone() for p in objects[0].parameters()])
        train(accelerator, *objects)
        distributed.barrier()
        accelerator.save_state(folder)
        distributed.barrier()
        saved.append([p.detach().clone() for p in objects[0].parameters()])
        values(objects[0])
        accelerator.free_memory()
    return ([all(map(torch.equal, *each)) for each in zip(loaded, saved)],
            [str(each.message) for each in told if "was saved with another model" in str(each.message)])


def test_a_rank_file_of_a_replaced_checkpoint_is_not_used():
    (begun, told), (others, silent) = ranks.run(replaced, 2)
    assert begun == [True, True] and others[1]
    assert len(told) == 1 and not silent


def begun_in_part(rank, older):
    """Iterations of two models where a checkpoint was saved, and where it is loaded once one of them trains. `older`: the rank
    files have no digest of parameters."""
    folder, iterations = folder_of("begun_in_part"), []
    for _ in range(2):
        accelerator = accelerator_of("dear")
        (first, *others), (second, *rest) = (prepared(accelerator, net(seed)) for seed in (1, 2))
        train(accelerator, first, *others)
        if not iterations:
            train(accelerator, second, *rest, steps=6)
            accelerator.save_state(folder)
            if older:
                path = folder / f"gradweave.rank{rank}.pt"
                torch.save([{key: each[key] for key in each if key != "parameters"} for each in torch.load(path)], path)
            distributed.barrier()
        else:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="gradweave")
                accelerator.load_state(folder)
        iterations.append([each.gradweave.engine.iteration for each in (first, second)])
        values(first, second)
        accelerator.free_memory()
    return iterations


@pytest.mark.parametrize("older", [False, True])
def test_a_model_goes_on_from_its_own_part_of_a_checkpoint(older):
    for saved, loaded in ranks.run(begun_in_part, 2, older=older):
        assert saved == loaded == [8, 6]


def trained_on(rank, folder):
    """Goes on in a folder that a job of any number of ranks has written: the parameters at the beginning and at the end."""
    accelerator = accelerator_of("dear")
    objects = prepared(accelerator, net(1))
    if folder.exists():
        accelerator.load_state(folder)
    begun = [p.detach().clone() for p in objects[0].parameters()]
    train(accelerator, *objects, steps=5)
    distributed.barrier()
    accelerator.save_state(folder)
    ended = values(objects[0])
    objects[0].gradweave.close()
    return begun, ended


def test_jobs_of_more_and_fewer_ranks_go_on_in_one_folder(tmp_path):
    before = None
    for count in (3, 2, 3):
        for begun, ended in ranks.run(trained_on, count, folder=tmp_path / "ranks"):
            assert before is None or all(map(torch.equal, begun, before))
        before = ended


def fit(scheme, callbacks=(), norm=False, **arguments):
    import lightning
    from gradweave.integrations.lightning import Strategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.lr, self.evaluated = net(7, norm), 0.05, []

        def training_step(self, batch, number):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, number):
            self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

        def on_validation_epoch_end(self):
            self.evaluated.append(self.trainer.callback_metrics["loss"])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=self.lr)

    module = Module()
    checkpoint = arguments.pop("ckpt_path", None)
    saves = any(isinstance(each, lightning.pytorch.callbacks.ModelCheckpoint) for each in callbacks)
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=Strategy(**options_of(scheme)) if scheme else "ddp",
                                plugins=integrations.environment(), callbacks=list(callbacks), logger=False,
                                enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=saves,
                                num_sanity_val_steps=0, default_root_dir=os.environ["JOB_FOLDER"],
                                **{"max_epochs": 3} | arguments)
    trainer.fit(module, samples(), samples(), ckpt_path=checkpoint)
    return [p.detach() for p in module.parameters()] + module.evaluated


def swa(scheme, norm=False):
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    return fit(scheme, [StochasticWeightAveraging(0.05, swa_epoch_start=1)], norm)


def swa_of_running_statistics(scheme):
    return swa(scheme, norm=True)


def ema(scheme):
    from lightning.pytorch.callbacks import EMAWeightAveraging

    return fit(scheme, [EMAWeightAveraging(decay=0.9)])


def learning_rate_finder(scheme):
    from lightning.pytorch.callbacks import LearningRateFinder

    return fit(scheme, [LearningRateFinder(num_training_steps=12, min_lr=1e-4, max_lr=0.1)])


def test_lightning_as_its_own_ddp():
    cases = [swa_of_running_statistics, ema, learning_rate_finder]
    assert ranks.run(unlike_ddp, 2, cases=cases, schemes=["ddp", "dear"]) == [[], []]


def averaged(rank, schemes):
    """Where the model is not the mean over ranks of the average of its weights that a callback has put in place."""
    from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging

    wrong = []
    for scheme in schemes:
        for callback in (EMAWeightAveraging(decay=0.9), StochasticWeightAveraging(0.05, swa_epoch_start=1)):
            for norm in (False, True):
                trained = fit(scheme, [callback], norm)
                for own, average in zip(trained, callback._average_model.parameters()):
                    mean = average.detach().clone()
                    distributed.all_reduce(mean)
                    if not torch.equal(own, mean / 2):
                        wrong.append((scheme, type(callback).__name__, norm))
    return wrong


def test_nothing_lands_on_an_average_of_weights():
    assert ranks.run(averaged, 2, schemes=["deft", "delayed_averaging"]) == [[], []]


def linked(rank, scheme):
    """Whether training goes on from a link to a checkpoint as from the checkpoint."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    folder = folder_of("linked")
    kept = ModelCheckpoint(dirpath=folder, every_n_train_steps=5, save_last="link", save_top_k=-1, filename="{step}")
    fit(scheme, [kept], max_steps=6)
    assert (folder / "last.ckpt").is_symlink()
    one, other = (fit(scheme, max_steps=9, ckpt_path=folder / name) for name in ("last.ckpt", "step=5.ckpt"))
    return all(map(torch.equal, one, other))


def test_lightning_goes_on_from_a_link():
    assert ranks.run(linked, 2, scheme="delayed_averaging") == [True, True]
