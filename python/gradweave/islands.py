"""Islands: jobs that are far from each other and average their models (src/islands/). Here is what torch has of it: a model's
values as one vector, an optimizer's state as bytes, and the collectives of the island's own ranks."""

import contextlib
import copy
import datetime
import io
import logging
import math
import numbers
import os
import socket
import time
from collections import OrderedDict

import torch
from torch import distributed

from gradweave import _native, moments, sharding
from gradweave.agreement import digest, has_mean
from gradweave.closing import refusing_once_closed
from gradweave.groups import all_gather_single, from_rank_0, gathered, reduce_scatter_single
from gradweave.profiling import communicates
from gradweave.scope import check_all_sharded, check_frozen
from gradweave.subclasses import fills_state, named_as, reduce_plain, session_of

GROUP = 256  # elements that a codec scales together
OPTIONS = {"average": "parameters", "ranks": None, "period": 8, "fragments": None, "compressor": "int4",
           "outer_momentum": 0.0, "outer_learning_rate": 1.0}
NOTHING, AVERAGE, FINISH = 0, 1, 2  # what a rank wants: islands::StepReport
LEAST_FRAGMENT, MOST_FRAGMENTS = 1 << 20, 8  # elements: a message takes longer than the round trips of agreeing on it
POLL_S = 0.005
TELL_S = 10.0
LATE_STEPS = 4
OUTER = {"outer_momentum": (0, 0.999), "outer_learning_rate": (1e-6, 100)}  # as schemes that average have them
COMPRESSORS = ("int4", "int8", "int2", "ef_signsgd", "none")
SAMPLE = 1024  # elements of a gradient, about
NOT_FINITE = "buffers not finite (exclude= them):"  # which islands that differ are told
ALIGNED = 16  # bytes: where a tensor of a state begins
_END_OF_LENGTH = 8

logger = logging.getLogger("gradweave")


class Section:
    """Tensors that the ranks `holders` of an island have alike. Each of the first `exchanging` averages its share of them with
    other islands."""

    def __init__(self, tensors, holders, group, exchanging):
        self.tensors, self._group = tensors, group
        self._exchange, self._all_do = holders[:exchanging], exchanging >= len(holders)
        self.numel = sum(tensor.numel() for tensor, _ in self._placed())
        self._share = math.ceil(self.numel / len(self._exchange) / GROUP) * GROUP
        self._place = holders.index(_rank())
        self._first = self._place * self._share
        self.share = self._share if self._place < exchanging else 0  # elements, of this rank

    def fragment(self, place, count):
        """(first element, element after the last) of fragment `place` of `count` of each share."""
        groups = self._share // GROUP
        return groups * place // count * GROUP, groups * (place + 1) // count * GROUP

    def read(self, to, tensors=None, non_blocking=False, begin=0):
        """Writes this rank's share from element `begin` on, of `tensors` if they are given, to the vector `to`, with zeros
        behind the last."""
        to.zero_()
        first = self._first + begin
        for tensor, place in self._placed(tensors):
            begin, end = max(place, first), min(place + tensor.numel(), first + to.numel())
            if begin < end:
                to[begin - first:end - first].copy_(tensor.detach().reshape(-1)[begin - place:end - place],
                                                    non_blocking=non_blocking)

    def set(self, share, tensors=None):
        """Tensors, `tensors` if they are given, become what the shares of all holders are. Collective among them."""
        for (tensor, _), values in zip(self._placed(tensors), self.gathered(share)):
            tensor.copy_(values)

    def add(self, delta, begin, end):
        """Adds to the elements of all holders' shares from `begin` to `end`. Collective among them."""
        if begin == end:
            return
        deltas = self._of_all(delta, end - begin)
        for tensor, place in self._placed():
            of_tensor = None
            for number, values in enumerate(deltas.split(end - begin)):
                first = number * self._share + begin - place
                low, high = max(first, 0), min(first + end - begin, tensor.numel())
                if low < high:
                    of_tensor = torch.zeros(tensor.numel()) if of_tensor is None else of_tensor
                    of_tensor[low:high] = values[low - first:high - first]
            if of_tensor is not None:
                _add(tensor, of_tensor.view(tensor.shape))

    def gathered(self, share):
        """Each tensor's values as real numbers, of the shares of all holders. Collective among them."""
        whole = self._of_all(share, self._share)
        return [whole[place:place + tensor.numel()].view(tensor.shape) for tensor, place in self._placed()]

    def _of_all(self, own, count):
        """`count` values of each that exchanges, one after another; this rank's are `own`."""
        if self._group is None:
            return own
        whole = torch.empty(len(self._exchange) * count)
        if self._all_do:
            all_gather_single(whole, own, group=self._group)
            return whole
        if self.share:
            whole[self._place * count:(self._place + 1) * count] = own
        for part, rank in zip(whole.chunk(len(self._exchange)), self._exchange):
            distributed.broadcast(part, rank, group=self._group)
        return whole

    def summed(self, to, tensors):
        """As read(), of the sums of what the holders have in `tensors`, which are not alike. Collective among them."""
        whole = torch.zeros(len(self._exchange) * self._share)
        for tensor, place in self._placed(tensors):
            whole[place:place + tensor.numel()].copy_(tensor.detach().reshape(-1))
        if self._all_do:
            reduce_scatter_single(to, whole, group=self._group)
            return
        for part, rank in zip(whole.chunk(len(self._exchange)), self._exchange):
            distributed.reduce(part, rank, group=self._group)
        to.copy_(whole[self._first:self._first + self.share])

    def _placed(self, tensors=None):
        place = 0
        for tensor in map(_real, self.tensors if tensors is None else tensors):
            yield tensor, place
            place += tensor.numel()


class Buffers:
    """Those of a model that chosen(name, buffer) was true of in wrap(): modules may replace theirs."""

    def __init__(self, model, chosen):
        self._model = model
        self._had = {name: local for name, buffer in model.named_buffers() if chosen(name, local := sharding.local_of(buffer))}

    def now(self):
        return [buffer for _, buffer in self.named()]

    def named(self):
        """(name, buffer), as modules have them now. One that is gone, or of another shape, is as it was last: no other island
        gets it."""
        now = {name: sharding.local_of(buffer) for name, buffer in self._model.named_buffers()}
        self._had = {name: now[name] if name in now and now[name].shape == had.shape else had
                     for name, had in self._had.items()}
        return self._had.items()


class Values:
    """What a rank averages of a model: its part of the parameters, in fragments, and of the buffers, which only the last
    average moves. As a vector: of each fragment what it has of each section, and then buffers."""

    def __init__(self, model, parameters, exclude, exchanging, fragments):
        self._model = model
        everything = _holders_of_all()
        self.held = {parameter: _holders(parameter, everything) for parameter in parameters}
        by_holders = {}
        for parameter, holders in self.held.items():
            by_holders.setdefault(holders, []).append(sharding.local_of(parameter))
        self.groups = groups = _groups_of(list(by_holders) + [everything])
        self._sections = [Section(tensors, holders, groups[holders], exchanging)
                          for holders, tensors in by_holders.items()]
        self.buffers = Buffers(model, lambda name, buffer: has_mean(buffer) and buffer.isfinite().all()  # no masks
                               and not sharding.is_named(name, exclude))
        self._buffers = Section(self.buffers.now(), everything, groups[everything], exchanging)
        self._cuts = [[section.fragment(place, fragments) for section in self._sections] for place in range(fragments)]
        self.fragments = [sum(self._sizes(place)) for place in range(fragments)]  # elements of each
        self._parameters = sum(self.fragments)
        self.count = self._parameters + self._buffers.share
        self._vector = torch.zeros(self.count)

    @torch.no_grad()
    def read(self, buffers=True):
        """The vector now, with zeros for buffers that are not to be read. It is the caller's until the next call."""
        for place in range(len(self.fragments)):
            self.read_fragment(place)
        of_buffers = self._vector[self._parameters:]
        self._buffers.read(of_buffers, self.buffers.now()) if buffers else of_buffers.zero_()
        return self._vector

    @torch.no_grad()
    def read_fragment(self, place):
        """As read()."""
        fragment = self._vector[:self._parameters].split(self.fragments)[place]
        for section, (begin, _), part in self._parts(place, fragment):
            section.read(part, begin=begin)
        return fragment

    @torch.no_grad()
    def add(self, place, delta):
        """Adds to fragment `place`."""
        for section, (begin, end), part in self._parts(place, delta):
            section.add(part, begin, end)
        self._gather_again()

    @torch.no_grad()
    def set(self, vector, buffers):
        of_fragments = [[part for *_, part in self._parts(place, fragment)]
                        for place, fragment in enumerate(vector[:self._parameters].split(self.fragments))]
        for section, parts in zip(self._sections, zip(*of_fragments)):
            section.set(torch.cat(parts))
        if buffers:
            self._buffers.set(vector[self._parameters:], self.buffers.now())
        self._gather_again()

    def of_parameters(self, vector):
        """What read() or read_fragment() has returned, without buffers."""
        return vector[:self._parameters]

    def close(self):
        _destroy(self.groups.values())

    def _sizes(self, place):
        return [end - begin if section.share else 0 for section, (begin, end) in zip(self._sections, self._cuts[place])]

    def _parts(self, place, fragment):
        """(section, its elements, these of the vector `fragment`) for each."""
        return zip(self._sections, self._cuts[place], fragment.split(self._sizes(place)))

    def _gather_again(self):
        for group in sharding.fsdp_groups(self._model):
            if group.is_unsharded:
                group._to_sharded()


def _real(tensor):
    """A complex one as twice as many real numbers, which are a view of it."""
    return torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor


def _add(tensor, values):
    if tensor.dtype in (torch.float32, torch.float64):
        tensor.add_(values.to(tensor.device))
    else:  # rounded once
        tensor.copy_(tensor.float().add_(values.to(tensor.device)))


class Inside:
    """The ranks of this island."""

    def __init__(self, timeout_s):
        self.rank, self.size = _rank(), distributed.get_world_size() if distributed.is_initialized() else 1
        self._group = None
        if self.size > 1:
            self._group = distributed.new_group(backend="gloo", timeout=datetime.timedelta(seconds=timeout_s))

    def of_all(self, numbers):
        """The lists of integers of all ranks, one after another; all of one length."""
        if self._group is None:
            return numbers
        found = torch.empty(self.size * len(numbers), dtype=torch.int64)
        all_gather_single(found, torch.tensor(numbers), group=self._group)
        return found.tolist()

    def from_rank_0(self, value):
        return value if self._group is None else from_rank_0(value, self._group)

    def tensor_from_rank_0(self, value):
        """Of one dimension."""
        if self._group is None:
            return value
        size = self.from_rank_0(value.numel())
        held = value if self.rank == 0 else value.new_empty(size)
        distributed.broadcast(held, 0, group=self._group)
        return held

    def gathered(self, value):
        return [value] if self._group is None else gathered(value, self._group)

    def close(self):
        _destroy([self._group])
        self._group = None


class MomentShare:
    """As moments.Measured needs it, of the islands: with each average they exchange samples of the gradients that they step by
    as it begins. `parameters`: as their gradients are on this rank."""

    def __init__(self, inside, parameters):
        self._inside, self._sample = inside, None
        self.places = {parameter: place for place, parameter in enumerate(parameters)}  # in the sample
        if inside.rank == 0:
            self._sample = _native.GradientSample([sharding.local_of(parameter).numel() for parameter in self.places], SAMPLE)
        self._noise, self._step = _native.GradientNoise(), 0  # as of that step
        self._workers, self._scale = 1, None
        self.samples = False  # whether what is stepped by next may be a sample

    def step_begins(self, optimizer, samples, workers):
        self.samples, self._workers = samples and self._sample is not None, workers
        self._scale = getattr(optimizer, "grad_scale", None)  # as GradScaler tells a fused optimizer, which unscales

    @property
    def share(self):
        return self._noise.share(self._workers)

    def take(self, place, begin, gradient):
        self._sample.take(place, begin, gradient if self._scale is None else gradient / self._scale)

    def read(self):
        """The last sample."""
        return None if self._sample is None else self._sample.read()

    def add(self, squares, step):
        """What rank 0 knows of an average's samples. Collective."""
        squares = self._inside.from_rank_0(squares)
        if squares is not None:
            self._noise.add(*squares, step - self._step)
            self._step = step

    def state(self):
        return {"signal": self._noise.signal, "noise": self._noise.noise, "step": self._step}

    def load(self, state):
        self._noise.signal, self._noise.noise, self._step = state["signal"], state["noise"], state["step"]


class Islands:
    """What `model.gradweave.islands` is: the islands that train together, this one among them."""

    def __init__(self, model, optimizers, settings, prepare=None):
        self._optimizers, self._settings, self._prepare = optimizers, settings, prepare or (lambda: None)
        self._options = checked(settings.between)
        self._period = self._options["period"]
        self._inside = Inside(settings.timeout)
        self._exchanging = self._options["ranks"] or self._inside.size
        self._one_state = self._options["ranks"] is not None  # of an island: islands have other numbers of ranks
        averaged = _averaged(model, settings.exclude)
        self._fragments = self._options["fragments"] or _fragments_of(averaged.values())
        self._values = Values(model, averaged.values(), settings.exclude, self._exchanging, self._fragments)
        self.moment_share = None
        if settings.moments == "measured" and not self.in_lockstep and any(
                moments.serves(type(optimizer), group) for optimizer in optimizers for group in optimizer.param_groups):
            self.moment_share = MomentShare(self._inside, averaged.values())
        self.steps = 0
        self.samples_per_step = float(self._inside.size)
        self._steps_since = 0  # since an average has begun
        self._samples = [0.0] * self._fragments  # since the last one of each fragment that landed
        self._samples_begun = {}  # by fragment, of the average under way
        self._landed = self._last = 0  # averages; the number of the one that finish() waits for
        self.steps_to_land, self._told_late = 0, False  # of the last average, from its beginning on
        self.last_average = 0  # the number of the last one that is in the parameters; 0: none
        self._under_way = self._trains = False
        self._held = []  # commands that came with the one by which it trains: the loop may first name what it carries
        self._averaged_with = self.finished_with = []
        self._callbacks, self._told = [], 0
        self._on_begin, self._on_land, self._on_keep = [], [], []
        self._looked, self._trouble, self._told_trouble = time.monotonic(), "", ""
        self._carried, self._taken = [], []  # objects besides the model; states that are still to be loaded into them
        self._member = None
        self.name = self._inside.from_rank_0(settings.island or socket.gethostname())
        self._buffers = Buffers(model, lambda name, _: not sharding.is_named(name, settings.exclude))  # also without a mean
        self._shapes = digest([[n, list(p.shape), str(p.dtype), str(getattr(p, "placements", "")), p.requires_grad]
                               for n, p in model.named_parameters()] +
                              [[n, list(b.shape)] for n, b in self._buffers.named()])
        averaged_too = dict(self._values.buffers.named())
        self._not_finite = [n for n, b in self._buffers.named() if has_mean(b) and n not in averaged_too]
        self._frozen = [(name, parameter) for name, parameter in model.named_parameters()
                        if not parameter.requires_grad and not sharding.is_named(name, settings.exclude)]

    def join(self):
        """Goes to the other islands, and returns once this one trains with them: with the state of one that trains, or as it
        is, if it is the first. Collective among the island's ranks. Errors: InvalidInput."""
        settings, options = self._settings, self._options
        for optimizer in self._optimizers:
            _check_sent(_state_of(optimizer), f"gradweave.wrap(islands=): the state of this {type(optimizer).__name__}")
        host = _own_host(settings.islands, settings.listen)
        outer = (options["outer_momentum"], options["outer_learning_rate"])
        frozen = self._inside.gathered(digest([_sum_of(sharding.local_of(p)) for _, p in self._frozen]))
        alike = {"parameters and buffers": self._shapes, NOT_FINITE: ", ".join(self._not_finite) or "none",
                 "frozen parameters": frozen[0] if self._one_state else digest(frozen),
                 "exchanging ranks": self._exchanging, "ranks": options["ranks"],
                 "average": options["average"], "fragments": self._fragments, "compressor": options["compressor"],
                 "outer_momentum": outer[0], "outer_learning_rate": outer[1],
                 "moments": "local" if self.moment_share is None else "measured"}
        self._member = _native.IslandMember(
            meeting=settings.islands, key=str(settings.key), island=self.name, rank=self._inside.rank,
            trains=[f"{name} {value}" for name, value in alike.items()],
            ranks=self._inside.size, exchanging=self._exchanging, listen=_own_port(settings.listen, host),
            silence_s=min(settings.timeout, 10.0), values=self._values.read(), fragments=self._values.fragments,
            compressor="" if options["compressor"] == "none" else options["compressor"],
            outer=None if outer == (0.0, 1.0) else outer, gradients=self._gradient_counts())
        addresses = self._inside.gathered(f"{host}:{self._member.port}")
        if self._inside.rank == 0:
            self._member.join(addresses[:self._exchanging])
        self._come_in(settings.arrival_timeout)

    # ---- what users ask

    @property
    def joined(self):
        """Whether this island has gone to the others: wrap() does it, frameworks' loops at their first step."""
        return self._member is not None

    @property
    def names(self):
        """Of the islands that are there now, in order; each may be one that still takes the state."""
        return [island.name for island in self._member.islands] if self.joined else []

    @property
    def ranks(self):
        """{name of an island: its ranks}."""
        return {island.name: island.ranks for island in self._member.islands} if self.joined else {}

    @property
    def epoch(self):
        """The number of the epoch: each change of the islands that are there makes another one."""
        return self._member.epoch if self.joined else 0

    @property
    def since(self):
        """{name of an island: the epoch in which it came}. One that comes again, or was left out meanwhile, has a later one:
        what it had gained alone is lost."""
        return {island.name: island.since for island in self._member.islands} if self.joined else {}

    @property
    def averages(self):
        """Those that have landed here since the start."""
        return self._landed

    @property
    def under_way(self):
        """Whether an average has begun here, and neither landed nor been dropped."""
        return self._under_way

    @property
    def bytes_sent(self):
        """By this rank to other islands since the start."""
        return self._member.bytes_sent if self.joined else 0

    @property
    def trouble(self):
        """What is wrong between this island and the others, as rank 0 knows it; "" if all is well."""
        return self._member.trouble if self.joined else "it has not joined the others yet"

    @property
    def workers(self):
        """Of how many islands' samples the average is that follows these steps."""
        return min(len(self._averaged_with), len(self.names))

    def on_change(self, call):
        """`call(names)` after a step, on every rank of this island, once an island has gone or come."""
        self._callbacks.append(call)

    @property
    def fragments(self):
        """How many averages it takes until each parameter has been averaged once."""
        return self._fragments

    def on_begin(self, call):
        """`call(number, names)` on every rank as an average of these islands begins, before that rank sends anything of it. It
        is of all that the island has gained since the last one of that fragment that landed. Numbers rise."""
        self._on_begin.append(call)

    def on_land(self, call):
        """`call(number, names)` on every rank once that average has landed: what its islands had gained is in the parameters
        of all that train. One that was dropped never lands; what it held is in the next one."""
        self._on_land.append(call)

    def on_keep(self, call):
        """`call()` on every rank once what this island has gained is in what others take, without an average: it is alone,
        and gives another one the state, or goes on from what it has, since nobody has a later one."""
        self._on_keep.append(call)

    in_lockstep = False  # whether each step is one of all islands: they average gradients

    def no_sync(self):
        return contextlib.nullcontext()

    def carry(self, *objects):
        """What a newcomer takes besides model and optimizers: objects with state_dict() and load_state_dict(), as schedules of
        learning rates. The same on all islands; in place of those given before. Errors: InvalidInput."""
        for each in objects:
            _check_sent(each.state_dict(), f"model.gradweave.islands.carry(): the state_dict() of this {type(each).__name__}")
        self._carried = list(objects)
        if self._carried:
            self._load_carried()

    def __repr__(self):
        return f"islands {', '.join(self.names)} (this is {self.name})"

    # ---- the loop

    def step_ended(self):
        check_frozen(self._frozen)
        self.steps += 1
        self._steps_since += 1
        self._samples = [samples + self.samples_per_step for samples in self._samples]
        self._take_part(self._average_is_due(self._steps_since))

    def _average_is_due(self, steps_since):
        return steps_since * self._fragments >= self._period

    @property
    def may_average_next(self):
        """Whether an average may begin once the next step has ended."""
        return not self._under_way and self._average_is_due(self._steps_since + 1)

    def wait(self):
        """For a loop that has nothing to train now: takes part in averages for a moment, as a step does. Collective."""
        time.sleep(POLL_S)
        self._take_part(True)

    def _take_part(self, wants):
        if not self.joined:
            self.join()
            return
        self._tell_trouble()
        self._proceed(AVERAGE if wants and not self._under_way else NOTHING)
        while not self._trains:  # it was left out, and takes the state anew
            time.sleep(POLL_S)
            self._proceed(NOTHING)

    def _tell_trouble(self):
        now = time.monotonic()
        if self._inside.rank or now - self._looked < TELL_S / 2:
            return
        trouble, self._looked = self._member.trouble, now
        if trouble and trouble == self._trouble != self._told_trouble:  # for so long
            self._told_trouble = trouble
            logger.warning("gradweave: island '%s': %s", self.name, trouble)
        self._trouble = trouble

    def _tell_late(self):
        """Once: what is corrected late has been trained away where the loss is steep (docs/results/accuracy.md)."""
        if self._told_late or self._inside.rank or self.steps_to_land < max(LATE_STEPS, self._period / 2):
            return
        self._told_late = True
        logger.warning("gradweave: island '%s': an average landed %d steps after it began; 'period' is %d. Averages that "
                       "land so late cost accuracy: give between={'fragments': %d}, send fewer bits, or give a longer "
                       "'period'", self.name, self.steps_to_land, self._period, 4 * self._fragments)

    def finish(self):
        """Returns once all islands that are there have called it, and are equal: those of `finished_with`."""
        self.finished_with = [self.name]
        if not self.joined:
            return
        self._last, polls, deserted_since, told = 0, 0, None, False
        begin = time.monotonic()
        while not (self._last and self._member.agreed) and (len(self.names) > 1 or not self._trains):
            self._proceed(NOTHING if self._last else FINISH)
            time.sleep(POLL_S)
            polls += 1
            if polls % 100:
                continue
            now = time.monotonic()
            deserted_since = (deserted_since or now) if self._member.deserted else None
            if self._inside.from_rank_0(deserted_since is not None and now - deserted_since > TELL_S):
                break  # they have left while the meeting point was away
            if not told and now - begin > TELL_S and self._inside.rank == 0:
                told = True
                logger.info("gradweave.finish(): island %s waits until all have called it: %s", self.name,
                            ", ".join(self.names))
        if len(self.finished_with) == 1 and len(self._averaged_with) > 1 and self._inside.rank == 0:
            logger.warning("gradweave.finish(): island '%s' ends alone: of its last average's islands (%s) no other is there",
                           self.name, ", ".join(self._averaged_with))

    def unhook(self):
        """Model and optimizers are left alone from now on."""

    def close(self):
        """Leaves the other islands. unhook() comes before."""
        self._member = None
        self._values.close()
        self._inside.close()

    def _come_in(self, patience_s):
        begin, since, told, polls = time.monotonic(), None, None, 0
        while not self._trains:
            self._proceed(NOTHING, joining=True)
            time.sleep(POLL_S)
            polls += 1
            if self._member.islands or polls % 100:
                continue
            now, trouble = time.monotonic(), self._inside.from_rank_0(self._member.trouble)
            since = (since or now) if trouble else None
            if self._inside.from_rank_0(bool(trouble) and now - since > patience_s):
                raise _native.InvalidInput(f"gradweave.wrap(islands='{self._settings.islands}'): this island can't join: "
                                           f"{trouble}; if nothing answers, start `gradweave meet` there with this key")
            waits = trouble or "the meeting point has not let it in yet; its own output says which islands it waits for"
            if waits != told and now - (since or begin + TELL_S) > 1 and self._inside.rank == 0:
                told = waits
                logger.warning("gradweave.wrap(): island '%s' waits: %s", self.name, waits)

    def _proceed(self, wants, joining=False):
        self._carry_out(self._held)
        own = self._member.report(wants)
        reports = self._inside.of_all(own)
        text = b""
        if reports[len(own) - 1]:  # rank 0 has a text
            text = self._inside.from_rank_0(self._member.text)
        self._carry_out(self._member.proceed(reports, text), joining)
        if self._member.epoch != self._told:  # also where one came again under its name
            self._told = self._member.epoch
            if self._inside.rank == 0:
                logger.info("gradweave: islands %s train together (this is %s)", ", ".join(self.names), self.name)
            for call in self._callbacks:
                call(self.names)

    def _carry_out(self, commands, joining=False):
        self._held = []
        for place, command in enumerate(commands):
            if self._holds(joining):
                self._held = commands[place:]
                return
            getattr(self, f"_{_CALLED[command.what]}")(command)

    def _holds(self, joining):
        """Whether the next command waits."""
        return joining and self._trains

    def _gradient_counts(self):
        """Elements of each bucket of gradients; None where parameters are averaged."""

    def _begin(self, command):
        self._prepare()
        self._under_way, self._steps_since = True, 0
        self._averaged_with = command.members
        turn = range(self._fragments) if command.last else [self._member.turn]
        self._samples_begun = {place: self._samples[place] for place in turn}
        for call in self._on_begin:
            call(command.number, command.members)
        values = self._values.read() if command.last else self._values.read_fragment(turn[0])
        if not self._values.of_parameters(values).isfinite().all():
            raise _native.InvalidInput(f"gradweave: parameters of island '{self.name}' are not finite, and an average would "
                                       "give that to all islands: look at its data, loss and learning rate, and start it "
                                       "again: it takes the state from the others")
        sample = None if self.moment_share is None else self.moment_share.read()
        self._member.begin(command, max(self._samples_begun.values()), values, sample)

    def _land(self, command):
        place = min(self._samples_begun)  # of the fragment
        delta = torch.empty(self._values.count if command.last else self._values.fragments[place])
        self._prepare()
        sampled = self._member.land(delta)
        if self.moment_share is not None:
            self.moment_share.add(sampled, self.steps)
        if command.last:
            self._values.set(self._anchor(), buffers=True)
            self._last, self.finished_with = command.number, self._averaged_with
        else:
            self._values.add(place, delta)
            self.steps_to_land = self._steps_since
            self._tell_late()
        self._under_way = False
        for place, samples in self._samples_begun.items():
            self._samples[place] -= samples
        self._landed += 1
        self.last_average = command.number
        for call in self._on_land:
            call(command.number, self._averaged_with)

    def _drop(self, command):
        self._member.drop()
        self._under_way = False

    def _give(self, command):
        self._prepare()
        alone = self._member.alone_with(command.other)  # nobody has had anything of what it is: that is the state
        for call in self._on_keep if alone else ():
            call()
        self._member.give(command, self._values.read() if alone else None, self._state())
        if alone:
            self._samples = [0.0] * self._fragments

    def _given(self, command):
        self._member.give_no_more(command.other)

    def _take(self, command):
        self._trains = self._under_way = False
        self._member.take(command)

    def _train(self, command):
        self._trains, self.last_average = True, command.landed
        if self._member.train(self._values.read()):
            extra = self._member.extra
            self._set_state(self._inside.tensor_from_rank_0(extra) if self._one_state else extra)
            if self._one_state:
                self._member.turn = self._inside.from_rank_0(self._member.turn)  # ranks that exchange nothing take none
            self._values.set(self._anchor(), buffers=False)
        else:
            for call in self._on_keep:
                call()
        self._steps_since, self._samples = 0, [0.0] * self._fragments

    def _anchor(self):
        anchor = torch.empty(self._values.count)
        self._member.copy_anchor(anchor)
        return anchor

    # ---- the state besides parameters

    def _state(self):
        if self._one_state and self._inside.rank:
            return torch.empty(0, dtype=torch.uint8)  # those that take it have rank 0's on all ranks

        return _packed({
            "steps": self.steps, "buffers": [buffer.detach() for buffer in self._buffers.now()],
            "optimizers": list(map(_state_of, self._optimizers)),
            "carried": [each.state_dict() for each in self._carried],
            "scaler": self._settings.scaler.state_dict() if self._settings.scales else {},
            "moments": {} if self.moment_share is None else self.moment_share.state()})

    def _set_state(self, extra):
        kept = _unpacked(extra)
        self.steps = kept["steps"]
        with torch.no_grad():
            for buffer, value in zip(self._buffers.now(), kept["buffers"]):
                buffer.copy_(value)
        for optimizer, state in zip(self._optimizers, kept["optimizers"]):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            state["state"] = {place: {name: sharding.beside(value, parameters[place]) for name, value in of.items()}
                              for place, of in state["state"].items()}
            optimizer.load_state_dict(state)
        if self._settings.scales and kept["scaler"]:
            self._settings.scaler.load_state_dict(kept["scaler"])
        if self.moment_share is not None:
            self.moment_share.load(kept["moments"])
        self._taken = kept["carried"]
        if self._carried:
            self._load_carried()

    def _load_carried(self):
        for each, state in zip(self._carried, self._taken):
            each.load_state_dict(state)
        self._taken = []


SCHEMES_RUN = "Gradweave's schemes communicate between the ranks of an island"


@refusing_once_closed
class Session:
    """What `model.gradweave` is where the ranks of an island communicate by means of their own, or it has only one."""

    parameters = ()  # that the engine has
    plan = None      # none orders what the user's means communicate

    def __init__(self, model, optimizers, settings, islands):
        self.model, self.settings, self.closed = model, settings, True  # until it is made
        self.islands = islands
        self.rank = _rank()  # in the island
        self._aside = {}  # parameter groups, while torch's step has others
        self._handles = []
        if islands.moment_share is not None:
            self._moments = moments.Measured(islands.moment_share)
            for optimizer in optimizers:
                self._handles += [optimizer.register_step_pre_hook(self._before_step),
                                  optimizer.register_step_post_hook(self._after_step)]
        self._handles.append(optimizers[-1].register_step_post_hook(self._step_ended))
        self.closed = False

    def __del__(self):
        self.close()

    def finish(self) -> None:
        """Returns once all islands that are there have called it: then they are equal. Collective."""
        self.islands.finish()

    def follow_buffers(self):
        """The user's means do it."""

    def clip_grad_norm_(self, max_norm, norm_type, error_if_nonfinite):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm, norm_type, error_if_nonfinite)

    def no_sync(self):
        """The passes inside add to gradients, and average nothing."""
        return self.islands.no_sync()

    def synchronize(self):
        """Nothing of a step is under way after it."""

    before_fork = synchronize

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint has of it beside model and optimizers."""
        return {"steps": self.islands.steps}

    def load_state_dict(self, state) -> None:
        if "steps" not in state:
            raise _native.InvalidInput(f"model.gradweave.load_state_dict(): the state is of a job where {SCHEMES_RUN}, which "
                                       "they don't here: load model and optimizer alone")
        # Islands that train already, and whose state this one has taken, may be further.
        self.islands.steps = max(self.islands.steps, state["steps"])

    def __getattr__(self, name):
        raise AttributeError(f"model.gradweave.{name} is there only where {SCHEMES_RUN}, which they don't here")

    def unhook(self):
        for handle in self._handles:
            handle.remove()
        self.islands.unhook()
        self.on_close()

    def _step_ended(self, *_):
        if not fills_state():
            self.islands.step_ended()

    def _before_step(self, optimizer, arguments, named):
        if fills_state():
            return None
        closure = closure_of(arguments, named)
        if closure is None:
            self._put_aside(optimizer)
            return None

        def call():
            loss = closure()
            self._put_aside(optimizer)  # now, since what ran may read and set learning rates
            return loss

        return arguments[:1], {"closure": call}

    def _put_aside(self, optimizer):
        self._after_step(optimizer)  # of a step that has failed
        islands = self.islands
        islands.moment_share.step_begins(optimizer, islands.may_average_next, islands.workers)
        places, groups, kept = islands.moment_share.places, list(optimizer.param_groups), []
        self._aside[optimizer] = groups, kept
        for group in groups:
            if not moments.serves(type(optimizer), group):
                continue
            parts = [p for p in group["params"] if p in places and not p.is_complex()]
            others = [p for p in group["params"] if p not in places or p.is_complex()]
            stepped = self._moments.before_step(group, [(places[p], 0, p) for p in parts])
            kept.append((group, {name: group[name] for name in ("params", *_STEPPED_BY)}))
            if others:
                optimizer.param_groups.append(group | {"params": others})
            group.update({name: stepped[name] for name in _STEPPED_BY} | {"params": parts})

    def _after_step(self, optimizer, *_):
        if optimizer not in self._aside:
            return
        optimizer.param_groups[:], kept = self._aside.pop(optimizer)
        for group, was in kept:
            group.update(was)

    def close(self, error=None, patience_s=None) -> None:
        """Leaves the other islands, and makes the model what it was before. Safe to call twice."""
        if self.closed:
            return
        self.unhook()
        self.closed = True
        self.islands.close()


def users_own(model, exclude):
    """Whether the ranks of this island communicate the model by means of the user's, or there is only one."""
    ranks = _holders_of_all()
    if len(ranks) == 1 or any(isinstance(module, torch.nn.parallel.DistributedDataParallel) for module in model.modules()):
        return True
    held = sharding.held_by(model, exclude)
    return held is not None and held["with"] == list(ranks)


def closure_of(arguments, named):
    """What a call of an optimizer's step() was given, as its hooks see it; None if nothing."""
    return named.get("closure", arguments[1] if len(arguments) > 1 else None)


def model_class(base):
    """Of a model that has such a session."""
    class Model(base):
        @property
        def gradweave(self):
            return session_of(self)

        def __reduce_ex__(self, protocol):
            return reduce_plain(self, base, protocol)

    return named_as(Model, base)


_STEPPED_BY = ("lr", "eps", "weight_decay")  # hyperparameters that moments.Measured changes
_CALLED = {"b": "begin", "l": "land", "d": "drop", "g": "give", "h": "given", "t": "take", "a": "train"}


def checked(given):
    """The options between islands, all of them. Errors: InvalidInput."""
    for name in given or ():
        if name not in OPTIONS:
            raise _native.InvalidInput(f"gradweave.wrap(between=): there is no option '{name}'; give one of "
                                       f"{', '.join(OPTIONS)}")
    options = OPTIONS | dict(given or {})
    if options["average"] not in ("parameters", "gradients"):
        raise _native.InvalidInput(f"gradweave.wrap(between=): average is '{options['average']}'; give parameters or "
                                   "gradients")
    others = [name for name in given or () if name not in ("average", "ranks")]
    if options["average"] == "gradients":
        if others:
            raise _native.InvalidInput("gradweave.wrap(between=): gradients are averaged exactly, in each step: leave out "
                                       f"{', '.join(others)}, or average parameters")
        options["fragments"] = 1
    if options["compressor"] not in COMPRESSORS:
        raise _native.InvalidInput(f"gradweave.wrap(between=): compressor is {options['compressor']!r}; give one of "
                                   f"{', '.join(COMPRESSORS)}")
    for name, (least, most) in OUTER.items():
        value = options[name]
        if not isinstance(value, numbers.Real) or not least <= value <= most:
            raise _native.InvalidInput(f"gradweave.wrap(between=): {name} is {value!r}; give a number from {least:g} to "
                                       f"{most:g}")
        options[name] = float(value)
    for name, what in (("period", "steps"), ("ranks", "ranks of each island that exchange with others"),
                       ("fragments", "parts of the model that are averaged in turn")):
        value = options[name]
        if value is None and OPTIONS[name] is None:
            continue
        if not isinstance(value, numbers.Real) or not float(value).is_integer() or value < 1:
            raise _native.InvalidInput(f"gradweave.wrap(between=): {name} is {value!r}; give a number of {what}, at "
                                       "least 1")
        options[name] = int(value)
    return options


def _fragments_of(parameters):
    return min(max(sum(parameter.numel() for parameter in parameters) // LEAST_FRAGMENT, 1), MOST_FRAGMENTS)


def check_exchanging(exchanging, model):
    """Errors: InvalidInput where this island can't have so many ranks exchange with others."""
    ranks = len(_holders_of_all())
    if exchanging is None or exchanging == ranks:
        return
    if not 1 <= exchanging <= ranks:
        raise _native.InvalidInput(f"gradweave.wrap(between=): {exchanging} ranks of each island are to exchange with others, "
                                   f"and this one has {ranks}: give ranks from 1 to {ranks}, the same on all islands")
    if any(sharding.is_sharded(parameter) for parameter in model.parameters()):
        raise _native.InvalidInput("gradweave.wrap(between=): the model is sharded, so all ranks have to exchange their "
                                   "shards: leave ranks out, and start islands with as many ranks each")


def check_reduced(model, exclude):
    """Errors: InvalidInput where ranks of this island would each train some parameter alone."""
    if len(_holders_of_all()) > 1:
        check_all_sharded(model, list(_averaged(model, exclude).items()))


def _averaged(model, exclude):
    """{name: parameter} of what islands average."""
    return {name: parameter for name, parameter in model.named_parameters()
            if communicates(parameter) and not sharding.is_named(name, exclude)}


def _state_of(optimizer):
    """Its state_dict(), with this rank's part of what is sharded."""
    def local(value):
        return sharding.local_of(value) if isinstance(value, torch.Tensor) else value

    state = optimizer.state_dict()
    state["state"] = {place: {name: local(value) for name, value in of.items()} for place, of in state["state"].items()}
    return state


def _check_sent(state, what):
    """Errors: InvalidInput for a state that a newcomer could not read."""
    try:
        torch.load(io.BytesIO(_form_of(state)[0]), map_location="cpu", weights_only=True)
    except Exception as error:
        raise _native.InvalidInput(f"{what} can't be sent to other islands: let it be of tensors, numbers, strings, lists and "
                                   f"dictionaries ({type(error).__name__})") from error


def _form_of(kept):
    """What torch.save() writes of it with tensors that hold nothing, and these tensors."""
    tensors = []

    def emptied(tensor):
        tensors.append(tensor.detach())
        return torch.empty_like(tensor, device="meta")

    written = io.BytesIO()
    torch.save(_with_tensors(kept, emptied), written)
    return written.getvalue(), tensors


def _packed(kept):
    """As a tensor of bytes: the length of a form; the form, which torch.save() writes, with tensors that hold nothing; and
    what they hold. Training waits for it, and torch.save() of all takes three times as long."""
    form, tensors = _form_of(kept)
    form = torch.frombuffer(bytearray(form), dtype=torch.uint8)
    begin = _END_OF_LENGTH + form.numel()
    packed = torch.empty(begin + sum(_bytes_of(tensor) + ALIGNED for tensor in tensors), dtype=torch.uint8)
    packed[:_END_OF_LENGTH].view(torch.int64)[0] = form.numel()
    packed[_END_OF_LENGTH:begin] = form
    for tensor, held in _placed(packed, begin, tensors):
        held.copy_(tensor)
    return packed


def _unpacked(packed):
    begin = _END_OF_LENGTH + packed[:_END_OF_LENGTH].view(torch.int64).item()
    form = io.BytesIO(bytes(packed[_END_OF_LENGTH:begin].tolist()))
    tensors = []
    kept = torch.load(form, map_location="cpu", weights_only=True)
    _with_tensors(kept, tensors.append)
    held = iter([held for _, held in _placed(packed, begin, tensors)])
    return _with_tensors(kept, lambda form: torch.empty_like(form, device="cpu").copy_(next(held)))  # with its strides


def _placed(packed, begin, tensors):
    """(tensor, the same of what is packed from there on) for each."""
    for tensor in tensors:
        begin = -(-begin // ALIGNED) * ALIGNED
        end = begin + _bytes_of(tensor)
        yield tensor, packed[begin:end].view(tensor.dtype).view(tensor.shape)
        begin = end


def _bytes_of(tensor):
    return tensor.numel() * tensor.element_size()


def _is_plain(value):
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided and not value.is_quantized


def _sum_of(tensor):
    """A checksum, of those that have one: subclasses may hold their values elsewhere."""
    return _native.checksum(tensor) if _is_plain(tensor) and tensor.device.type != "meta" else str(type(tensor))


def _with_tensors(value, call):
    """The same, with call(tensor) for each plain tensor in dictionaries, lists and tuples, and Python's numbers for NumPy's,
    which torch.load() refuses."""
    if _is_plain(value):
        return call(value)
    if isinstance(value, numbers.Number) and hasattr(value, "item"):
        return value.item()
    if type(value) in (dict, OrderedDict):
        changed = copy.copy(value)  # modules' have attributes
        changed.update((name, _with_tensors(of, call)) for name, of in value.items())
        return changed
    if type(value) in (list, tuple):
        return type(value)(_with_tensors(of, call) for of in value)
    return value


def _rank():
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _holders_of_all():
    return tuple(range(distributed.get_world_size() if distributed.is_initialized() else 1))


def _holders(parameter, everything):
    """The ranks of the island that have the same of it as this one."""
    if not sharding.is_sharded(parameter):
        return everything
    mesh = parameter.device_mesh
    place = tuple(slice(None) if placement.is_replicate() else coordinate
                  for placement, coordinate in zip(parameter.placements, mesh.get_coordinate()))
    return tuple(sorted(mesh.mesh[place].flatten().tolist()))


def _groups_of(own):
    """{ranks: their group, None of one rank}, for those that this rank is one of. Collective: in one order on all ranks."""
    wanted = own
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        wanted = sorted({tuple(each) for of_rank in gathered(own) for each in of_rank})
    groups = {ranks: distributed.new_group(ranks, backend="gloo") if len(ranks) > 1 else None for ranks in wanted}
    return {ranks: group for ranks, group in groups.items() if _rank() in ranks}


def _destroy(groups):
    for group in groups:
        if group is not None and distributed.is_initialized():  # else they are gone with the default group
            distributed.destroy_process_group(group)


def _own_port(listen, own_host):
    """Where this rank listens: the ranks of a host on ports that follow each other; on all interfaces of IPv6, too, where
    others are told such an address."""
    host, _, port = (listen or "0.0.0.0:0").rpartition(":")
    if host == "0.0.0.0" and own_host.startswith("["):
        host = "[::]"
    return f"{host}:{int(port) + int(os.environ.get('LOCAL_RANK', 0)) if port.isdigit() and int(port) else port}"


def _own_host(meeting, listen):
    """Where other islands find this host: what it listens on, or the address from which it would go to the meeting point."""
    host = (listen or "").rpartition(":")[0].strip("[]")
    if host not in ("", "0.0.0.0", "::"):
        return _bracketed(host)
    where, _, port = meeting.rpartition(":")
    try:
        found = socket.getaddrinfo(where.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], found[1]) as probe:
            probe.connect(found[4])
            own = probe.getsockname()[0]
    except OSError as error:
        raise _native.InvalidInput(f"gradweave.wrap(islands='{meeting}'): {error}; give the host and the port of `gradweave "
                                   "meet`, HOST:PORT") from None
    return _bracketed(own)


def _bracketed(host):
    return f"[{host}]" if ":" in host else host
