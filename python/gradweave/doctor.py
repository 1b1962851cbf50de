"""Checks an installation: what works, what doesn't, and what to do about it."""

import importlib
import importlib.util
import ipaddress
import os
from dataclasses import dataclass

import torch

from gradweave import ranks, releases

OK, WARNING, FAILED = "ok", "warning", "failed"


@dataclass(frozen=True)
class Finding:
    """One check's result. `remedy` is empty when there is nothing to do."""

    name: str
    state: str
    what: str
    remedy: str = ""


def examine():
    """All findings, in a fixed order. Changes nothing on the machine."""
    return [_torch(), _extension(), _gloo(), _interface(ranks.interfaces(), os.environ.get("GLOO_SOCKET_IFNAME")), _threads(),
            *_laboratory()]


def _failed(name, reason):
    """`reason`: "what: remedy"."""
    what, _, remedy = reason.partition(": ")
    return Finding(name, FAILED, what, remedy)


def _torch():
    version = torch.__version__
    if not torch.distributed.is_available():
        return Finding("torch", FAILED, f"{version} without torch.distributed", "install a build of PyTorch with it")
    if reason := releases.outside(version):
        return _failed("torch", reason)
    return Finding("torch", OK, version)


def _extension():
    built, running = releases.built_for(), torch.__version__
    if reason := releases.reason_against(running, built):
        return _failed("extension", reason)
    try:
        importlib.import_module("gradweave._native")
    except ImportError as error:
        return Finding("extension", FAILED, f"gradweave._native cannot be loaded: {error}",
                       f"build it again: {releases.BUILD}")
    return Finding("extension", OK, f"built for torch {built}, and torch {running} is installed")


def _gloo():
    if not torch.distributed.is_gloo_available():
        return Finding("gloo", WARNING, "this PyTorch has no Gloo", "the examples on CPU need a build with Gloo")
    return Finding("gloo", OK, "available")


def _interface(found, chosen):
    """Whether the interface that collectives will use exists and is not on a public address."""
    names = ", ".join(f"{name} {addresses[0]}" for name, addresses in found.items() if addresses) or "unknown"
    if not chosen:
        public = [name for name, addresses in found.items() if any(map(_is_public, addresses))]
        if public:
            return Finding("interfaces", WARNING, f"{names}; {public[0]} has a public address and nothing in "
                           "torch.distributed is encrypted or authenticated",
                           "set GLOO_SOCKET_IFNAME to a private interface, and block its ports from outside")
        return Finding("interfaces", OK, names)
    for name in chosen.split(","):
        if found and name not in found:
            return Finding("interfaces", FAILED, f"GLOO_SOCKET_IFNAME names '{name}', which is not up here",
                           f"choose among: {names}")
        if any(map(_is_public, found.get(name, []))):
            return Finding("interfaces", WARNING, f"{name} has a public address and nothing in torch.distributed is "
                           "encrypted or authenticated", "choose a private interface, and block its ports from outside")
    return Finding("interfaces", OK, f"{chosen} (of {names})")


def _is_public(address):
    return ipaddress.ip_address(address).is_global


def _threads():
    return Finding("threads", OK, f"each process computes on {torch.get_num_threads()} of {len(os.sched_getaffinity(0))} "
                   "CPUs; set OMP_NUM_THREADS to change it")


def _laboratory():
    """What the demo needs, which the installed package lacks."""
    if importlib.util.find_spec("gradweave.lab") is None:
        return []
    from gradweave.lab import fashion_mnist, hosts
    return [_hosts(hosts), _dataset(fashion_mnist)]


def _hosts(hosts):
    reason = hosts.unavailable_reason()
    if reason:
        return Finding("test hosts", WARNING, reason, "shaped links on one machine need it; emulated links do not")
    return Finding("test hosts", OK, "network namespaces with shaped links can be made")


def _dataset(fashion_mnist):
    try:
        count = len(fashion_mnist.load("test")[1])
    except fashion_mnist.DatasetMissing as error:
        return Finding("dataset", WARNING, str(error), "only the example jobs need it")
    return Finding("dataset", OK, f"Fashion-MNIST, {count} test images")
