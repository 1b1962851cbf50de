"""The Trainer of Hugging Face transformers: `trainer = wrap(Trainer(...))`, before train()."""

from typing import Any, TypeVar

import transformers

from gradweave import InvalidInput
from gradweave.integrations import accelerate
from gradweave.subclasses import become, named_as

_Given = TypeVar("_Given")


def wrap(trainer: _Given, **options: Any) -> _Given:
    """`trainer`, of Trainer or any subclass, which trains by gradweave.wrap(**options) in place of DistributedDataParallel.
    Errors: InvalidInput, TypeError."""
    if hasattr(trainer, "_gradweave_options"):
        raise InvalidInput("this Trainer is wrapped already: call wrap() on it once")
    if options.get("islands") is not None and trainer.args.load_best_model_at_end:
        raise InvalidInput("load_best_model_at_end loads the model that this island alone found best, but all islands "
                           "have to end with one model: leave it out, and load the checkpoint that you choose after train()")
    accelerate.adopt(trainer.accelerator, options, evaluates_alone=True)
    trainer._gradweave_options = options
    become(trainer, _trainer_class(type(trainer)))
    if options.get("islands") is not None:
        trainer.add_callback(_WithIslands(trainer))
    return trainer


class _WithIslands(transformers.TrainerCallback):
    """Of a Trainer whose model other islands train, too."""

    def __init__(self, trainer):
        self._trainer = trainer

    def on_train_begin(self, args, state, control, lr_scheduler=None, **named):
        jobs = self._trainer.accelerator._gradweave
        jobs.count_from(state.global_step)
        jobs.carry([lr_scheduler])

    def on_step_end(self, args, state, control, **named):
        if self._trainer.accelerator._gradweave.ends(state.global_step, state.max_steps):
            control.should_training_stop = True


def _trainer_class(base):
    class Trainer(base):
        def create_accelerator_and_postprocess(self):  # again for each trial of a search
            if self._gradweave_options.get("islands") is not None:
                raise InvalidInput("a search trains a model for each trial, but islands train one: search without islands=")
            super().create_accelerator_and_postprocess()
            accelerate.adopt(self.accelerator, self._gradweave_options, evaluates_alone=True)

        def train(self, *arguments, **named):
            result = super().train(*arguments, **named)
            self.accelerator._gradweave.finish()
            return result

        def _load_best_model(self):
            self.accelerator._gradweave.finish()  # or what is on its way would come on top
            super()._load_best_model()

        def _save_optimizer_and_scheduler(self, output_dir):
            super()._save_optimizer_and_scheduler(output_dir)
            self.accelerator._gradweave.save(output_dir)

        def _load_optimizer_and_scheduler(self, checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)
            if checkpoint is not None:
                self.accelerator._gradweave.load(checkpoint)

    return named_as(Trainer, base)
