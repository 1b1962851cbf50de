"""Messages of small integers in groups of 256 (src/codec/groups.h), written plainly: what the engine's kernels give bit for
bit."""

import torch

GROUP = 256
BITS = {"int8": 8, "int4": 4, "int2": 2, "ef_signsgd": 1}
_MASK = 2**64 - 1


def mixed(x):
    """splitmix64"""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def random_key(rank, iteration, block, stage):
    key = mixed(0)
    for part in (rank, iteration, block, stage):
        key = mixed((key + part) & _MASK)
    return key


def random_halves(key, group):
    """256 numbers of 16 bits: the lower halves of 128 words, then the upper ones."""
    drawn = mixed((key + group) & _MASK)
    x = ((drawn & 0xFFFFFFFF) + torch.arange(GROUP // 2)) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    x = ((x ^ (drawn >> 32)) * 0x7FEB352D) & 0xFFFFFFFF
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    x = x ^ (x >> 16)
    return torch.cat([x & 0xFFFF, x >> 16])


def decoded(name, message, key, first_group=0):
    """What a float32 message decodes to once it was encoded."""
    groups = message.split(GROUP)
    return torch.cat([_group(name, part, key, first_group + g) for g, part in enumerate(groups)]) if len(message) else message


def shards(count, world):
    """Which elements of a message each rank adds up."""
    width = -(-(-(-count // GROUP)) // world) * GROUP
    return [slice(min(rank * width, count), min((rank + 1) * width, count)) for rank in range(world)]


def _group(name, part, key, group):
    top = part.abs().max()
    if top < 2.0**-100:
        return torch.zeros_like(part)
    if name in ("int2", "ef_signsgd"):
        sizes, levels = part.abs(), torch.ones(len(part))
        scale = _in_lanes(sizes) / len(part)
        if name == "int2":  # four levels: by the mean magnitude, then by least squares
            levels[sizes >= 1.25 * scale] = 3
            scale = _in_lanes(sizes * levels) / (levels * levels).sum()
            levels = 1 + 2 * (sizes >= 2 * scale).float()
        return torch.where(torch.signbit(part), -levels, levels) * scale
    limit = 2 ** (BITS[name] - 1) - 1
    scale, inverse = top / limit, torch.tensor(float(limit)) / top  # limit / top would be limit * (1 / top)
    dither = 128 + (random_halves(key, group)[:len(part)] | 1).float() / 65536
    codes = (part * inverse + dither).clamp(128 - limit, 128 + limit).floor() - 128
    return codes * scale


def _in_lanes(sizes):
    """Their sum: in 16 lanes, and then lane by lane."""
    lanes, total = torch.zeros(16), torch.zeros(())
    for sixteen in torch.cat([sizes, torch.zeros(GROUP - len(sizes))]).view(-1, 16):
        lanes += sixteen
    for lane in lanes:
        total = total + lane
    return total
