"""CUDA graphs are refused by name, wherever they can be known."""

import contextlib
from unittest import mock

import pytest
import torch
from torch import nn

import gradweave
import jobs
from models import batch, make_net


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@contextlib.contextmanager
def graphs_that_capture_nothing():
    from torch.cuda import graphs

    names = [(torch.cuda, name) for name in ("CUDAGraph", "graph", "Stream", "stream", "synchronize")]
    with contextlib.ExitStack() as patches:
        for owner, name in [*names, (graphs, "graph_pool_handle")]:
            patches.enter_context(mock.patch.object(owner, name, mock.MagicMock()))
        yield


def test_a_graphed_module_is_refused_by_its_name():
    model = make_net(0)
    with graphs_that_capture_nothing():  # torch's own function makes the module's forward
        torch.cuda.make_graphed_callables(model.wide, (torch.randn(2, 6 * 36, requires_grad=True),))
    with pytest.raises(gradweave.InvalidInput, match=r"module 'wide' is a CUDA graph of torch.cuda.make_graphed_callables"):
        gradweave.wrap(model, sgd(model), "ddp")


def refusals(rank):
    """What wrap() and then the forward say to each kind of graph."""
    import accelerator  # noqa: F401  makes the device

    found = {}

    def refused(what, model, device="sim", capture=False):
        """Wraps it and calls it once."""
        torch.sim.captures = capture == "wrap"
        try:
            wrapped, _ = gradweave.wrap(model, sgd(model), "ddp", report=False)
            torch.sim.captures = capture == "forward"
            try:
                nn.functional.cross_entropy(wrapped(batch(rank, 0)[0].to(device)), batch(rank, 0)[1].to(device)).backward()
            finally:
                wrapped.gradweave.close()
            found[what] = None
        except gradweave.InvalidInput as refusal:
            found[what] = str(refusal)
        finally:
            torch.sim.captures = False

    def in_place(mode):
        model = jobs.net_on("sim")
        model.conv.compile(mode=mode)
        return model

    refused("compiled", torch.compile(jobs.net_on("sim"), mode="reduce-overhead"))
    refused("compiled in place", in_place("max-autotune"))
    refused("on the processor", torch.compile(jobs.net_on("cpu"), mode="reduce-overhead"), "cpu")
    refused("plain", jobs.net_on("sim"))
    for moment in ("wrap", "forward"):
        refused(moment, jobs.net_on("sim"), capture=moment)
    return found


def test_captures_and_compiling_to_graphs_are_refused():
    found, = jobs.run(refusals, 1)
    assert found.pop("on the processor") is None and found.pop("plain") is None
    assert "the model is compiled to CUDA graphs" in found["compiled"]
    assert "module 'conv' is compiled to CUDA graphs" in found["compiled in place"]
    assert "gradweave.wrap is being captured into a CUDA graph" in found["wrap"]
    assert "the forward of a wrapped model is being captured into a CUDA graph" in found["forward"]
    assert all("train without CUDA graphs" in said for said in found.values())
