"""What a run's ranks did, and whether that is what they should have done."""

import re
from dataclasses import dataclass

from case import ARRIVAL_S, OF_THE_LOOP, TIMEOUT_S, WRAPPING

OK = "ok"
LATE_S = 2.0    # after the timeout, an error is late
LEAVES_S = 45.0  # after its error, a rank has ended; a whole interpreter with torch takes a second of a busy processor

# In the order in which they are looked for: the first that applies is the verdict.
VERDICTS = (OK, "early", "hang", "abort", "leftover", "late", "false alarm", "silent divergence", "wrong suspect")


@dataclass
class Rank:
    """How one rank ended. `status`: exit status, None if the driver had to end it."""

    outcome: dict | None
    status: int | None = None
    left_s: float = 0.0  # from its outcome to its end

    @property
    def finished(self):
        return self.outcome is not None and self.outcome["ended"] == "finished"

    @property
    def raised(self):
        return self.outcome is not None and self.outcome["ended"] == "raised"


def judge(case, struck, fault_s, continued_s, ranks, slack_s):
    """(verdict, why). `struck`: the phase in which the fault happened. `fault_s` and `continued_s`: when the fault
    happened and when the victim was continued, None if never.
    `slack_s`: what a busy machine may take besides."""
    if fault_s is None:
        return "early", "; ".join(_says(number, rank) for number, rank in enumerate(ranks)) or "no fault"
    last_s = max(fault_s, continued_s or 0.0)
    limit_s = (ARRIVAL_S if struck in WRAPPING else TIMEOUT_S) + LATE_S + slack_s
    # The interpreter drops an error that is raised where a generator or an object ends: then nothing has happened.
    goes_on = case.victim_goes_on or all(ranks[number].finished for number in case.victims)
    awaited = [number for number in range(len(ranks)) if number not in case.victims or goes_on]
    for verdict, found in (
            ("hang", [n for n in awaited if ranks[n].outcome is None]),
            ("abort", [n for n in awaited if (ranks[n].status or 0) < 0]),
            ("leftover", [n for n in awaited if ranks[n].status is None or ranks[n].left_s > LEAVES_S + slack_s]),
            ("late", [n for n in awaited if ranks[n].raised and _waited(ranks[n], last_s) > limit_s])):
        if found:
            return verdict, "; ".join(_says(n, ranks[n]) + f" (waited {_waited(ranks[n], last_s):.1f} s, left after "
                                      f"{ranks[n].left_s:.1f} s)" for n in found)
    raised = [number for number in awaited if ranks[number].raised]
    if raised and case.recovers(max(case.pause_s, last_s - fault_s)):
        return "false alarm", _says(raised[0], ranks[raised[0]])
    if divergence := _divergence(struck, goes_on, ranks, awaited, raised):
        return "silent divergence", divergence
    for number in raised:
        survives = number not in case.victims or case.fault == "store"
        if survives and (wrong := _wrong_suspect(case, ranks[number].outcome["error"])):
            return "wrong suspect", f"{wrong}: {_says(number, ranks[number])}"
    return OK, "all finished" if not raised else "; ".join(_says(number, ranks[number]) for number in raised)


def _waited(rank, since_s):
    # A survivor goes on until it needs the victim: until an iteration begins, or an op or another wait ends, for the last
    # time.
    return 0.0 if rank.outcome is None else rank.outcome["time"] - max(since_s, rank.outcome["progress"])


def _divergence(struck, goes_on, ranks, awaited, raised):
    digests = {number: ranks[number].outcome["digest"] for number in awaited if ranks[number].finished}
    if len(set(digests.values())) > 1:
        return f"ranks that finished differ: { {number: digest[:8] for number, digest in digests.items()} }"
    # One that was lost in finish() may have been needed no more, by some of the others or by all.
    if digests and (raised or not goes_on) and struck not in ("finish", "close"):
        while_others = f", while {_says(raised[0], ranks[raised[0]])}" if raised else ""
        return f"rank {', '.join(map(str, digests))} finished{while_others}"
    return ""


def _wrong_suspect(case, error):
    """Why the ranks that an error names are not the right ones; "" if they are."""
    if case.fault == "store":
        return "" if "store" in error else "the store is not named"
    if case.fault == "loss":  # which all have
        return ""
    named, struck = suspects(error), set(case.victims)
    if not named & struck:
        return f"rank {', '.join(map(str, case.victims))} is not named"
    if case.fault not in OF_THE_LOOP and named - struck:  # those are said of all ranks that differ
        return f"besides rank {', '.join(map(str, case.victims))} are named {sorted(named - struck)}"
    return ""


def suspects(error):
    """The ranks that an error suspects. Where it only says which rank is where, or has what: those of the smallest groups."""
    text = re.sub(r"^rank \d+ reports:", "", error).split("Where ranks are:")[0]
    groups = [_numbers(found)
              for found in re.findall(r"\branks? (\d+(?:(?:-|, | and |, and | )\d+)*)", text.split("suspect:")[-1])]
    if "suspect:" in text or not groups:
        return set().union(*groups)
    smallest = min(map(len, groups))
    return set().union(*(group for group in groups if len(group) == smallest))


def _numbers(text):
    """{0, 1, 2, 4} of "0-2, 4"."""
    ranges = (re.split("-", part) for part in re.findall(r"\d+(?:-\d+)?", text))
    return {number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)}


def _says(number, rank):
    if rank.outcome is None:
        return f"rank {number} did not end"
    if rank.finished:
        return f"rank {number} finished"
    return f"rank {number} raised {rank.outcome['type']}: {rank.outcome['error']}"
