"""One run of the driver: what goes wrong, where, in which job. Everything follows from the seed."""

import random
from dataclasses import dataclass

from phases import PHASES

FAULTS = {
    "kill": "SIGKILL",
    "terminate": "SIGTERM",
    "stop": "SIGSTOP, for good",
    "pause": "SIGSTOP, then SIGCONT: before the timeout or after it",
    "interrupt": "SIGINT: KeyboardInterrupt",
    "exception": "an error",
    "lives on": "an error that the rank's program catches: its process stays, and does nothing more",
    "exit": "sys.exit()",
    "two": "two ranks are killed",
    "fork": "a child is forked, which ends as an interpreter does",
    "store": "the store is lost, which is in a process of its own",
    "uneven": "one rank has fewer batches",
    "skip": "one rank leaves out one step(), or a whole iteration",
    "loss": "from there on packets between all ranks are lost at random; only if asked for: it needs root and iptables",
}
LOSSES = (0.02, 0.05, 0.1, 0.2, 0.3)  # of all packets
SIGNALLED = ("kill", "terminate", "stop", "pause", "two", "store")  # may also strike in the middle of a call
OF_THE_LOOP = ("uneven", "skip")
SCHEMES = ("ddp", "dear", "us_byte", "deft", "covap", "dreamddp", "delayed_averaging")
TUNED = ("ddp", "dear", "us_byte")  # schemes that have what is tuned
WARM_UP, PROFILED, ITERATIONS = 2, 3, 14
SWITCH = WARM_UP + PROFILED - 1  # the iteration whose step() puts the plan in force
LONGER = 46  # iterations of a job that follows or tunes
TIMEOUT_S = 3.0
ARRIVAL_S = 8.0  # of all ranks in wrap(), so that hundreds of runs end soon
WITH_TWO_MODELS = ("warm-up", "profile", "switch", "training", "finish", "close")
WRAPPING = ("arrival", "groups", "broadcast", "wrap")


@dataclass(frozen=True)
class Case:
    seed: int
    fault: str
    phase: str
    scheme: str
    world_size: int
    victims: tuple[int, ...]
    share: float           # of the phase's calls that are made before
    delay_s: float         # from that call on, for what may strike in its middle
    pause_s: float         # of "pause"
    iteration: int | None  # of "uneven" and "skip"
    moment: str            # of that iteration
    models: int            # wrapped in each process, which train in turns; the fault is in the first
    managed: bool          # the loop is in `with gradweave.wrap(...)`
    emulated: bool         # an emulated link instead of a measured one
    fresh: bool            # ranks are interpreters of their own, which also end as such
    loss: float = 0.0      # share of the packets

    @property
    def victim(self):
        return self.victims[0]

    @property
    def iterations(self):
        return LONGER if self.phase in ("following", "tuning") else ITERATIONS

    def recovers(self, paused_s):
        """Whether nothing may come of it. `paused_s`: how long a pause was; the driver of a busy machine may end it late."""
        return self.fault == "fork" or (self.fault == "pause" and paused_s < TIMEOUT_S)

    @property
    def victim_goes_on(self):
        return self.fault in ("pause", "fork", "store", "uneven", "skip", "loss")

    @property
    def kind(self):
        """What the calls of a phase depend on."""
        return f"{self.scheme}{' ' + self.phase if self.iterations == LONGER else ''}"

    def __str__(self):
        where = f"{self.share:.0%} of it" if self.iteration is None else f"iteration {self.iteration}, {self.moment}"
        later = f" and {1000 * self.delay_s:.0f} ms" if self.delay_s else ""
        pause = f" for {self.pause_s:.1f} s" if self.fault == "pause" else f" of {self.loss:.0%}" if self.loss else ""
        return (f"seed {self.seed}: {self.fault}{pause} on rank {', '.join(map(str, self.victims))} of {self.world_size} in "
                f"{self.phase}, {where}{later}; {self.scheme}{', two models' if self.models > 1 else ''}"
                f"{', with' if self.managed else ''}{', emulated link' if self.emulated else ''}"
                f"{', fresh' if self.fresh else ''}")


def draw(seed, phases=PHASES, of=tuple(fault for fault in FAULTS if fault != "loss")):
    """The case of a seed: first one of `phases`, then a fault `of` these, then a place in the phase, all evenly."""
    chance = random.Random(seed)
    phase = chance.choice(phases)
    faults = [fault for fault in of if fault not in OF_THE_LOOP or phase in ("warm-up", "profile", "switch", "training")]
    fault = chance.choice(faults)
    world_size = chance.choice((3, 4) if fault == "two" else (2, 3, 4))
    victims = tuple(chance.sample(range(world_size), 2 if fault == "two" else 1))
    iteration, moment = _of_the_loop(phase, chance) if fault in OF_THE_LOOP else (None, "")
    if fault == "uneven":
        moment = "data"
    delay_s = chance.choice((0.0, chance.uniform(0, 0.05))) if fault in SIGNALLED else 0.0
    return Case(seed=seed, fault=fault, phase=phase, scheme=chance.choice(TUNED if phase == "tuning" else SCHEMES),
                world_size=world_size, victims=victims, share=chance.random(), delay_s=delay_s,
                pause_s=chance.choice((0.3, 1.0, TIMEOUT_S - 1.0, TIMEOUT_S + 6.5)), iteration=iteration, moment=moment,
                models=2 if phase in WITH_TWO_MODELS and chance.random() < 0.2 else 1, managed=chance.random() < 0.5,
                emulated=chance.random() < 0.75,
                fresh=chance.random() < {"exception": 0.4, "exit": 0.4, "loss": 1.0}.get(fault, 0.1),
                loss=chance.choice(LOSSES) if fault == "loss" else 0.0)


def _of_the_loop(phase, chance):
    return {"warm-up": chance.randrange(1, WARM_UP), "profile": chance.randrange(WARM_UP, SWITCH),
            "switch": SWITCH}.get(phase, chance.randrange(SWITCH + 1, ITERATIONS)), chance.choice(("data", "gradients"))
