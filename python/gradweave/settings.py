"""The arguments of gradweave.wrap(), spelled once."""

import functools
import inspect
import numbers
import os
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Callable, Concatenate, Iterable, Mapping, ParamSpec, TypeVar

import torch
from torch import distributed

from gradweave import _native, compiling, core, moments
from gradweave._native import InvalidInput
from gradweave.agreement import digest
from gradweave.links import EmulatedLink, links_of, over_levels, renamed

GivenLink = str | distributed.ProcessGroup | EmulatedLink  # an interface, a group, or a model of one
Plan = core.Plan | dict[str, Any] | str | os.PathLike
LONGEST_S = 1e9
COMPILED = "gradweave.wrap(tune=): a compiled model would be compiled again for each trial; leave out tune or torch.compile"
LOCAL_IN_ISLAND = ("ranks of an island that step on their own can't be averaged with other islands: choose a scheme without "
                   "local steps")


@dataclass(frozen=True)
class Settings:
    """How a job is trained.

    scheme: the scheme that makes the plan, after `warm_up` + `profile_iterations` iterations, which train synchronously.
    plan: a plan (core.Plan, dictionary, JSON text or path) to run from the first iteration instead of one by `scheme`.
    links: network interfaces, process groups or EmulatedLinks; by default that of the default group.
    options: the scheme's options.
    timeout: seconds that one op may take.
    arrival_timeout: seconds from the first rank that calls wrap() to the last.
    find_unused_parameters: as in DistributedDataParallel; None finds out in the first iteration.
    broadcast: whether all ranks get rank 0's parameters and buffers first.
    broadcast_buffers: whether they get rank 0's buffers also before each forward in training, as in DistributedDataParallel.
    scaler: the loop's torch.amp.GradScaler; plans that do not update by this iteration's reduced gradient in step() need it.
    check: compare every op across ranks before it starts. Where a plan keeps parameters equal, compare them too, every 100
        iterations. The default is what GRADWEAVE_CHECK in the environment says.
    process_group: the ranks that train the same part of the model, where others train other parts. By default all ranks, or
        those that hold the same shards of a sharded model.
    plan_group: the ranks of all groups given as process_group=. They then have one plan, made for the slowest of them. They
        also meet in finish(), and an error of one ends all. By default each group has its own plan; ranks of a sharded model
        have one.
    workers_per_node: the number of ranks of a node, numbered one after another. Gradients are then reduced inside nodes first,
        then between them, and the plan is made for both levels of links, by schemes of exact gradients (docs/clusters.md).
        None: one level, or that of a given plan.
    exclude: names of parameters, or of modules, that are neither communicated nor broadcast.
    moments: what torch's Adam and AdamW divide by where ranks step on their own. "measured" is the second moment of the whole
        batch's gradient, for which ranks average a sample of their gradients, 32 KB in each eighth iteration; with islands=
        they exchange 4 KB with each average. "local" is that of this rank's part of the batch, as in torch.
    follow: whether to make a new plan when links or compute have changed in training, and to take it if it is better. Not
        under torch.compile, nor with plan=. None means yes with scheme `auto`, else no.
    tune: how many plans to try in training: of `auto` those that are predicted to be the fastest, of another scheme those of
        different sizes. The first is the one that would be in force anyway. The fastest stays. Each measurement takes 13
        iterations; the first plan and the best are measured three times. Plans follow the run only after the trials. Not
        under torch.compile.
    report: whether rank 0 logs (logger "gradweave") which plan comes into force, and at the end what was gained.
    dump: a folder, made if it is missing. When training can't go on, each rank writes a timeline there, rank-0.json (by its
        number), of what it did last and what it knew of the others. `gradweave diff` and `gradweave report` read it.
    islands: "host:port" of `gradweave meet`, where this job, an island, meets the others that train the same model
        (docs/islands.md).
    key: the file of the islands' key.
    island: this island's name, the same when it comes again. By default the host's name.
    listen: "host:port" at which others reach the first rank of a host; the next ranks have the ports that follow. By default
        any free port.
    between: options between islands (docs/islands.md). They are ranks (how many of each island exchange with others; by
        default all), average (parameters; or gradients, which is exact and has none of the options that follow), period (steps
        between two averages, at least), fragments (in how many parts the model is averaged, one after the other; by default
        one for each million parameters, 8 at most), compressor (int4, int8, int2, ef_signsgd or none), outer_momentum and
        outer_learning_rate.
    """

    scheme: str = "auto"
    plan: Plan | None = None
    links: GivenLink | Iterable[GivenLink] | None = None
    options: Mapping[str, object] | None = None
    _: KW_ONLY
    timeout: float = 300.0
    arrival_timeout: float = 300.0
    find_unused_parameters: bool | None = None
    warm_up: int = 3
    profile_iterations: int = 8
    broadcast: bool = True
    broadcast_buffers: bool = False
    scaler: torch.amp.GradScaler | None = None
    check: bool | None = None
    process_group: distributed.ProcessGroup | None = None
    plan_group: distributed.ProcessGroup | None = None
    workers_per_node: int | None = None
    exclude: Iterable[str] = ()
    moments: str = "measured"
    follow: bool | None = None
    tune: int = 0
    report: bool = True
    dump: str | os.PathLike[str] | None = None
    islands: str | None = None
    key: str | os.PathLike[str] | None = None
    island: str | None = None
    listen: str | None = None
    between: Mapping[str, object] | None = None

    def __post_init__(self):
        if isinstance(self.exclude, Iterable) and not isinstance(self.exclude, str):
            object.__setattr__(self, "exclude", tuple(self.exclude))  # an iterator can be read once

    def check_times(self):
        """Errors: InvalidInput."""
        for name in ("timeout", "arrival_timeout"):
            given = getattr(self, name)
            if not isinstance(given, numbers.Real) or not 0.001 <= given <= LONGEST_S:
                raise InvalidInput(f"gradweave.wrap: {name}={given!r}: give seconds, 0.001 to {LONGEST_S:g}")

    def check_ranges(self):
        """Errors: InvalidInput."""
        for name in ("warm_up", "profile_iterations"):
            given = getattr(self, name)
            if not isinstance(given, numbers.Integral) or given < 1:
                raise InvalidInput(f"gradweave.wrap: {name}={given!r}: give a whole number, at least 1")
        for name, kind, what in (("options", Mapping, "a dictionary"), ("between", Mapping, "a dictionary"),
                                 ("workers_per_node", numbers.Integral, "a whole number")):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise InvalidInput(f"gradweave.wrap: {name}={given!r}: give {what}")
        if self.scaler is not None and not hasattr(self.scaler, "is_enabled"):
            raise InvalidInput(f"gradweave.wrap: scaler={self.scaler!r}: give the loop's torch.amp.GradScaler")
        if self.follow and self.plan is not None:
            raise InvalidInput("gradweave.wrap: follow= makes new plans, and plan= gives one: leave one of them out")
        if self.moments not in moments.CHOICES:
            raise InvalidInput(f"gradweave.wrap: moments={self.moments!r}: give one of {', '.join(moments.CHOICES)}")
        if (self.islands is None) != (self.key is None):
            raise InvalidInput("gradweave.wrap: islands= and key= go together: the meeting point and the job's key, which "
                               "`gradweave meet --make-key FILE` makes")
        for name in ("island", "listen", "between") if self.islands is None else ():
            if getattr(self, name) is not None:
                raise InvalidInput(f"gradweave.wrap: {name}= needs islands= and key=: give them too, or leave it out")
        if not isinstance(self.exclude, tuple):
            raise InvalidInput(f"gradweave.wrap: exclude={self.exclude!r}: give a list of names")
        for left in self.exclude:
            if not isinstance(left, str):
                raise InvalidInput(f"gradweave.wrap: exclude= has a {type(left).__name__}: give names of parameters or "
                                   "modules")

    def links_of(self, job, device):
        """The job's links for parameters on `device`, not yet open. Errors: InvalidInput, OSError."""
        found = links_of(self.links, job, device)
        if self.plan is None:
            core.check_options(self.scheme, self.options)
            return found
        plan = self.given_plan
        # What is "auto" has become what the scheme chose.
        chosen = {name: value for name, value in core.texts_of(self.options).items() if value != "auto"}
        if self.scheme not in ("auto", plan.scheme) or not chosen.items() <= plan.options.items():
            raise InvalidInput(f"gradweave.wrap: scheme= and options= make a plan, and plan= gives one, of scheme "
                               f"'{plan.scheme}': leave out plan=, or the others")
        return renamed(found, [name for name in plan.links if name not in plan.links_inside])

    @property
    def of_node(self):
        """The ranks of a node; 1 of one level."""
        given = 1 if self.plan is None else self.given_plan.workers_per_node
        return self.workers_per_node or given

    def levels_of(self, links, job):
        """The job's links inside nodes and between them, not yet open, besides `links`; none of one level. Errors:
        InvalidInput."""
        if self.workers_per_node is not None and self.workers_per_node < 2:
            raise InvalidInput(f"gradweave.wrap: workers_per_node={self.workers_per_node}: give at least 2, or leave it out")
        if self.of_node == 1 or (job.size == 1 and self.plan is None):
            return []
        if job.several_groups:
            raise InvalidInput("gradweave.wrap: two levels of links need ranks that all train one whole model: leave out "
                               "workers_per_node, or train without plan_group and without shards")
        if job.size > 1 and (job.size % self.of_node or job.size == self.of_node):
            raise InvalidInput(f"gradweave.wrap: {job.size} ranks don't fill two or more nodes of {self.of_node}: give "
                               "another workers_per_node, or leave it out")
        if self.follow:
            raise InvalidInput("gradweave.wrap: plans over two levels of links can't follow the run: leave out follow or "
                               "workers_per_node")
        inside = [] if self.plan is None else self.given_plan.links_inside
        return over_levels(links, inside or ["inside"], job, self.of_node)

    def check_tuning(self, model):
        """Errors: InvalidInput for what can't be tuned."""
        if not self.tune:
            return
        if not isinstance(self.tune, int):
            raise InvalidInput(f"gradweave.wrap: tune={self.tune!r}: give a number of trials")
        if self.plan is not None:
            raise InvalidInput("gradweave.wrap: tune= searches for a plan, and plan= gives one: leave one of them out")
        core.check_tuning(self.scheme, self.options, self.tune)
        if compiling.is_compiled(model):
            raise InvalidInput(COMPILED)

    @property
    def slices(self):
        """Whether parts of tensors are surely stepped alone: by the plan that is given, or the scheme as it was asked for."""
        if self.plan is not None:
            return core.demands_of(self.given_plan)["slices"]
        return str((self.options or {}).get("slices")).lower() in ("on", "true")

    def check_runs(self, names, parameters, workers):
        """Refuses what the engine can't run of a scheme that was asked for by name, as far as its options tell before a
        profile. names, parameters: the model's. Errors: InvalidInput."""
        if self.plan is None:
            _native.check_runs(self.scheme, core.texts_of(self.options),
                               [(name, str(p.dtype).removeprefix("torch.")) for name, p in zip(names, parameters)],
                               workers, self.of_node if workers > 1 else 1, parameters[0].device)

    def check_scheme_in_island(self):
        """Refuses what ranks of an island can't run, as far as the scheme's name tells. Errors: InvalidInput."""
        if self.plan is not None:
            local = core.demands_of(self.given_plan)["local_steps"]
        else:
            local = any(row["name"] == self.scheme and row["consistency"] in ("local", "corrected") for row in core.schemes())
        if local:
            raise InvalidInput(f"gradweave.wrap: {LOCAL_IN_ISLAND}")

    def arguments(self):
        """{name: text}: what all ranks must have alike, apart from links and groups."""
        told = {field.name: getattr(self, field.name) for field in fields(self)
                if field.name not in ("links", "process_group", "plan_group", "plan", "scaler", "options", "exclude",
                                      "report", "dump", "key", "island", "listen")}
        told |= {"options": dict(self.options or {}), "exclude": sorted(self.exclude), "scaler": self.scales,
                 "check": self.checks}
        if self.plan is not None:
            told["plan"] = digest(self.given_plan.to_json())
        return {name: value if name == "plan" else repr(value) for name, value in told.items()}

    @functools.cached_property
    def given_plan(self):
        """The core.Plan of `plan`; None without one. Errors: InvalidInput."""
        return None if self.plan is None else plan_of(self.plan)

    @property
    def follows(self) -> bool:
        return self.plan is None and (self.scheme == "auto" if self.follow is None else self.follow)

    @property
    def checks(self) -> bool:
        """Errors: InvalidInput."""
        return switched_on("GRADWEAVE_CHECK") if self.check is None else self.check

    @property
    def scales(self) -> bool:
        """Whether the loop has a loss scale."""
        return self.scaler is not None and self.scaler.is_enabled()


def switched_on(variable: str) -> bool:
    """What the environment says of a switch; one that it doesn't name is off. Errors: InvalidInput."""
    said = os.environ.get(variable, "")
    for on, words in ((True, ("1", "true", "on")), (False, ("", "0", "false", "off"))):
        if said.strip().lower() in words:
            return on
    raise InvalidInput(f"{variable}={said!r} in the environment: give 1, true or on; or 0, false, off or nothing")


def plan_of(given: Plan) -> core.Plan:
    """The plan of a dictionary, a JSON text or a path. Errors: InvalidInput."""
    if isinstance(given, str) and given.lstrip().startswith("{"):
        return core.Plan.from_json(given)
    if isinstance(given, (str, os.PathLike)):
        path = os.fsdecode(given)
        return core.Plan.read("./-" if path == "-" else path)  # for the command "-" is standard input
    if isinstance(given, (core.Plan, dict)):
        return core.Plan(given)
    raise InvalidInput(f"plan= is of type {type(given).__name__}: give a core.Plan, a dictionary, a JSON text or a "
                       "path")


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
Given = TypeVar("Given", bound=torch.optim.Optimizer | Iterable[torch.optim.Optimizer])
_Job = Callable[[torch.nn.Module, Given, Settings], _Result]
_Spelled = Callable[Concatenate[torch.nn.Module, Given, _Arguments], _Result]
_Decorator = Callable[[_Job[Given, _Result]], _Spelled[Given, _Arguments, _Result]]


def spelled_as(settings: Callable[_Arguments, Settings]) -> _Decorator[Given, _Result, _Arguments]:
    """Gives a function of (model, optimizer, settings) the arguments of `settings` in place of the last."""
    def decorate(function):
        @functools.wraps(function)
        def call(model, optimizer, *arguments, **named):
            return function(model, optimizer, settings(*arguments, **named))

        signature = inspect.signature(function)
        own = list(signature.parameters.values())[:2]
        call.__doc__ = f"{function.__doc__}\n    {settings.__doc__}"
        call.__signature__ = signature.replace(parameters=[*own, *inspect.signature(settings).parameters.values()])
        return call
    return decorate
