"""What the integrations share: when a framework's models are wrapped, and what their checkpoints hold besides."""

import contextlib
import os
import warnings
import weakref

import torch

from gradweave import InvalidInput, _native, checkpoint, core, islands
from gradweave.agreement import digest
from gradweave.compiling import opaque
from gradweave.settings import Settings
from gradweave.subclasses import Hook, sessions
from gradweave.wrapping import finish, innermost, wrap_alone

_made = weakref.WeakSet()  # sessions, by all Jobs


class Jobs:
    """The models that one object of a framework trains. `told`: what of the framework wraps them, for errors; `options`:
    those of gradweave.wrap(); `evaluates_alone`: the framework evaluates by the model itself, each rank with its own buffers,
    and not by DistributedDataParallel. Errors: TypeError for an option that there is not, ValueError."""

    def __init__(self, told, options, evaluates_alone=False):
        self._told, self._options, self._evaluates_alone = told, dict(options), evaluates_alone
        self._follows = self._options.pop("broadcast_buffers", True)
        Settings(scaler=None, **self._options).check_ranges()  # now; the scaler is the framework's
        self._waiting = {}     # model: what refuses to train it until it is wrapped
        self._optimizers = {}  # model that is wrapped: its optimizers
        self._again = {}       # as _optimizers: what wraps the model once more
        self._carried = []     # what newcomers among islands take besides
        self._ahead = 0        # of the framework's count of steps is that of islands

    @property
    def models(self):
        """Those that are wrapped now."""
        return list(self._optimizers)

    @property
    def _islands(self):
        return [sessions[model].islands for model in self.models if sessions[model].islands is not None]

    def expect(self, model):
        """`model` is set up, and will be wrapped with its optimizers, which come now or later. A training of it by another
        object of the framework ends. Collective. Errors: InvalidInput."""
        if model in self._waiting or model in self.models:
            return
        if model in sessions and sessions[model] in _made:
            finish(model)
            sessions[model].close()
        if any(module in sessions for module in model.modules()):
            raise InvalidInput(f"this {type(model).__name__}, or a part of it, is wrapped already: leave out "
                               f"gradweave.wrap(), {self._told} does it")
        if any(parameter.requires_grad for parameter in model.parameters()):
            self._waiting[model] = model.register_forward_pre_hook(Hook(self._refuse_to_train))

    def wrap(self, optimizers, scaler=None, follow=True):
        """Wraps the models that wait, each with those of `optimizers` that step it. `follow`: buffers as
        DistributedDataParallel has them, unless the options say otherwise. Collective. Errors: InvalidInput."""
        found = {model: [each for each in optimizers if _steps(each, model)] for model in self._waiting}
        for each in optimizers:
            if sum(any(one is each for one in own) for own in found.values()) > 1:
                raise InvalidInput(f"this {type(each).__name__} steps parameters of several models: give each model an "
                                   "optimizer of its own, or make one module of the models")
        for model, own in found.items():
            if own:
                self._waiting.pop(model).remove()
                self._wrap(model, own, scaler, follow)

    def _wrap(self, model, optimizers, scaler, follow):
        wrap_alone(model, optimizers, Settings(scaler=scaler, **self._options))
        session, handles = sessions[model], []
        _made.add(session)
        self._optimizers[model] = [innermost(each) for each in optimizers]
        self._again[model] = lambda: self._wrap(model, optimizers, scaler, follow)
        self.carry(self._carried)
        if self._follows and (self._evaluates_alone or not follow):
            session.evaluates_alone = True
        if follow and self._follows:
            handles = _follow_rank_0(model, self._optimizers[model], self._evaluates_alone)
        unwrap = session.on_close

        def closed():
            unwrap()
            for handle in handles:
                handle.remove()
            self._optimizers.pop(model, None)
            self._again.pop(model, None)

        session.on_close = closed

    def steps_by(self, optimizer):
        """Whether it is the optimizer of a model that is wrapped."""
        return any(optimizer is each for model in self.models for each in self._optimizers[model])

    def finish(self):
        """gradweave.finish() of all models. Collective."""
        for model in self.models:
            finish(model)

    def average(self, copies):
        """Makes averages of a model's weights the mean over the ranks, where these step on their own. Collective."""
        for session in map(sessions.get, self.models):
            if not isinstance(session, islands.Session) and _steps_locally(session):
                for each in copies:
                    session.average(each)

    def close(self, error=None):
        """Ends the training of all models, also of those that still wait."""
        for model in self.models:
            sessions[model].close(error)
        for handle in self._waiting.values():
            handle.remove()
        self._waiting = {}

    # ---- islands

    def carry(self, objects):
        """Newcomers among islands take these too, which have state_dict() and load_state_dict()."""
        self._carried = list(objects)
        for each in self._islands:
            each.carry(*self._carried)

    def count_from(self, step):
        """A loop of the framework begins, and counts steps from `step` on."""
        for each in self._islands:
            if not each.joined:
                each.steps = step
            self._ahead = each.steps - step

    def ends(self, step, total):
        """Whether the loop, which has done `step` of its `total` steps, ends because islands have done the rest without this
        one."""
        return any(step < total <= each.steps - self._ahead for each in self._islands)

    # ---- checkpoints

    def may_load(self):
        """Errors: InvalidInput once other islands train on with what is there."""
        if any(each.joined for each in self._islands):
            raise InvalidInput("this island has joined the others already, and a checkpoint loaded now would be "
                               "averaged into their parameters: load it before the first step")

    def state(self):
        """A list of what this rank has besides what frameworks save, which is rank 0's model and optimizers."""
        return [_state_of(model, self._optimizers[model]) for model in self.models]

    def load_state(self, read, place_of):
        """Go on from what state() returned on each rank, `read(place_of(rank))` (FileNotFoundError: nothing), after models and
        optimizers have been loaded: from this rank's, or from all where there were more or fewer. Rank 0's says which models
        go on; with none of a model, as after DistributedDataParallel, its training begins with a profile. A training that has
        begun ends before. Collective. Errors: InvalidInput."""
        if not self.models:
            return
        self.may_load()
        for model in self.models:
            if getattr(sessions[model], "layers", None) is not None:
                self._wrap_again(model)
        found = self._known(self._read(read, place_of(self._rank)) or self._read(read, place_of(0)))
        if None in found and self._rank == 0:
            warnings.warn(f"gradweave: {place_of(0)} was saved with another model than the one that was loaded, which a "
                          "training without Gradweave may have replaced: training goes on from model and optimizer alone, "
                          "with a new profile", stacklevel=4)
        for model, state in zip(self.models, found):
            if sessions[model].islands is not None and state and "islands" in state:
                sessions[model].islands.steps = state["islands"]
        before = next((state["ranks"] for state in found if state and "ranks" in state), None)
        if isinstance(sessions[self.models[0]], islands.Session) or before is None:
            return
        wanted = [self._rank] if before == sessions[self.models[0]].job.size else range(before)
        of_ranks = [self._read(read, place_of(rank)) for rank in wanted]
        if None in of_ranks:
            raise InvalidInput(f"{place_of(wanted[of_ranks.index(None)])} is missing: the job before had {before} ranks, and "
                               "training goes on from the files of all of them")
        for model, state, *states in zip(self.models, found, *of_ranks):
            if state is None:
                continue
            if len(states) == 1 and "model" in states[0]:
                model.load_state_dict(states[0]["model"])
                for optimizer, one in zip(self._optimizers[model], states[0]["optimizers"]):
                    optimizer.load_state_dict(one)
            try:
                sessions[model].load_state_dict([state["gradweave"] for state in states])
            except InvalidInput as error:
                raise InvalidInput(f"{place_of(wanted[0])}: {error}") from None

    def _known(self, states):
        """Of rank 0's state() what all ranks have to know, or None of a model that is not the one it was saved with."""
        told = []
        for model, state in zip(self.models, states or ()):
            known = {"islands": state["islands"]} if "islands" in state else {}
            if "gradweave" in state:
                known["ranks"] = checkpoint.ranks_of(state["gradweave"])
            # Older files have none.
            told.append(known if state.get("parameters") in (None, _digest_of(model)) else None)
        session = sessions[self.models[0]]
        if isinstance(session, islands.Session):
            return told
        return session.control.from_rank_0(told, "the loading of a checkpoint")

    def _wrap_again(self, model):
        """What is on its way belongs to the training that is given up."""
        session, again, order = sessions[model], self._again[model], self.models
        watch = session.watching()
        session.close(patience_s=session.settings.timeout)
        again()
        watch(sessions[model])
        self._optimizers = {each: self._optimizers[each] for each in order}  # states of checkpoints are in this order

    @property
    def _rank(self):
        session = sessions[self.models[0]]
        return session.rank if isinstance(session, islands.Session) else session.job.rank

    @staticmethod
    def _read(read, place):
        try:
            return read(place)
        except FileNotFoundError:
            return None

    def save(self, folder):
        """Writes state() into a file of this rank."""
        if self.models:
            path = self._file_in(folder, self._rank)
            os.makedirs(folder, exist_ok=True)
            torch.save(self.state(), path + ".part")
            os.replace(path + ".part", path)

    def load(self, folder):
        """As load_state(), from what save() wrote."""
        self.load_state(torch.load, lambda rank: self._file_in(folder, rank))

    def _file_in(self, folder, rank):
        return os.path.join(folder, f"gradweave.rank{rank}.pt")

    def _refuse_to_train(self, model, inputs):
        if model.training and torch.is_grad_enabled():
            raise InvalidInput(f"this {type(model).__name__} would train without communication: give {self._told} its "
                               "optimizer, too")


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """torch.nn.utils.clip_grad_norm_ on the gradients that the coming updates will use. Errors: InvalidInput."""
    parameters = list(parameters)
    of = {id(parameter): session for session in set(sessions.values()) for parameter in session.parameters}
    # In an order that ranks have alike: each may wait for the others here.
    held = list(dict.fromkeys(of[id(parameter)] for parameter in parameters if id(parameter) in of))
    if not held:
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite)
    if max_norm == float("inf") and not any(session.engine.partial_steps for session in held):  # asks for the norm alone
        return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], norm_type,
                                             error_if_nonfinite)
    return held[0].clip_grad_norm_(max_norm, norm_type, error_if_nonfinite, parameters, held[1:])


def no_sync(model):
    return sessions[model].no_sync() if model in sessions else contextlib.nullcontext()


def _steps(optimizer, model):
    own = {id(parameter) for parameter in model.parameters()}
    return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])


def _follow_rank_0(model, optimizers, late):
    """Buffers as DistributedDataParallel has them: rank 0's, from one step to the next. They are sent after a step, so that
    ranks that evaluate have them, or `late`, before the next forward; large ones that training doesn't change, once. Returns
    the handles of its hooks."""
    stale = False

    def follow():
        nonlocal stale
        sessions[model].follow_buffers()
        stale = False

    def stepped(*_):
        nonlocal stale
        stale = model in sessions
        if stale and not late:
            follow()

    def called(*_):
        if stale and model in sessions and model.training and torch.is_grad_enabled():
            follow()

    handles = [optimizer.register_step_post_hook(stepped) for optimizer in optimizers]
    if late:
        handles.append(model.register_forward_pre_hook(Hook(opaque(called)), prepend=True))
    return handles


def _state_of(model, optimizers):
    session = sessions[model]
    state = {} if session.islands is None else {"islands": session.islands.steps}
    if not isinstance(session, islands.Session):
        state["gradweave"] = session.state_dict()
    state["parameters"] = _digest_of(model)
    if isinstance(session, islands.Session):
        return state
    if _steps_locally(session):
        state |= {"model": model.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
    return state


def _digest_of(model):
    """Of the parameters that a framework saves and loads by the model."""
    return digest([_native.checksum(parameter.detach()) for parameter in model.parameters()])


def _steps_locally(session):
    return session.plan is not None and core.demands_of(session.plan)["local_steps"]
