"""Training loops of frameworks as their documentation has them, by DistributedDataParallel or by gradweave.integrations.

A loop is a function of a Trial: it trains from the beginning, or goes on from the checkpoint that it wrote after SAVED steps.
All of them accumulate, clip, follow a schedule of the learning rate, evaluate in the middle, and have running statistics.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, SAVED, ACCUMULATED, EVERY, BATCH = 10, 6, 2, 4, 4


@dataclass
class Trial:
    rank: int
    folder: Path
    options: dict | None  # of gradweave.wrap(); None: the framework's DistributedDataParallel
    resumed: bool = False
    norm: float | None = 0.5  # to clip at
    precision: str = "32-true"  # of Lightning's
    told: list = field(default_factory=list)  # (step, value): of evaluations, norms of gradients

    def evaluated(self, step, value):
        self.told.append((step, float(value)))


def accelerate(trial):
    from accelerate import Accelerator

    forget_accelerator()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    if trial.options is not None:
        import gradweave.integrations.accelerate

        accelerator = gradweave.integrations.accelerate.wrap(accelerator, **trial.options)
    model, optimizer, scheduler = classifier(trial)
    model, optimizer, scheduler, train, test = accelerator.prepare(
        model, optimizer, scheduler, DataLoader(samples(STEPS), BATCH), DataLoader(samples(3), BATCH))
    begin = 0
    if trial.resumed:
        accelerator.load_state(trial.folder)
        begin = SAVED
    for number, (x, y) in enumerate(accelerator.skip_first_batches(train, begin * ACCUMULATED)):
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(x), y))
            if accelerator.sync_gradients and trial.norm:
                trial.evaluated("norm", accelerator.clip_grad_norm_(model.parameters(), trial.norm))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        step = begin + (number + 1) // ACCUMULATED
        if (number + 1) % ACCUMULATED == 0 and step % EVERY == 0:
            model.eval()
            with torch.no_grad():
                losses = [accelerator.gather_for_metrics(nn.functional.cross_entropy(model(x), y, reduction="none"))
                          for x, y in test]
            trial.evaluated(step, torch.cat(losses).sum())
            model.train()
        if step == SAVED and (number + 1) % ACCUMULATED == 0 and not trial.resumed:
            accelerator.save_state(trial.folder)
    return accelerator.unwrap_model(model)


def fabric(trial):
    from lightning.fabric import Fabric

    strategy = "ddp"
    if trial.options is not None:
        import gradweave.integrations.lightning

        strategy = gradweave.integrations.lightning.FabricStrategy(**trial.options)
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=strategy, plugins=environment(),
                    precision=trial.precision)
    fabric.launch()
    model, optimizer, scheduler = classifier(trial)
    model, optimizer = fabric.setup(model, optimizer)
    train, test = fabric.setup_dataloaders(DataLoader(samples(STEPS), BATCH), DataLoader(samples(3), BATCH))
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 0}
    if trial.resumed:
        fabric.load(trial.folder / "fabric.ckpt", state)
    begin = state["step"]
    for number, (x, y) in enumerate(train):
        if number < begin * ACCUMULATED:
            continue
        complete = (number + 1) % ACCUMULATED == 0
        with fabric.no_backward_sync(model, enabled=not complete):
            fabric.backward(nn.functional.cross_entropy(model(x), y) / ACCUMULATED)
        if not complete:
            continue
        if trial.norm:
            trial.evaluated("norm", fabric.clip_gradients(model, optimizer, max_norm=trial.norm))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        state["step"] += 1
        if state["step"] % EVERY == 0:
            model.eval()
            with torch.no_grad():
                losses = [fabric.all_gather(nn.functional.cross_entropy(model(x), y)) for x, y in test]
            trial.evaluated(state["step"], torch.stack(losses).sum())
            model.train()
        if state["step"] == SAVED and not trial.resumed:
            fabric.save(trial.folder / "fabric.ckpt", state)
    return model.module


def lightning_trainer(trial, manual=False):
    import lightning

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = not manual
            self.net, self.optimizer, self.scheduler = classifier(trial)

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, number):
            x, y = batch
            loss = nn.functional.cross_entropy(self(x) if manual or number % 3 else self.net(x), y)
            if manual:
                self.optimizers().zero_grad()
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def validation_step(self, batch, number):
            x, y = batch
            self.log("loss", nn.functional.cross_entropy(self.net(x), y), sync_dist=True)

        def on_validation_epoch_end(self):
            trial.evaluated(self.global_step, self.trainer.callback_metrics.get("loss", 0.0))

        def configure_optimizers(self):
            return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": self.scheduler, "interval": "step"}}

    strategy = "ddp"
    if trial.options is not None:
        import gradweave.integrations.lightning

        strategy = gradweave.integrations.lightning.Strategy(**trial.options)
    saved = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=trial.folder, filename="lightning", save_top_k=-1,
                                                        every_n_train_steps=SAVED, enable_version_counter=False)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=strategy, plugins=environment(), max_steps=STEPS,
        precision=trial.precision,
        accumulate_grad_batches=1 if manual else ACCUMULATED, gradient_clip_val=None if manual else trial.norm,
        limit_train_batches=2 * (1 if manual else ACCUMULATED), check_val_every_n_epoch=EVERY // 2,
        num_sanity_val_steps=0, logger=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[] if trial.resumed else [saved], enable_checkpointing=not trial.resumed, default_root_dir=trial.folder)
    module = Classifier()
    trainer.fit(module, DataLoader(samples(STEPS), BATCH), DataLoader(samples(3), BATCH),
                ckpt_path=str(trial.folder / "lightning.ckpt") if trial.resumed else None)
    return module.net


def lightning_manual(trial):
    return lightning_trainer(trial, manual=True)


def transformers_resnet(trial):
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(7 + trial.rank)
    model = ResNetForImageClassification(ResNetConfig(num_channels=1, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                                                      layer_type="basic", num_labels=10))
    return by_trainer(trial, model, [{"pixel_values": x, "labels": y} for x, y in samples(STEPS)])


def transformers_gpt2(trial):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(7 + trial.rank)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=101, n_positions=16, bos_token_id=0,
                                       eos_token_id=0))
    tokens = torch.randint(0, 101, (2 * BATCH * STEPS * ACCUMULATED, 12), generator=torch.Generator().manual_seed(1))
    return by_trainer(trial, model, [{"input_ids": row, "labels": row} for row in tokens])


def by_trainer(trial, model, rows):
    from transformers import Trainer, TrainingArguments

    forget_accelerator()
    arguments = TrainingArguments(
        output_dir=str(trial.folder), use_cpu=True, ddp_backend="gloo", max_steps=STEPS, save_steps=SAVED, eval_steps=EVERY,
        eval_strategy="steps", logging_steps=1, per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATED,
        max_grad_norm=trial.norm or 0.0, learning_rate=1e-3, warmup_steps=2, report_to=[], disable_tqdm=True, seed=3)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:3 * BATCH])
    if trial.options is not None:
        import gradweave.integrations.transformers

        trainer = gradweave.integrations.transformers.wrap(trainer, **trial.options)
    trainer.train(resume_from_checkpoint=str(trial.folder / f"checkpoint-{SAVED}") if trial.resumed else None)
    for entry in trainer.state.log_history:
        for name in ("grad_norm", "eval_loss"):
            if name in entry and (not trial.resumed or entry["step"] > SAVED):
                trial.evaluated(entry["step"], entry[name])
    return model


def classifier(trial):
    torch.manual_seed(7 + trial.rank)  # rank 0's values are those that count
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten(),
                          nn.Linear(8 * 36, 32), nn.ReLU(), nn.Linear(32, 10))
    groups = [{"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
              {"params": [p for p in model.parameters() if p.dim() > 1]}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)


def samples(steps):
    """For `steps` steps of two ranks."""
    generator = torch.Generator().manual_seed(1)
    count = 2 * BATCH * steps * ACCUMULATED
    return TensorDataset(torch.randn(count, 1, 16, 16, generator=generator),
                         torch.randint(0, 10, (count,), generator=generator))


def environment():
    from lightning.fabric.plugins.environments import TorchElasticEnvironment

    os.environ["GROUP_RANK"] = "0"  # of what torchrun sets, ranks.py leaves this out
    return [TorchElasticEnvironment()]


def forget_accelerator():
    """It keeps one state for each process; here one trains after the other."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
