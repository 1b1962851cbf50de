"""What of a model a job communicates, and whether it still may."""

import torch

from gradweave._native import InvalidInput
from gradweave.agreement import digest
from gradweave.profiling import communicates
from gradweave.sharding import fsdp_groups, is_named, is_sharded, local_of, shards_of

DataParallel = torch.nn.parallel.DistributedDataParallel
INTEGRATIONS = "in Accelerate, the Trainer, Lightning and Fabric, gradweave.integrations does it all (docs/frameworks.md)"


class Scope:
    """The parameters and buffers of `model` apart from those that `exclude` names, or whose module it names. `tensors`: what
    this rank has of each parameter, its shard where it is sharded. `owners`: (module, its name for it, parameter). Errors:
    InvalidInput."""

    def __init__(self, model, exclude=()):
        self.model, self._exclude = model, tuple(exclude)
        everything = [name for name, _ in [*model.named_parameters(), *model.named_buffers()]]
        for left in self._exclude:
            if not any(name == left or name.startswith(left + ".") for name in everything):
                raise InvalidInput(f"gradweave.wrap: exclude names '{left}', and the model has no parameter or module of that "
                                   "name")
        self._check_kinds()
        self.names, self.parameters, self.excluded = [], [], []
        for name, parameter in model.named_parameters():
            if not communicates(parameter):
                continue
            if self._is_excluded(name):
                self.excluded.append(parameter)
                continue
            self.names.append(name)
            self.parameters.append(parameter)
        if not self.parameters:
            raise InvalidInput("gradweave.wrap: no parameter outside exclude= requires a gradient: unfreeze one, or exclude "
                               "fewer")
        self.shards = shards_of(self.parameters)
        self.tensors = [self.shards[place].tensor if place in self.shards else p for place, p in enumerate(self.parameters)]
        check_all_sharded(model, list(zip(self.names, self.parameters)))
        own = set(self.parameters)
        self.owners = [(module, name, p) for module in model.modules() for name, p in module._parameters.items() if p in own]
        self._to_broadcast = [local_of(p) for name, p in model.named_parameters() if not self._is_excluded(name)]
        self._frozen = [(name, p) for name, p in model.named_parameters()
                        if not p.requires_grad and not self._is_excluded(name)]

    def named_buffers(self):
        return {name: buffer for name, buffer in self.model.named_buffers() if not self._is_excluded(name)}

    def to_broadcast(self):
        return [tensor for tensor in self._to_broadcast if tensor.numel() > 0] + list(self.named_buffers().values())

    def arguments(self):
        """{what: text} of what ranks must have alike."""
        # Messages are in the order of memory, which strides of dimensions longer than 1 give.
        shapes = [f"{n} {tuple(p.shape)} {[stride for stride, size in zip(p.stride(), p.shape) if size > 1]} {p.dtype} "
                  f"{p.requires_grad} {p.placements if is_sharded(p) else ''}"
                  for n, p in self.model.named_parameters() if not self._is_excluded(n)]
        return {"parameters (names, shapes, strides, dtypes or which of them are frozen)": digest(shapes),
                "buffers": self.buffer_shapes()}

    def buffer_shapes(self):
        """A digest of what ranks must have alike of buffers."""
        return digest([f"{n} {tuple(b.shape)} {b.dtype}" for n, b in self.named_buffers().items()])

    def check_alone(self, first):
        """In a forward: whether another library communicates the model, too; more in the `first`. Errors: InvalidInput."""
        around = DataParallel._get_active_ddp_module()
        if around is not None and any(module is self.model for module in around.modules()):
            what = "DistributedDataParallel"
        elif first and (any(hasattr(p, "_fsdp_flattened") for p in self.parameters) or self._replaced()):
            what = "FullyShardedDataParallel, or something else that replaces parameters,"
        else:
            return
        raise InvalidInput(f"{what} was put around the model after gradweave.wrap(), and its gradients would be sent "
                           f"twice: use one of them alone; {INTEGRATIONS}, without wrap()")

    def check_frozen(self):
        check_frozen(self._frozen)

    def _check_kinds(self):
        for name, parameter in self.model.named_parameters():
            if torch.nn.parameter.is_lazy(parameter):
                raise InvalidInput(f"gradweave.wrap: parameter '{name}' has no shape yet; run one forward first")
        for name, module in self.model.named_modules():
            if isinstance(module, DataParallel) and not self._is_excluded(name):
                raise InvalidInput("gradweave.wrap: DistributedDataParallel communicates this model already: pass the one "
                                   f"inside, model.module, and call that; {INTEGRATIONS}")
            if getattr(module, "sparse", False) and isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
                if module.weight.requires_grad and not self._is_excluded(name + ".weight"):
                    raise InvalidInput(f"gradweave.wrap: '{name or type(module).__name__}' makes sparse gradients, which are "
                                       "not communicated; use sparse=False")

    def _replaced(self):
        now = {id(p) for module in self.model.modules() for p in module._parameters.values()}
        return any(id(p) not in now for p in self.parameters)

    def _is_excluded(self, name):
        return is_named(name, self._exclude)


def check_all_sharded(model, trained):
    """Of the parameters `trained`, [(name, parameter)], none is whole beside shards of fully_shard(), unless
    DistributedDataParallel has it. Errors: InvalidInput."""
    if not fsdp_groups(model) or not any(is_sharded(parameter) for _, parameter in trained):
        return
    reduced = {p for module in model.modules() if isinstance(module, DataParallel) for p in module.parameters()}
    for name, parameter in trained:
        if not is_sharded(parameter) and parameter not in reduced:
            raise InvalidInput(f"gradweave.wrap: parameter '{name}' is whole, while others are sharded by fully_shard(): "
                               "nobody reduces its gradient inside an island; shard the outermost module too, "
                               "fully_shard(model, mesh=...), or leave it to others with exclude=")


def check_frozen(frozen):
    """`frozen`: [(name, parameter)] of those that were in wrap(). Errors: InvalidInput."""
    for name, parameter in frozen:
        if parameter.requires_grad:
            raise InvalidInput(f"optimizer.step(): parameter '{name}' requires a gradient now, and was frozen in "
                               "gradweave.wrap(); call gradweave.finish(model), then model.gradweave.close(), then "
                               "wrap again")
