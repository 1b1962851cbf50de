"""Loops of training frameworks, run as one process for each rank, as their documentation has them.

A trial is a function of (rank, steps, wrap): it trains for `steps` iterations. `wrap(model, optimizer)` is what the user puts
around both, where the user would.
"""

import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

BATCH = 4


def lightning_trainer(rank, steps, wrap, accumulate_grad_batches=1, **options):
    """The default loop: step(closure), a scheduler, validation in between, checkpoints of model and optimizer."""
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = _classifier()

        def training_step(self, batch, number):
            x, y = batch
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, number):
            x, y = batch
            self.log("accuracy", (self.net(x).argmax(1) == y).float().mean())

        def configure_optimizers(self):
            self.net, optimizer = wrap(self.net, torch.optim.AdamW(self.parameters(), lr=1e-3))
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    folder = Path(os.environ["JOB_FOLDER"]) / str(rank)
    saved = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=folder, every_n_train_steps=4)
    trainer = lightning.Trainer(accelerator="cpu", strategy="auto", devices=1, max_steps=steps, val_check_interval=3,
                                default_root_dir=folder, logger=False, callbacks=[saved], enable_progress_bar=False,
                                enable_model_summary=False, accumulate_grad_batches=accumulate_grad_batches, **options)
    trainer.fit(Classifier(), _batches(rank, accumulate_grad_batches * steps), DataLoader(_samples(2), BATCH))


def lightning_clipping(rank, steps, wrap):
    lightning_trainer(rank, steps, wrap, gradient_clip_val=0.1)


def lightning_accumulating(rank, steps, wrap):
    """Lightning leaves out step() for a batch, and knows of no no_sync() with one device."""
    lightning_trainer(rank, steps, wrap, accumulate_grad_batches=2)


def lightning_fabric(rank, steps, wrap):
    fabric = _fabric()
    model = _classifier()
    _by_fabric(fabric, rank, steps, *fabric.setup(*wrap(model, _momentum(model))))


def lightning_fabric_first(rank, steps, wrap):
    """What Fabric has set up is wrapped."""
    fabric = _fabric()
    model = _classifier()
    _by_fabric(fabric, rank, steps, *wrap(*fabric.setup(model, _momentum(model))))


def _by_fabric(fabric, rank, steps, model, optimizer):
    model.train()
    for x, y in fabric.setup_dataloaders(_batches(rank, steps), use_distributed_sampler=False):
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()


def accelerate_alone(rank, steps, wrap):
    """Accelerate takes each rank for a single process: on processors, started by torchrun, it does so by itself."""
    accelerator = _accelerator(cpu=False)
    model = _classifier()
    _by_accelerate(accelerator, *accelerator.prepare(*wrap(model, _momentum(model)), _batches(rank, steps)))


def accelerate_first(rank, steps, wrap):
    """What Accelerate has prepared is wrapped."""
    accelerator = _accelerator(cpu=False)
    model = _classifier()
    model, optimizer, loader = accelerator.prepare(model, _momentum(model), _batches(rank, steps))
    _by_accelerate(accelerator, *wrap(model, optimizer), loader)


def accelerate_distributed(rank, steps, wrap):
    """Accelerate knows the ranks, shares out the samples and accumulates; the model is left out of prepare()."""
    accelerator = _accelerator(cpu=True, gradient_accumulation_steps=2)
    model = _classifier()
    model, optimizer = wrap(model, _momentum(model))
    samples = DataLoader(_samples(2 * steps * accelerator.num_processes), BATCH, shuffle=True)
    _by_accelerate(accelerator, model, *accelerator.prepare(optimizer, samples))


def accelerate_around(rank, steps, wrap):
    """prepare() puts DistributedDataParallel around the model."""
    accelerator = _accelerator(cpu=True)
    model = _classifier()
    _by_accelerate(accelerator, *accelerator.prepare(*wrap(model, _momentum(model)), _batches(rank, steps)))


def _by_accelerate(accelerator, model, optimizer, loader):
    for x, y in loader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()


def _accelerator(**arguments):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # one for each process, and it trains under many schemes
    return Accelerator(**arguments)


def _fabric():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    return fabric


def _momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def _classifier():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten(),
                         nn.Linear(8 * 36, 32), nn.ReLU(), nn.Linear(32, 10))


def _samples(batches):
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(BATCH * batches, 1, 16, 16, generator=generator),
                         torch.randint(0, 10, (BATCH * batches,), generator=generator))


def _batches(rank, count):
    samples = _samples(2 * count)
    return DataLoader(samples, BATCH, sampler=DistributedSampler(samples, 2, rank, seed=1))
