"""One run of the driver: what goes wrong, where, in which job. Everything follows from the seed."""

import random
from dataclasses import dataclass

FAULTS = {
    "kill": "SIGKILL",
    "stop": "SIGSTOP, for good",
    "continue": "SIGSTOP, then SIGCONT: before the timeout or after it",
    "exception": "an error in the loop, or inside wrap(), step() or finish()",
    "exit": "sys.exit() there",
    "uneven": "one rank has fewer batches",
    "skip": "one rank leaves out one step(), or a whole iteration",
}
PHASES = ("wrap", "profile", "switch", "loop", "finish")
SCHEMES = ("ddp", "dear", "us_byte", "deft", "covap", "dreamddp", "delayed_averaging")
WARM_UP, PROFILED, ITERATIONS = 2, 3, 14
SWITCH = WARM_UP + PROFILED - 1  # the iteration whose step() puts the plan in force
MOMENTS = ("data", "forward", "backward", "gradients", "step", "end")  # of an iteration, in their order
TIMEOUT_S = 3.0
ARRIVAL_S = 8.0  # of all ranks in wrap(), so that hundreds of runs end soon
PAIRS = [(fault, phase) for phase in PHASES for fault in FAULTS if (fault, phase) != ("skip", "wrap")]


@dataclass(frozen=True)
class Case:
    seed: int
    fault: str
    phase: str
    scheme: str
    world_size: int
    victim: int
    iteration: int | None  # None: in wrap() or finish()
    moment: str            # of the iteration
    calls: int             # that wrap(), step() or finish() makes before the fault
    pause_s: float         # of "continue"
    managed: bool          # the loop is in `with gradweave.wrap(...)`
    emulated: bool         # an emulated link instead of a measured one
    fresh: bool            # ranks are interpreters of their own, which also end as such

    @property
    def recovers(self):
        """Whether nothing may come of it."""
        return self.fault == "continue" and self.pause_s < TIMEOUT_S

    @property
    def victim_goes_on(self):
        return self.fault in ("continue", "uneven", "skip")

    def __str__(self):
        where = "" if self.iteration is None else f" of iteration {self.iteration}, {self.moment}"
        inside = f" after {self.calls} calls" if self.moment == "step" or self.iteration is None else ""
        pause = f" for {self.pause_s:.1f} s" if self.fault == "continue" else ""
        return (f"seed {self.seed}: {self.fault}{pause} on rank {self.victim} of {self.world_size} in {self.phase}{where}"
                f"{inside}; {self.scheme}{', with' if self.managed else ''}{', emulated link' if self.emulated else ''}"
                f"{', fresh' if self.fresh else ''}")


def draw(seed):
    """The case of a seed. Consecutive seeds go through all pairs of fault and phase."""
    chance = random.Random(seed)
    fault, phase = PAIRS[seed % len(PAIRS)]
    world_size = chance.choice((2, 3, 4))
    iteration, moment = _place(fault, phase, chance)
    return Case(seed=seed, fault=fault, phase=phase, scheme=chance.choice(SCHEMES), world_size=world_size,
                victim=chance.randrange(world_size), iteration=iteration, moment=moment,
                calls=int(1.5 * 1.06 ** chance.randrange(100)), pause_s=chance.choice((0.3, 1.0, TIMEOUT_S + 6.5)),
                managed=chance.random() < 0.5, emulated=chance.random() < 0.75,
                fresh=chance.random() < (0.4 if fault in ("exception", "exit") else 0.1))


def _place(fault, phase, chance):
    if fault == "uneven":  # this iteration and all after it
        return {"wrap": 0, "profile": chance.randrange(1, SWITCH + 1), "switch": SWITCH + 1,
                "loop": chance.randrange(SWITCH + 2, ITERATIONS - 1), "finish": ITERATIONS - 1}[phase], "data"
    if fault == "skip":  # the step, or the whole iteration
        return {"profile": chance.randrange(SWITCH), "switch": SWITCH, "loop": chance.randrange(SWITCH + 1, ITERATIONS - 1),
                "finish": ITERATIONS - 1}[phase], chance.choice(("data", "gradients"))
    if phase in ("wrap", "finish"):
        return None, ""
    if phase == "switch":
        return SWITCH, "step"
    first, last = (0, SWITCH - 1) if phase == "profile" else (SWITCH + 1, ITERATIONS - 2)
    return chance.randint(first, last), chance.choice(MOMENTS)
