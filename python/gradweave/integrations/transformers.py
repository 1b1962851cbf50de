"""The Trainer of Hugging Face transformers: `trainer = wrap(Trainer(...))`, before train()."""

from typing import Any, TypeVar

from gradweave import InvalidInput
from gradweave.integrations import accelerate
from gradweave.subclasses import become, named_as

_Given = TypeVar("_Given")


def wrap(trainer: _Given, **options: Any) -> _Given:
    """`trainer`, of Trainer or any subclass, which trains by gradweave.wrap(**options) in place of DistributedDataParallel.
    Errors: InvalidInput, TypeError."""
    if hasattr(trainer, "_gradweave_options"):
        raise InvalidInput("this Trainer is wrapped already")
    accelerate.adopt(trainer.accelerator, options, evaluates_alone=True)
    trainer._gradweave_options = options
    become(trainer, _trainer_class(type(trainer)))
    return trainer


def _trainer_class(base):
    class Trainer(base):
        def create_accelerator_and_postprocess(self):  # again for each trial of a search
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
