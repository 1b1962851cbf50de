"""Lightning: `Trainer(strategy=Strategy(...))` and `Fabric(strategy=FabricStrategy(...))`."""

import contextlib
import os
from typing import Any

import torch
from lightning.fabric import strategies as fabric_strategies
from lightning.fabric.strategies.strategy import _BackwardSyncControl
from lightning.pytorch import Callback, strategies
from lightning.pytorch.callbacks import StochasticWeightAveraging

from gradweave.integrations.jobs import Jobs, clip_grad_norm_, no_sync
from gradweave.subclasses import sessions


class _RankFiles:
    """A file for each rank beside a checkpoint, through the strategy's own `checkpoint_io`."""

    def _save_rank(self, path):
        if self._jobs.models:
            self.checkpoint_io.save_checkpoint({"gradweave": self._jobs.state()}, self._rank_file(path, self.global_rank))

    def _load_ranks(self, path):
        if os.path.islink(path):  # as of ModelCheckpoint(save_last="link")
            path = os.path.realpath(path)
        self._jobs.load_state(lambda file: self.checkpoint_io.load_checkpoint(file, weights_only=True)["gradweave"],
                              lambda rank: self._rank_file(path, rank))

    def _rank_file(self, path, rank):
        # In a folder of its own: Lightning looks for checkpoints by parts of their names.
        folder, name = os.path.split(path)
        return os.path.join(folder, "gradweave", f"{name}.rank{rank}")


class _Finishing(Callback):
    """Ends the training before other callbacks make averages of weights the model's: what is on its way would come on top."""

    def __init__(self, jobs):
        self._jobs = jobs

    def on_train_epoch_start(self, trainer, module):
        # Before an epoch that only measures running statistics of the average.
        if any(isinstance(each, StochasticWeightAveraging) and trainer.current_epoch == each.swa_end + 1
               for each in trainer.callbacks):
            self.on_train_end(trainer, module)

    def on_train_end(self, trainer, module):
        averages = [getattr(each, "_average_model", None) for each in trainer.callbacks]
        self._jobs.average([each for each in averages if each is not None])
        self._jobs.finish()


class Strategy(_RankFiles, strategies.DDPStrategy):
    """Trains by gradweave.wrap(**options) in place of DistributedDataParallel."""

    def __init__(self, *, process_group_backend: str | None = None, start_method: Any = "popen", **options: Any) -> None:
        super().__init__(process_group_backend=process_group_backend, start_method=start_method)
        self._jobs = Jobs("the strategy of the Trainer", options)
        self._finishing = _Finishing(self._jobs)
        self._loaded = None  # path of the checkpoint that training goes on from
        self._total = None   # steps of an automatic loop

    def configure_ddp(self):
        pass

    def setup_optimizers(self, trainer):
        super().setup_optimizers(trainer)
        if self._finishing not in trainer.callbacks:
            trainer.callbacks.insert(0, self._finishing)
        if self.optimizers:
            self._jobs.expect(self.lightning_module)
            self._jobs.carry(config.scheduler for config in self.lr_scheduler_configs)
            # In manual optimization Lightning's DistributedDataParallel leaves each rank its own buffers.
            self._jobs.wrap(self.optimizers, getattr(self.precision_plugin, "scaler", None),
                            follow=self.lightning_module.automatic_optimization)

    def setup_precision_plugin(self):
        super().setup_precision_plugin()
        plugin = self.precision_plugin
        plugin.clip_grad_by_norm = lambda optimizer, clip_val: clip_grad_norm_(plugin.main_params(optimizer), clip_val)

    def training_step(self, *arguments, **named):
        module = self.lightning_module
        if not module.automatic_optimization:  # calls the module itself, self(...), as often as it likes
            return super().training_step(*arguments, **named)
        with self.precision_plugin.train_step_context():
            return self._forward_redirection(module, module, "training_step", *arguments, **named)

    def on_train_start(self):
        super().on_train_start()
        module = self.lightning_module
        self._jobs.count_from(module.trainer.global_step)
        if module.automatic_optimization:
            self._total = module.trainer.estimated_stepping_batches

    def optimizer_step(self, optimizer, closure, model=None, **named):
        result = super().optimizer_step(optimizer, closure, model, **named)
        trainer = self.lightning_module.trainer
        if self._total is not None and self._jobs.ends(trainer.global_step + 1, self._total):
            trainer.should_stop = True
        return result

    @contextlib.contextmanager
    def block_backward_sync(self):
        with no_sync(self.lightning_module):
            yield

    def save_checkpoint(self, checkpoint, filepath, storage_options=None):
        super().save_checkpoint(checkpoint, filepath, storage_options)
        if "optimizer_states" in checkpoint:
            self._save_rank(filepath)

    def remove_checkpoint(self, filepath):
        super().remove_checkpoint(filepath)
        self.checkpoint_io.remove_checkpoint(self._rank_file(filepath, self.global_rank))

    def load_checkpoint(self, checkpoint_path, weights_only=None):
        self._loaded = checkpoint_path
        return super().load_checkpoint(checkpoint_path, weights_only)

    def load_optimizer_state_dict(self, checkpoint):
        super().load_optimizer_state_dict(checkpoint)
        self._load_ranks(self._loaded)

    def on_train_end(self):
        self._jobs.finish()  # of what callbacks have done
        super().on_train_end()

    def on_exception(self, exception):
        self._jobs.close(exception)
        super().on_exception(exception)

    def teardown(self):
        self._jobs.close()
        super().teardown()


class FabricStrategy(_RankFiles, fabric_strategies.DDPStrategy):
    """Trains by gradweave.wrap(**options) in place of DistributedDataParallel."""

    def __init__(self, *, process_group_backend: str | None = None, start_method: Any = "popen", **options: Any) -> None:
        super().__init__(process_group_backend=process_group_backend, start_method=start_method)
        self._jobs = Jobs("fabric.setup()", options)
        self._backward_sync_control = _NoSync()

    def setup_module(self, module):
        self._jobs.expect(module)
        return module

    def setup_optimizer(self, optimizer):
        self._jobs.wrap([optimizer], self._scaler)
        return optimizer

    def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
        self._jobs.expect(module)
        self._jobs.wrap(optimizers, self._scaler)
        if scheduler is not None:
            self._jobs.carry([scheduler])
        return module, optimizers, scheduler

    def clip_gradients_norm(self, module, optimizer, max_norm, norm_type=2.0, error_if_nonfinite=True):
        self.precision.unscale_gradients(optimizer)
        return clip_grad_norm_(self.precision.main_params(optimizer), max_norm, norm_type, error_if_nonfinite)

    def save_checkpoint(self, path, state, storage_options=None, filter=None):
        super().save_checkpoint(path, state, storage_options, filter)
        if self._trains(state):
            self._save_rank(path)

    def load_checkpoint(self, path, state=None, strict=True, weights_only=None):
        trains = self._trains(state)
        if trains:
            self._jobs.may_load()
        rest = super().load_checkpoint(path, state, strict, weights_only)
        if trains:
            self._load_ranks(path)
        return rest

    @property
    def _scaler(self):
        return getattr(self.precision, "scaler", None)

    def _trains(self, state):
        """Whether a checkpoint is one of the training, and not of a model alone."""
        held = state.values() if isinstance(state, dict) else ()
        return any(isinstance(each, torch.optim.Optimizer) and self._jobs.steps_by(each) for each in held)


class _NoSync(_BackwardSyncControl):
    def no_backward_sync(self, module, enabled):
        return no_sync(module) if enabled else contextlib.nullcontext()
