"""Islands whose loops are frameworks'. Each loop is a function of an Islander: it trains until islands have done so many
steps, and returns the model and what has the learning rates."""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from integrations import environment, forget_accelerator
from models import batch, make_net, make_optimizer

TOTAL = 300


@dataclass
class Islander:
    rank: int
    options: dict  # of gradweave.wrap()
    seed: int
    total: int = TOTAL
    saves: Path | None = None  # a checkpoint, at the end
    loads: Path | None = None
    hurry: str | None = None  # a file; steps are slow until it is there, or else until there are two islands
    steps: int = 0            # that this island has done itself
    seen: dict = field(default_factory=dict)

    def stepped(self, model):
        self.steps += 1
        islands = model.gradweave.islands
        if self.steps == 1:
            self.seen = {"first": islands.steps, "session": type(model.gradweave).__module__}
            Path(os.environ["JOB_FOLDER"], f"joined{self.rank}").touch()
        self.seen |= {"steps": islands.steps, "averages": islands.averages, "names": islands.names}
        if islands.averages == 2:
            Path(os.environ["JOB_FOLDER"], f"averaged{self.rank}").touch()
        hurries = Path(self.hurry).exists() if self.hurry else len(islands.names) > 1
        time.sleep(0.002 if hurries else 0.1)

    def made(self):
        model = make_net(self.seed)
        optimizer = make_optimizer("adamw", model)
        return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    def loader(self):
        samples = [batch(self.rank, 1000 * self.seed + number) for number in range(8)]
        return torch.utils.data.DataLoader(samples, batch_size=None)


def rate(step):
    return 1 / (1 + 0.01 * step)


def accelerate(trial, by_hand=False):
    import gradweave
    import gradweave.integrations.accelerate
    from accelerate import Accelerator

    forget_accelerator()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, step_scheduler_with_optimizer=False)
    if not by_hand:
        accelerator = gradweave.integrations.accelerate.wrap(accelerator, **trial.options)
    model, optimizer, scheduler = accelerator.prepare(*trial.made())
    if by_hand:
        model, optimizer = gradweave.wrap(model, optimizer, **trial.options)
        model.gradweave.islands.carry(scheduler)
    if trial.loads:
        accelerator.load_state(trial.loads)
    while model.gradweave.islands.steps < trial.total:
        for x, y in trial.loader():
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if accelerator.sync_gradients:
                    scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                trial.stepped(model)
                if model.gradweave.islands.steps >= trial.total:
                    break
    if trial.saves:
        accelerator.save_state(trial.saves)
    gradweave.finish(model)
    return model, optimizer


def accelerate_by_hand(trial):
    return accelerate(trial, by_hand=True)


def fabric(trial, by_hand=False):
    import gradweave
    from gradweave.integrations.lightning import FabricStrategy
    from lightning.fabric import Fabric

    strategy = "ddp" if by_hand else FabricStrategy(**trial.options)
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=strategy, plugins=environment())
    fabric.launch()
    model, optimizer, scheduler = trial.made()
    model, optimizer = fabric.setup(model, optimizer)
    if by_hand:
        model, optimizer = gradweave.wrap(model, optimizer, **trial.options)
    islands = model.gradweave.islands
    islands.carry(scheduler)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    if trial.loads:
        fabric.load(trial.loads / "fabric.ckpt", state)
    while islands.steps < trial.total:
        for number, (x, y) in enumerate(trial.loader()):
            if islands.steps >= trial.total:
                break
            with fabric.no_backward_sync(model, enabled=number % 2 == 0):
                fabric.backward(nn.functional.cross_entropy(model(x), y))
            if number % 2:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                trial.stepped(model)
    if trial.saves:
        fabric.save(trial.saves / "fabric.ckpt", state)
    gradweave.finish(model)
    return model, optimizer


def fabric_by_hand(trial):
    return fabric(trial, by_hand=True)


def lightning_trainer(trial):
    import lightning
    from gradweave.integrations.lightning import Strategy

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.optimizer, self.scheduler = trial.made()

        def training_step(self, samples, number):
            x, y = samples
            return nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": self.scheduler, "interval": "step"}}

        def on_train_batch_end(self, *given):
            trial.stepped(self)
            if trial.saves and self.global_step == trial.total:
                self.trainer.save_checkpoint(trial.saves / "lightning.ckpt")

    module = Net()
    trainer = lightning.Trainer(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy=Strategy(**trial.options),
                                plugins=environment(), max_steps=trial.total, gradient_clip_val=1.0, logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, trial.loader(), ckpt_path=trial.loads and str(trial.loads / "lightning.ckpt"))
    return module.net, module.optimizer


def transformers_trainer(trial):
    import gradweave.integrations.transformers
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Told(TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            trial.stepped(model)

    forget_accelerator()
    torch.manual_seed(trial.seed)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=8, bos_token_id=0,
                                       eos_token_id=0))
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 50, (64, 8))]
    arguments = TrainingArguments(output_dir=str(trial.saves or os.environ["JOB_FOLDER"]), use_cpu=True, ddp_backend="gloo",
                                  max_steps=trial.total, save_strategy="steps" if trial.saves else "no",
                                  save_steps=trial.total, per_device_train_batch_size=4, learning_rate=1e-3, report_to=[],
                                  disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer = gradweave.integrations.transformers.wrap(trainer, **trial.options)
    trainer.add_callback(Told())
    trainer.train(resume_from_checkpoint=trial.loads and str(next(trial.loads.glob("checkpoint-*"))))
    return model, trainer.optimizer


def islander(rank, loop, number, given, between=None, **how):
    """What an island ends with."""
    from gradweave.subclasses import sessions

    options = given | {"island": f"island{number}", "between": between or {"period": 4}, "timeout": 60.0, "report": False}
    trial = Islander(rank, options, seed=number, **how)
    model, optimizer = globals()[loop](trial)
    found = {"values": [p.detach().clone() for p in model.parameters()], "own": trial.steps,
             "rate": optimizer.param_groups[0]["lr"], **trial.seen}
    for session in set(sessions.values()):
        with contextlib.suppress(AttributeError):
            found["trouble"] = session.islands.trouble
        session.close()
    return found
