"""What each compressor does to the messages of some blocks, written plainly: whole tensors, no wire format."""

import math

import torch
from torch import distributed

import groups

MASK = (1 << 64) - 1


def mixed(a, b):
    return groups.mixed((a + 0x9E3779B97F4A7C15 * b) & MASK)


def gathered(tensor):
    every = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, tensor.contiguous())
    return every


def in_order(tensors):
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def kept(message, density):
    return min(message.numel(), math.ceil(density * message.numel()))


def largest(values, count):
    return values.abs().topk(count).indices


def only(values, places):
    result = torch.zeros_like(values)
    result[places] = values[places]
    return result


class Codec:
    """`number` and `iteration` of a message; `shapes` of its blocks: (elements, rows, columns). `left` is in a message's
    unit: a rank's share of the mean."""

    def __init__(self, **parameters):
        self.set = parameters
        self.left = 0

    def sum(self, message, number, iteration, shapes):
        message = message + self.left
        result, sent = self.exchange(message, number, iteration, shapes)
        self.left = message - sent
        return result


class Cast(Codec):
    def sum(self, message, number, iteration, shapes):
        return in_order([part.float() for part in gathered(message.to(self.dtype))]).to(self.dtype).float()


class Fp16(Cast):
    dtype = torch.float16


class Bf16(Cast):
    dtype = torch.bfloat16


class TopK(Codec):
    def exchange(self, message, number, iteration, shapes):
        sent = only(message, largest(message, kept(message, self.set["density"])))
        return in_order(gathered(sent)), sent


class Dgc(Codec):
    velocity = None

    def sum(self, message, number, iteration, shapes):
        world = distributed.get_world_size()
        if self.set["clip"]:
            message = message * (message.norm().reciprocal() * (self.set["clip"] / math.sqrt(world) / world)).clamp(max=1)
        if self.velocity is None:
            self.velocity = message.clone()
        else:
            self.velocity = torch.add(message, self.velocity, alpha=self.set["momentum"])
        left = self.velocity + self.left
        density = self.set["density"]
        if iteration < self.set["warm_up"]:
            stages = math.ceil(math.log(density) / math.log(0.25)) - 1
            density = max(density, 0.25 ** (1 + iteration * stages // self.set["warm_up"]))
        places = largest(left, kept(left, density))
        sent = only(left, places)
        left[places] = 0
        self.velocity[places] = 0
        self.left = left
        return in_order(gathered(sent))


class RandomK(Codec):
    def exchange(self, message, number, iteration, shapes):
        count, seed = kept(message, self.set["density"]), mixed(number, iteration)
        edges = [message.numel() * i // count for i in range(count + 1)]
        places = torch.tensor([edges[i] + mixed(seed, i) % (edges[i + 1] - edges[i]) for i in range(count)])
        values = message[places]
        distributed.all_reduce(values)
        result = torch.zeros_like(message)
        result[places] = values
        return result, only(message, places)


class EfSignSgd(Codec):
    def exchange(self, message, number, iteration, shapes):
        sent = torch.where(message.signbit(), -message.abs().mean(), message.abs().mean())
        return in_order(gathered(sent)), sent


class Quantized(Codec):
    """With more than two ranks the sum is encoded again, in shards; what that drops is left behind by the shard's rank."""

    rest = 0  # of sums of halves

    def sum(self, message, number, iteration, shapes):
        world, own = distributed.get_world_size(), distributed.get_rank()
        message = message + self.left
        sent = groups.decoded(self.name, message, groups.random_key(own, iteration, number, 0))
        self.left = message - sent
        total = in_order([torch.zeros_like(sent), *gathered(sent)])
        if world <= 2:
            return total
        result = torch.zeros_like(total)
        for rank, shard in enumerate(groups.shards(len(total), world)):
            result[shard] = groups.decoded(self.name, total[shard], groups.random_key(rank, iteration, number, 1),
                                           shard.start // groups.GROUP)
            if rank == own:
                self.left[shard] += total[shard] - result[shard]
        return result


    def sum_of_halves(self, message, number, scattered, gathers):
        """A reduce-scatter in one iteration and an all-gather in another: each rank's part is encoded by itself, and what
        encoding its sum drops is kept for the next sum."""
        world, own = distributed.get_world_size(), distributed.get_rank()
        message = message + self.left
        parts = [slice(len(message) * rank // world, len(message) * (rank + 1) // world) for rank in range(world)]
        each = -(-(-(-len(message) // world)) // groups.GROUP)  # groups of the longest
        key = groups.random_key(own, scattered, number, 0)
        sent = torch.cat([groups.decoded(self.name, message[part], key, rank * each) for rank, part in enumerate(parts)])
        self.left = message - sent
        total = in_order([torch.zeros_like(sent), *gathered(sent)]) + self.rest
        mine = torch.zeros_like(total)
        mine[parts[own]] = groups.decoded(self.name, total[parts[own]], groups.random_key(own, gathers, number, 1), own * each)
        self.rest = torch.zeros_like(total)
        self.rest[parts[own]] = (total - mine)[parts[own]]
        return in_order(gathered(mine))


class Int8(Quantized):
    name = "int8"


class Int4(Quantized):
    name = "int4"


class Int2(Quantized):
    name = "int2"


class PowerSgd(Codec):
    basis = None

    def exchange(self, message, number, iteration, shapes):
        if iteration < self.set["warm_up"]:
            return in_order(gathered(message)), message
        world = distributed.get_world_size()
        sizes = [0 if rank * (rows + columns) >= rows * columns else columns * rank
                 for _, rows, columns in shapes for rank in [min(self.set["rank"], rows, columns)]]
        if self.basis is None:
            seed = mixed(number, iteration)
            numbers = [((mixed(seed, i) >> 40) - (1 << 23)) / (1 << 23) for i in range(sum(sizes))]
            self.basis = list(torch.tensor(numbers, dtype=torch.float64).split(sizes))
        exact = message.double()
        result, begin = torch.zeros_like(exact), 0
        sent = exact.clone()
        for index, (length, rows, columns) in enumerate(shapes):
            part = slice(begin, begin + (rows * columns if sizes[index] else 0))
            rest = slice(part.stop, begin + length)
            begin += length
            result[rest] = in_order(gathered(exact[rest]))
            if not sizes[index]:
                continue
            matrix = exact[part].view(rows, columns)
            p = in_order(gathered(matrix @ self.basis[index].view(columns, -1)))
            p = torch.linalg.qr(p).Q
            q = in_order(gathered(matrix.T @ p))
            # The order of signs that Gram-Schmidt has is the same subspace.
            result[part] = (p @ q.T).flatten()
            sent[part] = result[part] / world
            self.basis[index] = q.flatten()
        return result.float(), sent.float()


class OkTopK(Codec):
    messages, local, everywhere = 0, 0.0, 0.0

    def exchange(self, message, number, iteration, shapes):
        world, rank = distributed.get_world_size(), distributed.get_rank()
        count = kept(message, self.set["density"])
        room = -(-3 * count // (2 * world))
        fresh = self.messages % 32 == 0
        self.messages += 1

        def most(places, values):
            return places if len(places) <= room else places[largest(values[places], room)]

        places = (message.abs() >= self.local).nonzero().flatten()
        if fresh or not count // 2 <= len(places) <= 2 * count:
            places = largest(message, count)
            self.local = message[places].abs().min()
        tried = torch.zeros_like(message)
        for owner in range(world):
            mine = most(places[places % world == owner], message)
            tried[mine] = message[mine]
        region = in_order(gathered(tried))
        region[torch.arange(message.numel()) % world != rank] = 0
        if fresh:
            chosen = largest(region, room)
        else:
            chosen = most(((region.abs() >= self.everywhere) & (region != 0)).nonzero().flatten(), region)
        result = in_order(gathered(only(region, chosen)))
        if fresh:
            magnitudes = result.abs().sort().values
            self.everywhere = magnitudes[-min(count, world * room)]
            result[result.abs() < self.everywhere] = 0
        return result, torch.where(result != 0, tried, torch.zeros_like(tried))


CODECS = {"fp16": Fp16, "bf16": Bf16, "top_k": TopK, "dgc": Dgc, "random_k": RandomK, "ef_signsgd": EfSignSgd,
          "int8": Int8, "int4": Int4, "int2": Int2, "power_sgd": PowerSgd, "ok_top_k": OkTopK}
DEFAULTS = {"top_k": {"density": 0.01}, "dgc": {"density": 0.001, "momentum": 0.9, "clip": 0, "warm_up": 0},
            "random_k": {"density": 0.01}, "power_sgd": {"rank": 4, "warm_up": 0}, "ok_top_k": {"density": 0.01}}


def make(compression):
    name = compression["name"]
    return CODECS[name](**{**DEFAULTS.get(name, {}), **compression.get("parameters", {})})
