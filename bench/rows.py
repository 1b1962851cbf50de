"""The rows of the table: every scheme of the registry, further options of some, and the peers."""

from gradweave import core
from gradweave.lab import methods

from peers import PEERS

# {row: coverage rate}: averages that arrive before the layer's next forward, as docs/choosing.md names them.
ON_TIME = {"dreamddp period=1 forward_overlap=only compressor=int4": 2.0,
           "dreamddp period=2 forward_overlap=only compressor=ef_signsgd": 16.0,
           "dreamddp period=3 forward_overlap=only compressor=ef_signsgd": 64.0}
# The same otherwise. `local_sgd` averages as often as those in the background through the same compressor, and waits;
# `dreamddp` hides them behind the backward, or behind the next forward.
MORE_ON_TIME = {"local_sgd period=1 compressor=int4": 2.0, "local_sgd period=3 compressor=ef_signsgd": 64.0,
                "dreamddp period=1 compressor=int4": 2.0, "dreamddp period=1 compressor=ef_signsgd": 16.0,
                "dreamddp forward_overlap=on compressor=ef_signsgd": 64.0,
                "dreamddp forward_overlap=only compressor=ef_signsgd": 64.0}

# Rows beside the schemes themselves. What the core, or the engine, refuses is left out with a note.
MORE = (
    "deft merge=sum", "deft correction=local", "ddp compressor=fp16", "ddp compressor=int8",
    "ddp compressor=power_sgd", "ddp compressor=power_sgd compressor_rank=1",
    "dear compressor=int8", "local_sgd period=2", "local_sgd compressor=int4", "delayed_averaging compressor=int8",
    "delayed_averaging compressor=int4", "delayed_averaging compressor=ef_signsgd", "delayed_averaging compressor=auto",
    "delayed_averaging compressor=int4 outer_momentum=0.5", "dreamddp compressor=int4", "partial_sgd compressor=int4",
    *ON_TIME, *MORE_ON_TIME)

# Whatever `auto` takes where the loss may change a little.
AUTO = "auto allow=exact+local+compressed"

# Compressed gradients beside those of MORE.
COMPRESSED = ("ddp compressor=int4", "ddp compressor=int2", "ddp compressor=random_k", "ddp compressor=top_k",
              "ddp compressor=dgc compressor_momentum=0")

# {row: coverage rate}: averages where Adam divides by the second moment of each worker's own part of the batch.
LOCAL_MOMENTS = {f"{method} moments=local": rate
                 for method, rate in {**ON_TIME, "delayed_averaging compressor=int4": 2.0}.items()}

# For accuracies alone, as fast as their like: Adam's second moment as each rank has it; the hook's first whole iterations.
ACCURACY_ONLY = (
    AUTO, *COMPRESSED, *LOCAL_MOMENTS,
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
    if peer := peers().get(name):
        return peer.period is not None
    method = methods.parse(name)
    whole = tuple(option for option in method.options if not option[0].startswith("compressor"))
    return methods.Method(method.scheme, whole).effect(core.schemes()) != "exact"
