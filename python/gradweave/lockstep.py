"""Islands that average gradients: each step is one that all of them make together (src/islands/gradient_average.h). Here is
what torch has of it: gradients in buckets, hooks that tell when they are there, the collectives of the island's own ranks."""

import contextlib
import functools
import gc
import sys
import time

import torch
from torch import distributed

from gradweave import _native, islands, profiling, sharding
from gradweave.scope import check_frozen
from gradweave.subclasses import fills_state, weakly

BUCKET_BYTES = 4 << 20  # of float32: large enough for a link's messages, and what is left when the backward ends is small
STEPS_TOLD = 1024  # steps are told modulo it: float32 has the sum of 16,000 ranks
LEAST_POLL_S, POLLS_IN_A_WAIT = 0.001, 20  # so that looking takes little of a long wait, and adds little to a short one


class Bucket:
    """Parameters whose gradients go on their way together, with whether each has one, the count of steps before, and 1,
    whose mean is 0 where no island has supplied anything."""

    def __init__(self, parameters, holders, group, exchanging, sums):
        self.parameters = parameters
        self._locals = [sharding.local_of(parameter) for parameter in parameters]
        self._ranks = len(holders) if sums else 1
        self._section = islands.Section([*self._locals, torch.zeros(len(parameters) + 2)], holders, group, exchanging)
        self.share = self._section.share

    def read(self, to, steps):
        """Writes this rank's share of the gradients, in the order of the current stream: of their means, where the island's
        ranks have not averaged them. Collective there."""
        gradients = [sharding.gradient_of(parameter).resolve_conj() if parameter.grad is not None else torch.zeros_like(local)
                     for parameter, local in zip(self.parameters, self._locals)]
        there = torch.tensor([*(float(parameter.grad is not None) for parameter in self.parameters), float(steps), 1.0])
        if self._ranks == 1:
            self._section.read(to, [*gradients, there], non_blocking=to.is_pinned())
        else:
            self._section.summed(to, [*gradients, there])
            to /= self._ranks

    def write(self, share):
        """The gradients become the means of all islands; None where no island has one. Returns the mean of their steps. Where
        no island has supplied anything, gradients become zeros, and it returns None. Collective among the holders."""
        *means, there = self._section.gathered(share)
        *are_there, steps, supplied = there.tolist()
        if not supplied:
            for parameter, local in zip(self.parameters, self._locals):  # alike on islands whose backward left out others
                parameter.grad = sharding.placed_as(torch.zeros_like(local), parameter)
            return None
        for parameter, local, mean, is_there in zip(self.parameters, self._locals, means, are_there):
            if local.is_complex():
                mean = torch.complex(*mean.unbind(-1))
            if not is_there:
                parameter.grad = None
            elif parameter.grad is None or sharding.is_partial(parameter.grad):  # which was not read
                parameter.grad = sharding.placed_as(mean.to(local.device, local.dtype, copy=True), parameter)
            else:
                sharding.local_of(parameter.grad).copy_(mean)
        return steps


def buckets_of(held, groups, exchanging, sums):
    """Of parameters {parameter: its holders}, the last ones first, as a backward comes to them. The same on all ranks."""
    buckets, filling = [], {}

    def close(holders):
        buckets.append(Bucket(filling.pop(holders), holders, groups[holders], exchanging, sums))

    for parameter, holders in reversed(held.items()):
        bucket = filling.setdefault(holders, [])
        bucket.append(parameter)
        if 4 * sum(each.numel() for each in bucket) >= BUCKET_BYTES:
            close(holders)
    for holders in list(filling):
        close(holders)
    return buckets


class Lockstep(islands.Islands):
    """What `model.gradweave.islands` is where islands average gradients. A backward returns once they are the means of all."""

    in_lockstep = True

    def __init__(self, model, optimizers, settings):
        super().__init__(model, optimizers, settings)
        sums = not islands.users_own(model, settings.exclude)
        _check(model, optimizers, sums)
        self._model = model
        self._replicates = sums
        if sums:
            self._from_rank_0([*model.parameters(), *model.buffers()])
        held = self._values.held
        self._buckets = buckets_of(held, self._values.groups, self._exchanging, sums)
        self._place = {parameter: place for place, bucket in enumerate(self._buckets) for parameter in bucket.parameters}
        device = next((p.device for p in held), torch.device("cpu"))
        # Gradients come to the host beside the backward.
        self._stream = None if device.type == "cpu" or sums else torch.Stream(device=device)
        self._vector = torch.zeros(sum(self._gradient_counts()), pin_memory=self._stream is not None)
        self._shares = self._vector.split(self._gradient_counts())
        # Whoever averages an island's gradients at the end of the backward, as DistributedDataParallel does, is waited for; so
        # is an accelerator where the host has to sum.
        self._ddp = [each for each in model.modules() if isinstance(each, torch.nn.parallel.DistributedDataParallel)]
        self._overlaps = not self._ddp and (device.type == "cpu" or not sums)
        self._syncs, self._finishes, self._stale = True, False, False
        self._task = None  # the backward after which gradients are averaged
        self._missing = []  # of each bucket, gradients that have not come
        self._read = []  # of the average under way, by bucket: when its gradients are on the host; None: at once
        self._supplied, self._weight = 0, None  # buckets of it
        self._last_one = False  # that average is the training's last, of parameters
        self._landed_into = None  # means since the last step: a gradient that they are in
        self._stepped = set()  # optimizers, since the last step, but for the one that ends it
        self._landed_now = False  # means have landed, and no step has ended since
        self._handles = [model.register_forward_hook(self._after_forward)]
        self._handles += [p.register_post_accumulate_grad_hook(weakly(self._gradient_came)) for p in held]
        self._handles += [each.register_step_pre_hook(self._before_step) for each in optimizers]

    @contextlib.contextmanager
    def no_sync(self):
        syncs, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = syncs

    def step_ended(self):
        check_frozen(self._frozen)
        self.steps += 1
        self._landed_now, self._landed_into = False, None
        self._stepped.clear()
        # What is given and taken is the state as the next backward ends: by then the loop has updated schedules and the like.
        if self._held and self._held[0].what == "b":
            self._carry_out(self._held)

    def wait(self):
        """Errors: InvalidInput."""
        raise _native.InvalidInput("gradweave: islands that average gradients make each step together, so an island "
                                   "can't wait without steps: let the loops of all islands make the same number of steps")

    def finish(self):
        if not self.joined:
            super().finish()
            return
        self._check_whole()
        self._landed_now, self._finishes = False, True
        try:
            super().finish()
        finally:
            self._finishes = False

    def unhook(self):
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # ---- the backward

    def _after_forward(self, model, arguments, output):
        if not torch.is_grad_enabled() or not self._averages_now():
            return
        for tensor in profiling.tensors_in(output):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._backward_starts)

    def _averages_now(self):
        accelerate = sys.modules.get("accelerate")  # whose accumulate() tells a model nothing where there is one process
        return (self._syncs and (accelerate is None or accelerate.state.GradientState().sync_gradients)
                and all(each.require_backward_grad_sync for each in self._ddp)
                and all(group.reduce_grads for group in sharding.fsdp_groups(self._model)))

    def _backward_starts(self, gradient):
        if not self._handles:  # of a forward before close(), or before a fork
            return
        # The callback belongs to this backward: a nested one, as in checkpointing, would end too early.
        task = torch._C._current_graph_task_id()
        if task == self._task:
            return
        self._check_whole()
        if self._landed_into is not None and not sharding.local_of(self._landed_into).any():
            self._landed_into = None  # a step was left out, and its gradients zeroed in place
        if self._stepped:
            raise _native.InvalidInput("gradweave: backward() was called again before all optimizers have stepped. Islands "
                                       "that average gradients need one backward for each step: step all optimizers after "
                                       "it, in the order in which wrap() was given them, or average parameters")
        self._task, self._missing = task, [len(bucket.parameters) for bucket in self._buckets]
        # What averages inside may do so in a callback of its own, which is queued by then.
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(functools.partial(queue, self._backward_ended))

    def _check_whole(self):
        if self._task is not None and self._under_way and self._read:
            raise _native.RuntimeFailure("gradweave: a backward failed while its gradients were sent to other islands: call "
                                         "model.gradweave.close() and wrap() again; the others make this step without it")

    def _gradient_came(self, parameter):
        if self._task is None:
            return
        if self._landed_into is not None and parameter.grad is self._landed_into:
            raise _native.InvalidInput("gradweave: a second backward before step() adds to gradients that islands have "
                                       "averaged: run all but the last one under model.gradweave.no_sync()")
        place = self._place[parameter]
        if self._under_way and len(self._read) > place:
            raise _native.InvalidInput("gradweave: a backward adds to a gradient that is on its way to other islands: "
                                       "checkpoint with use_reentrant=False")
        self._missing[place] -= 1
        while self._overlaps and self._may_read() and not self._missing[len(self._read)]:
            self._read_next(self.samples_per_step)
        while self._supplied < len(self._read) and (self._read[self._supplied] is None or self._read[self._supplied].query()):
            self._supply()

    def _backward_ended(self):
        self._task = None
        self._average()
        self._landed_into = next((parameter.grad for parameter in self._place if parameter.grad is not None), None)

    def _average(self):
        """Returns once gradients are the means of all islands."""
        self._stale = self._landed_now = False
        if not self._landed:
            self._check_scales()
        if not self.joined:
            self.join()
        begin = time.monotonic()
        while not self._landed_now:
            self._tell_trouble()
            self._proceed(self._wish())
            self._supply_rest(0.0 if self._stale else self.samples_per_step)
            if not self._landed_now:
                time.sleep(min(max((time.monotonic() - begin) / POLLS_IN_A_WAIT, LEAST_POLL_S), islands.POLL_S))

    def _check_scales(self):
        """Gradients of another scale are no part of a mean. Errors: InvalidInput."""
        known = {id(each) for each in [self._settings.scaler, *self._carried]}
        if any(issubclass(type(each), torch.amp.GradScaler) and each._scale is not None and id(each) not in known
               for each in gc.get_objects()):
            raise _native.InvalidInput("gradweave: a GradScaler scales gradients that islands average, and an island that "
                                       "comes would have another scale: give the scaler to wrap(scaler=)")

    def _wish(self):
        return islands.NOTHING if self._under_way or not self._trains else islands.AVERAGE

    def _before_step(self, optimizer, arguments, named):
        if fills_state():
            return
        if islands.closure_of(arguments, named) is None and not self._landed_now:
            raise _native.InvalidInput("gradweave: step() was called without gradients averaged over all islands, and would "
                                       "change this one alone: call the model itself, model(...), and run the last backward "
                                       "before a step outside of no_sync()")
        if optimizer is not self._optimizers[-1]:
            self._stepped.add(optimizer)

    # ---- an average

    @property
    def _count(self):
        """Of steps, as islands compare it."""
        return self.steps % STEPS_TOLD

    def _may_read(self):
        return self._under_way and not self._last_one and len(self._read) < len(self._buckets)

    def _read_next(self, weight):
        place, when = len(self._read), None
        if place == 0:
            self._weight = weight
            for call in self._on_begin:
                call(self._number, self._averaged_with)
        if not self._weight:
            self._shares[place].zero_()
        elif self._stream is None:
            self._buckets[place].read(self._shares[place], self._count)
        else:
            self._stream.wait_stream(torch.accelerator.current_stream(self._stream.device))
            with self._stream:
                self._buckets[place].read(self._shares[place], self._count)
                when = self._stream.record_event()
        self._read.append(when)

    def _supply(self):
        place, self._supplied = self._supplied, self._supplied + 1
        if self._read[place] is not None:
            self._read[place].synchronize()
        self._member.supply(place, self._weight, self._shares[place])

    def _supply_rest(self, weight):
        while self._may_read():
            self._read_next(weight)
        while self._under_way and self._supplied < len(self._read):
            self._supply()

    def _proceed(self, wants, joining=False):
        super()._proceed(wants, joining)
        if self._finishes:
            self._supply_rest(0.0)

    def _holds(self, joining):
        # What is given is the state between two steps.
        return self._landed_now or super()._holds(joining)

    def _gradient_counts(self):
        return [bucket.share for bucket in self._buckets]

    def _begin(self, command):
        self._last_one = command.last
        if command.last:
            if self._replicates:
                self._from_rank_0(self._values.buffers.now())
            self._member.set_anchor(self._parameters_alone())
            self._samples = [self.samples_per_step]
            super()._begin(command)
            return
        self._member.begin_gradients(command)
        self._number, self._averaged_with = command.number, command.members
        self._under_way, self._read, self._supplied = True, [], 0

    def _land(self, command):
        if command.last:
            super()._land(command)
            return
        means = torch.empty_like(self._vector)
        self._member.land_gradients(means)
        self._under_way = False
        self._landed += 1
        self.last_average = command.number
        if not self._finishes:
            with torch.no_grad():
                steps = {bucket.write(share) for bucket, share in zip(self._buckets, means.split(self._gradient_counts()))}
            if not steps <= {float(self._count), None}:
                raise _native.RuntimeFailure(f"gradweave: this island has made {self.steps} steps, and others more or fewer: "
                                             "one of them has left out a step after a backward. Parameters are no longer "
                                             "equal: end all islands and go on from a checkpoint. Decide by the averaged "
                                             "gradients whether to leave out a step, so that all islands do")
            self._landed_now = True
        for call in self._on_land:
            call(command.number, self._averaged_with)

    def _give(self, command):
        self._member.give(command, self._parameters_alone(), self._state())

    def _take(self, command):
        self._stale = True  # the gradient is of other parameters
        super()._take(command)

    def _parameters_alone(self):
        return self._values.read(buffers=False)  # which are this island's until the last average

    def _from_rank_0(self, tensors):
        with torch.no_grad():
            for tensor in tensors:
                distributed.broadcast(tensor.detach(), 0)


def _check(model, optimizers, sums):
    """Errors: InvalidInput."""
    where = "gradweave.wrap(between={'average': 'gradients'}): "
    if sums and sharding.held_by(model, ()) is not None:
        raise _native.InvalidInput(where + "the model is sharded over some of the island's ranks: shard it over all of them, "
                                   "fully_shard() on a mesh of all")
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
        raise _native.InvalidInput(where + "LBFGS computes several gradients in a step: use an optimizer that needs one")
    if any(getattr(module, "sparse", False) for module in model.modules()):
        raise _native.InvalidInput(where + "an embedding's gradient is sparse: use sparse=False")
