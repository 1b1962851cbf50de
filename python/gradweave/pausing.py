"""Time that passes on an accelerator's stream, for releases of plans that have a delay."""

from collections.abc import Callable

import torch

CYCLES = 1_000_000


def pause_of(device: torch.device) -> Callable[[int], None] | None:
    """What lets so many nanoseconds pass on the current stream of `device`, while the host goes on; None where torch has
    nothing that does. The host waits for the device once, to learn how fast its clock is."""
    sleep = None if device.type == "cpu" else getattr(torch.get_device_module(device), "_sleep", None)
    if sleep is None:
        return None
    begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    sleep(1)  # the first of a process loads what it runs
    begin.record()
    sleep(CYCLES)
    end.record()
    end.synchronize()
    cycles_per_ns = CYCLES / (1e6 * begin.elapsed_time(end))
    return lambda ns: sleep(round(cycles_per_ns * ns))
