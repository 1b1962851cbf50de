"""Graphs of an accelerator (CUDA graphs), which replay what the host has launched without the host: the engine, which
launches a plan's ops beside it, would stand still."""

import torch

from gradweave import _native

_REMEDY = ("a graph replays kernels without the host, which hands gradients over and launches the plan's ops: train "
           "without CUDA graphs; torch.compile without mode='reduce-overhead' saves launches too")


def capturing(device):
    """What tells whether the device's current stream is being captured; None where streams can't be."""
    return None if device.type == "cpu" else getattr(torch.get_device_module(device), "is_current_stream_capturing", None)


def refuse_capture(is_capturing, what):
    """`what`: is being captured. Errors: InvalidInput."""
    if is_capturing is not None and is_capturing():
        raise _native.InvalidInput(f"{what} is being captured into a CUDA graph: {_REMEDY}")


def refuse_graphed(model, device):
    """Errors: InvalidInput for a model of which a part is a graph, or will be compiled to some, as far as torch tells."""
    for name, module in model.named_modules():
        part = f"module '{name}'" if name else "the model"
        forward = vars(module).get("forward")
        if getattr(forward, "__module__", None) == "torch.cuda.graphs":
            raise _native.InvalidInput(f"{part} is a CUDA graph of torch.cuda.make_graphed_callables(): {_REMEDY}")
        if device.type != "cpu" and any(map(_has_graphs, (module, module._compiled_call_impl))):
            raise _native.InvalidInput(f"{part} is compiled to CUDA graphs, as mode='reduce-overhead' and "
                                       f"'max-autotune' do: {_REMEDY}")


def _has_graphs(compiled):
    """Whether torch.compile() was told to use graphs; not, where that can't be known."""
    settings = getattr(compiled, "get_compiler_config", None) if compiled is not None else None
    return bool(settings and (settings() or {}).get("triton.cudagraphs"))
