"""Hugging Face Accelerate: `accelerator = wrap(Accelerator(...))`, and the script stays as it is."""

import os
from typing import Any, TypeVar

import torch

from gradweave import InvalidInput
from gradweave.integrations.jobs import Jobs, clip_grad_norm_, no_sync
from gradweave.subclasses import become, named_as, sessions

_Given = TypeVar("_Given")


def wrap(accelerator: _Given, **options: Any) -> _Given:
    """`accelerator`, whose prepare() wraps models and their optimizers by gradweave.wrap(**options) in place of
    DistributedDataParallel; clip_grad_norm_(), save_state() and load_state() know of it. Errors: InvalidInput, TypeError."""
    return adopt(accelerator, options, evaluates_alone=False)


def adopt(accelerator, options, evaluates_alone):
    """As wrap(). `evaluates_alone`: as of Jobs."""
    _check(accelerator)
    handler = accelerator.ddp_handler
    if handler is not None:
        options = {"broadcast_buffers": handler.broadcast_buffers} | options
    jobs = accelerator._gradweave = Jobs("accelerator.prepare()", options, evaluates_alone)
    become(accelerator, _accelerator_class(type(accelerator)))
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: jobs.save(folder))
    accelerator.register_load_state_pre_hook(lambda models, folder: setattr(accelerator, "_gradweave_folder", folder))
    return accelerator


def _check(accelerator):
    kind = accelerator.distributed_type.value
    if hasattr(accelerator, "_gradweave"):
        raise InvalidInput("this Accelerator is wrapped already: call wrap() on it once")
    if accelerator._models or accelerator._optimizers:
        raise InvalidInput("this Accelerator has prepared models or optimizers already: wrap it before prepare()")
    if kind not in ("NO", "MULTI_CPU") and not accelerator.multi_device or accelerator.parallelism_config is not None:
        raise InvalidInput(f"Gradweave takes the place of DistributedDataParallel, and this Accelerator trains by {kind} or a "
                           "parallelism_config: leave that out, or leave out Gradweave")
    if accelerator.num_processes == 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidInput("this Accelerator sees only its own process: on processors, use Accelerator(cpu=True)")
    if accelerator.ddp_handler is not None and accelerator.ddp_handler.comm_hook.value != "no":
        raise InvalidInput("DistributedDataParallelKwargs: comm_hook is for DistributedDataParallel alone; leave it out and "
                           "give options={'compressor': ...}")


def _accelerator_class(base):
    class Accelerator(base):
        def prepare(self, *objects, device_placement=None):
            placements = device_placement or [None] * len(objects)
            objects = [self.prepare_model(each, place) if isinstance(each, torch.nn.Module) else each
                       for each, place in zip(objects, placements, strict=True)]
            # Before optimizers are prepared, which may keep their step() of then.
            optimizers = [each for each in objects if isinstance(each, torch.optim.Optimizer)]
            self._gradweave.wrap(optimizers + [each for each in self._optimizers if each not in optimizers], self.scaler)
            return super().prepare(*objects, device_placement=device_placement)

        def prepare_model(self, model, device_placement=None, evaluation_mode=False):
            model = super().prepare_model(model, device_placement, evaluation_mode=True)
            if not evaluation_mode:
                self._gradweave.expect(model)
            return model

        def prepare_optimizer(self, optimizer, device_placement=None):
            self._gradweave.wrap([optimizer], self.scaler)
            return super().prepare_optimizer(optimizer, device_placement)

        def prepare_scheduler(self, scheduler):
            prepared = super().prepare_scheduler(scheduler)
            self._gradweave.carry(self._schedulers)
            return prepared

        def no_sync(self, model):
            return no_sync(model) if model in sessions else super().no_sync(model)  # its own has none for one process

        def trigger_sync_in_backward(self, model):
            if model not in sessions:
                return super().trigger_sync_in_backward(model)
            raise InvalidInput("accelerator.trigger_sync_in_backward(): it is DistributedDataParallel's forward that decides "
                               "whether gradients are communicated, but Gradweave's backward: put each backward pass but the "
                               "last into accelerator.no_sync(model), and leave this out")

        def clip_grad_norm_(self, parameters, max_norm, norm_type=2):
            self.unscale_gradients()
            return clip_grad_norm_(parameters, max_norm, norm_type)

        def free_memory(self, *objects):
            self._gradweave.close()
            return super().free_memory(*objects)

        def load_state(self, *arguments, **named):
            self._gradweave.may_load()
            super().load_state(*arguments, **named)
            self._gradweave.load(self._gradweave_folder)

    return named_as(Accelerator, base)
