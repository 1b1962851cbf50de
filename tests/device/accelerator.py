"""The simulated accelerator in Python: importing this makes torch's device "sim" and its backend of process groups, "sim"."""

import contextlib
import importlib.util
import sys
import types
from pathlib import Path

import torch
from torch import distributed

_LIBRARY = Path(__file__).resolve().parents[2] / "build" / "tests" / "simulated_device.so"


def _load():
    if not _LIBRARY.exists():
        raise ImportError(f"{_LIBRARY} is missing: `cmake --build build --target simulated_device` makes it, "
                          "as `make test-runtime` does")
    spec = importlib.util.spec_from_file_location("simulated_device", _LIBRARY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _device_module():
    """What torch asks of a device's module."""
    module = types.ModuleType("torch.sim")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.is_initialized = lambda: True
    module._lazy_init = lambda: None  # without it torch 2.11 takes the device as idle
    module.device = lambda device: contextlib.nullcontext()
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    # What FSDP2 calls.
    module.Stream = lambda priority=0: torch.Stream(DEVICE)
    module.Event = lambda **options: torch.Event(DEVICE)
    module.stream = lambda stream: stream
    module.current_stream = lambda: torch.accelerator.current_stream()
    module._sleep = lambda cycles: native.spend_us(cycles / 1000)
    module.captures = False  # what tests say: nothing is captured here
    module.is_current_stream_capturing = lambda: module.captures
    return module


def _make_backend(store, rank, size, timeout):
    return native.make_collectives(distributed.ProcessGroupGloo(store, rank, size, timeout), rank, size)


torch.utils.rename_privateuse1_backend("sim")
DEVICE = torch.device("sim:0")
native = _load()
torch._register_device_module("sim", _device_module())
distributed.Backend.register_backend("sim", _make_backend, devices=["sim"])
