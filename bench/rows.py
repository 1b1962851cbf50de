"""The rows of the table: every scheme of the registry, further options of some, and the peers."""

from gradweave import core
from gradweave.lab import methods

from peers import PEERS

# Rows beside the schemes themselves. What the core, or the engine, refuses is left out with a note.
MORE = (
    "deft merge=sum", "deft correction=local", "ddp compressor=fp16", "ddp compressor=int8",
    "ddp compressor=power_sgd", "ddp compressor=power_sgd compressor_rank=1",
    "dear compressor=int8", "local_sgd period=2", "local_sgd compressor=int4", "delayed_averaging compressor=int8",
    "delayed_averaging compressor=int4", "delayed_averaging compressor=ef_signsgd", "delayed_averaging compressor=auto",
    "delayed_averaging compressor=int4 outer_momentum=0.5", "dreamddp compressor=int4", "partial_sgd compressor=int4")

# For accuracies alone, as fast as their like: Adam's second moment as each rank has it; the hook's first whole iterations.
ACCURACY_ONLY = (
    "delayed_averaging moments=local", "deft correction=local moments=local", "local_sgd period=2 moments=local",
    "ddp compressor=power_sgd compressor_rank=1 compressor_warm_up=3")


def planned(more=MORE):
    """{name: Method} of all rows that Gradweave trains, in the order of the registry."""
    names = [scheme["name"] for scheme in core.schemes()]
    return {method.name: method for method in map(methods.parse, [*names, *more])}


def peers():
    """{name: Peer} of the rows that it is compared with, besides DistributedDataParallel as it comes and tuned."""
    return {peer.name: peer for peer in PEERS}


def is_exact(name):
    """Whether training by the row gives the same bits as DistributedDataParallel with two workers."""
    return name in planned() and planned()[name].effect(core.schemes()) == "exact"


def depends_on_rate(name):
    """Whether the coverage rate decides what the row trains; else each iteration applies all of its gradients, at any rate."""
    peer = peers().get(name)
    return peer.period is not None if peer else not is_exact(name.split()[0])
