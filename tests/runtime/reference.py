"""What a plan means, written plainly: one rank of a slow synchronous loop, to compare the engine with.

Nothing overlaps. The collectives are the plan's, one after another, with the plan's block boundaries; a step of some
parameters is a full step with the other gradients set to None.
"""

import torch
from torch import distributed, nn

import compressors
import groups


class Reference:
    """Trains `model` with `optimizer` by `plan`, up to the first drain. Layers and tensors are the workload's. `after`: the
    reference of what was trained before. `optimizer` may be a function that makes it of a list of parameters: each block of a
    tensor that the plan steps in slices is one of its own."""

    def __init__(self, model, optimizer, plan, workload, after=None):
        self.model, self.plan = model, plan
        self.world = distributed.get_world_size()
        self.parameters = dict(model.named_parameters())
        self.blocks = plan["blocks"]
        self.pieces = self.stepped_alone()
        self.optimizer = optimizer if isinstance(optimizer, torch.optim.Optimizer) else optimizer(list(self.pieces.values()))
        self.between = {link["name"] for link in plan["links"] if link.get("level") == "between"}
        self.gradients = {}   # iteration -> tensor -> this rank's gradient, in memory order
        self.values = {}      # iteration -> tensor -> parameter after that iteration's end, in memory order
        self.results = {}     # (iteration, op) -> flat result
        self.residuals = {}
        self.n = 0
        self.end = None       # while draining: the first iteration that does not exist
        self.first = after.first + after.end if after else 0  # iterations of the run before this plan's first
        self.anchors = {name: flat(p, p.detach()).clone() for name, p in self.parameters.items()}
        self.momenta = after.momenta if after else {name: torch.zeros_like(a) for name, a in self.anchors.items()}
        self.rests = {}       # (compressor, blocks of an op) -> what second encodings have dropped of the sum
        self.overflowed = set()  # iterations in which some rank's gradient was not finite
        self.local = {self.blocks[b]["tensor"] for iteration in plan.get("prologue", []) + plan["period"]
                      for apply in iteration.get("applies", []) for b in apply["blocks"]
                      if apply["source"] == "local_gradient" or apply.get("correction") == "local"}

    def stepped_alone(self):
        """{name, or number of a block: what the optimizer steps}."""
        sliced = set()
        for iteration in self.plan.get("prologue", []) + self.plan["period"]:
            for apply in iteration.get("applies", []):
                names = [self.blocks[b]["tensor"] for b in apply["blocks"] if apply["source"] != "averaged_parameter"]
                sliced |= {n for n in names if names.count(n) < sum(block["tensor"] == n for block in self.blocks)}
        return {n: p for n, p in self.parameters.items() if n not in sliced} | {
            number: flat(p, p.detach())[block["begin"]:block["end"]] for number, block in enumerate(self.blocks)
            for n, p in self.parameters.items() if n == block["tensor"] and n in sliced}

    # ---- the plan

    def iteration(self, n):
        prologue, period = self.plan.get("prologue", []), self.plan["period"]
        return prologue[n] if n < len(prologue) else period[(n - len(prologue)) % len(period)]

    def existing(self, n, merges):
        return [n + m for m in merges if n + m >= 0 and (self.end is None or n + m < self.end)]

    def listed(self, n, merges):
        return [n + m for m in merges if n + m >= 0]

    # ---- one iteration

    def train_step(self, x, y, factor=1.0, overflow=False, clip=None):
        """`factor` multiplies this rank's loss; `overflow`: some rank's gradient is not finite; `clip`: the norm to which this
        rank's gradient is clipped."""
        if overflow:
            self.overflowed.add(self.n)
        self.run_ops(lambda op: max(op["merges"]) < 0)
        self.run_applies("forward_start")
        for parameter in self.parameters.values():
            parameter.grad = None
        (nn.functional.cross_entropy(self.model(x), y) * factor).backward()
        if clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.gradients[self.n] = {name: flat(p, p.grad).clone() for name, p in self.parameters.items()}
        self.compensate()
        self.run_applies("backward_end")
        self.run_ops(lambda op: op["payload"] == "gradient" and max(op["merges"]) == 0)
        self.end_iteration()

    def end_iteration(self):
        local = {name: p.grad for name, p in self.parameters.items()}
        self.at_end(local)
        self.read()
        self.run_ops(lambda op: op["payload"] == "parameter" and max(op["merges"]) == 0)
        self.n += 1

    def read(self):
        self.values[self.n] = {name: flat(p, p.detach()).clone() for name, p in self.parameters.items()}

    def compensate(self):
        """Error feedback: what is dropped is added to a later gradient."""
        rule = self.plan.get("residual")
        if not isinstance(rule, dict):
            return
        coefficient = min(rule["cap"], rule["initial"] + self.n // rule["every"] * rule["step"])
        before = dict(self.residuals)
        dropped = self.iteration(self.n).get("dropped", [])
        for number, block in enumerate(self.blocks):
            part = self.gradients[self.n][block["tensor"]][block["begin"]:block["end"]]
            if number in self.residuals:
                part.copy_(part.add(self.residuals.pop(number), alpha=coefficient))
            if number in dropped:
                self.residuals[number] = part.clone()
        if self.n in self.overflowed:
            self.residuals = before

    # ---- collectives

    def run_ops(self, chosen):
        for number, op in enumerate(self.iteration(self.n).get("ops", [])):
            op = {"payload": "gradient", "collective": "all_reduce", **op}
            merges = self.existing(self.n, op["merges"])
            if merges and chosen(op) and (self.n, number) not in self.results:
                self.results[self.n, number] = self.run_op(op, merges)

    def run_op(self, op, merges):
        if not self.ends(op):
            return None  # the last step does the whole
        if op["payload"] == "parameter":
            own = torch.cat([self.part(self.values[merges[0]], b) for b in op["blocks"]])
            if self.anchored(op):
                own = own - torch.cat([self.part(self.anchors, b) for b in op["blocks"]])
            if "compression" in op:
                return self.run_compressed(op, own)
            result = own.clone()
            distributed.all_reduce(result)
            return result, own
        listed = len(self.listed(self.n, op["merges"]))
        keep = self.corrected(op)
        scale = 1.0 / self.world
        if self.plan.get("merge") == "mean" and listed > 1 and not keep:
            scale = 1.0 / (self.world * listed)
        result = own = None
        for m in merges:
            gradient = torch.cat([self.part(self.gradients[m], b) for b in op["blocks"]])
            own = gradient.clone() if own is None else own.add_(gradient)
            result = gradient * scale if result is None else result.add_(gradient, alpha=scale)
        if self.plan.get("merge") == "mean" and len(merges) < listed and not keep:
            result.mul_(listed / len(merges))
        return summed(result, self.plan.get("workers_per_node", 1)), own

    def ends(self, op):
        """Whether no other step goes on with what the op brings."""
        return op.get("collective") != "reduce_scatter" and op["link"] not in self.between

    def anchored(self, op):
        return "compression" in op or self.plan.get("outer") is not None

    def run_compressed(self, op, gain):
        """What every rank's message decodes to, summed; with more than two ranks the sum is encoded again, in shards."""
        name, front = op["compression"]["name"], op["blocks"][0]

        def key(rank, stage):
            return groups.random_key(rank, self.first + self.n, front, stage)

        if name == "top_k":
            codec = compressors.make(op["compression"])
            result = codec.sum(gain, front, self.first + self.n, [])
            return result, gain - codec.left
        own = groups.decoded(name, gain, key(distributed.get_rank(), 0))
        each = [torch.empty_like(own) for _ in range(self.world)]
        distributed.all_gather(each, own)
        if self.world <= 2:
            return sum(each, torch.zeros_like(own)), own
        rest = self.rests.setdefault((name, *op["blocks"]), torch.zeros_like(own))
        for one in each:
            rest += one
        result = torch.zeros_like(own)
        for rank, shard in enumerate(groups.shards(len(own), self.world)):
            result[shard] = groups.decoded(name, rest[shard], key(rank, 1), shard.start // groups.GROUP)
        rest -= result
        return result, own

    def corrected(self, op):
        return any(apply.get("correction") == "local" for iteration in self.plan.get("prologue", []) + self.plan["period"]
                   for apply in iteration.get("applies", []))

    def part(self, tensors, number):
        block = self.blocks[number]
        return tensors[block["tensor"]][block["begin"]:block["end"]]

    def delivered(self, apply, number):
        """(result, own, op) of one block of an apply."""
        want = self.listed(self.n, apply["merges"])
        parameter = apply["source"] == "averaged_parameter"
        for n in range(self.n, -1, -1):
            for index, op in enumerate(self.iteration(n).get("ops", [])):
                if ((op.get("payload", "gradient") == "parameter") != parameter or number not in op["blocks"]
                        or not self.ends(op) or self.listed(n, op["merges"]) != want):
                    continue
                begin = sum(self.blocks[b]["end"] - self.blocks[b]["begin"] for b in op["blocks"][:op["blocks"].index(number)])
                length = self.blocks[number]["end"] - self.blocks[number]["begin"]
                result, own = self.results[n, index]
                return result[begin:begin + length], own[begin:begin + length], op
        raise AssertionError(f"nothing delivers block {number} for {apply}")

    # ---- applies

    def applies(self, point):
        for apply in self.iteration(self.n).get("applies", []):
            if apply["at"]["point"] != point or not self.existing(self.n, apply["merges"]):
                continue
            if self.end is not None and apply["source"] == "local_gradient":
                continue
            local = apply["source"] == "local_gradient" or apply.get("correction") == "local"
            if apply["source"] != "averaged_parameter" and self.spoilt(apply) and (
                    not local or self.n in self.overflowed or self.end is not None):
                continue
            yield apply

    def spoilt(self, apply):
        return bool(self.overflowed & set(self.existing(self.n, apply["merges"])))

    def run_applies(self, point):
        order = sorted(self.applies(point), key=lambda a: a["at"]["layer"], reverse=point == "backward_end")
        for apply in order:
            if apply["source"] == "averaged_parameter":
                self.average(apply)
            elif apply["source"] == "local_gradient":
                self.step({self.blocks[b]["tensor"]: self.parameters[self.blocks[b]["tensor"]].grad for b in apply["blocks"]},
                          apply["blocks"])
            else:
                self.step(self.reduced(apply, {}), apply["blocks"])
        # Parameter ops read after a local step in the backward too; nothing else changes these before the iteration ends.

    def at_end(self, local):
        stepped, blocks = {}, set()
        for apply in self.applies("iteration_end"):
            if apply["source"] == "averaged_parameter":
                self.step(stepped, blocks)
                stepped, blocks = {}, set()
                if self.end is None and apply["merges"] == [0]:  # used where it is read
                    self.read()
                    self.run_ops(lambda op: op["payload"] == "parameter" and op["merges"] == [0]
                                 and set(op["blocks"]) & set(apply["blocks"]))
                self.average(apply)
            elif apply["source"] == "local_gradient":
                for b in apply["blocks"]:
                    name = self.blocks[b]["tensor"]
                    stepped.setdefault(name, local[name])
            else:
                stepped.update(self.reduced(apply, stepped, local))
            if apply["source"] != "averaged_parameter":
                blocks |= set(apply["blocks"])
        self.step(stepped, blocks)

    def reduced(self, apply, before, local=None):
        gradients = {}
        keep = apply.get("correction") == "local"
        for b in apply["blocks"]:
            block, parameter = self.blocks[b], self.parameters[self.blocks[b]["tensor"]]
            name = block["tensor"]
            if name not in gradients:
                gradients[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                if name in before:
                    gradients[name].copy_(before[name])
                elif keep and self.end is None and self.n not in self.overflowed:
                    gradients[name].copy_(local[name])
            if self.spoilt(apply):
                continue
            result, own, _ = self.delivered(apply, b)
            target = flat(parameter, gradients[name])[block["begin"]:block["end"]]
            if keep:
                result = result - own
            if keep and self.end is None or name in before:
                target.add_(result)
            else:
                target.copy_(result)
        return gradients

    def step(self, gradients, blocks):
        """Of tensors that are stepped in slices, those of `blocks`."""
        if not gradients:
            return
        kept = {name: p.grad for name, p in self.parameters.items()}
        for key, piece in self.pieces.items():
            if key in self.parameters:
                piece.grad = gradients.get(key)
                continue
            whole = gradients.get(self.blocks[key]["tensor"]) if key in blocks else None
            parameter = self.parameters[self.blocks[key]["tensor"]]
            piece.grad = None if whole is None else flat(parameter, whole)[self.blocks[key]["begin"]:self.blocks[key]["end"]]
        self.optimizer.step()
        for name, p in self.parameters.items():
            p.grad = kept[name]

    def average(self, apply):
        for b in apply["blocks"]:
            block, parameter = self.blocks[b], self.parameters[self.blocks[b]["tensor"]]
            result, own, op = self.delivered(apply, b)
            target = flat(parameter, parameter.detach())[block["begin"]:block["end"]]
            if self.anchored(op):
                step = result * (1.0 / self.world)
                if self.plan.get("outer") is not None:
                    momentum, rate = self.plan["outer"]["momentum"], self.plan["outer"]["learning_rate"]
                    speed = self.part(self.momenta, b)
                    speed.mul_(momentum).add_(step)
                    step = (step + speed * momentum) * rate
                target.add_(step - own)
                self.part(self.anchors, b).add_(step)
            elif apply.get("mode") == "correct":
                target.add_((result - own * self.world) * (1.0 / self.world))
            else:
                target.copy_(result * (1.0 / self.world))

    # ---- drain

    def drain(self):
        self.end = self.n
        for p in self.parameters.values():
            p.grad = None
        for _ in range(2 * (len(self.plan.get("prologue", [])) + len(self.plan["period"])) + 8):
            self.run_ops(lambda op: True)
            self.run_applies("forward_start")
            self.run_applies("backward_end")
            self.at_end({})
            self.n += 1
        for (_, *blocks), rest in self.rests.items():
            shard = groups.shards(len(rest), self.world)[distributed.get_rank()]
            kept = torch.zeros_like(rest)
            kept[shard] = rest[shard]
            for b, part in zip(blocks, kept.split([self.blocks[b]["end"] - self.blocks[b]["begin"] for b in blocks])):
                parameter = self.parameters[self.blocks[b]["tensor"]]
                flat(parameter, parameter.detach())[self.blocks[b]["begin"]:self.blocks[b]["end"]].add_(part)
        for name, parameter in self.parameters.items():
            if name in self.local:
                value = flat(parameter, parameter.detach()) * (1.0 / self.world)
                distributed.all_reduce(value)
                flat(parameter, parameter.detach()).copy_(value)


def summed(values, workers_per_node):
    """Over all ranks: first those of a node, then nodes."""
    if workers_per_node == 1:
        distributed.all_reduce(values)
        return values
    each = [torch.empty_like(values) for _ in range(distributed.get_world_size())]
    distributed.all_gather(each, values)
    of_nodes = [sum(each[first + 1:first + workers_per_node], each[first]) for first in range(0, len(each), workers_per_node)]
    return sum(of_nodes[1:], of_nodes[0])


def flat(parameter, tensor):
    """`tensor` in the parameter's memory order, one-dimensional."""
    if tensor.stride() != parameter.stride():
        tensor = torch.empty_like(parameter, memory_format=torch.preserve_format).copy_(tensor)
    return tensor.as_strided((parameter.numel(),), (1,))
