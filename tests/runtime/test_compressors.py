"""Compressed gradients give what a slow plain loop gives, in every scheme that sends gradients, and what is not sent is not
lost."""

import math

import pytest
import torch
from torch import distributed, nn

import compressors
import ranks
from models import batch, cluster, make_net, parameters, train, workload
from reference import Reference, flat

# Everything is bit for bit but power_sgd, whose reference computes in double precision.
SETTINGS = {
    "fp16": {}, "bf16": {}, "ef_signsgd": {}, "int8": {}, "int4": {}, "int2": {},
    "top_k": {"compressor_density": 0.05},
    "dgc": {"compressor_density": 0.05, "compressor_warm_up": 6, "compressor_clip": 0.5},
    "random_k": {"compressor_density": 0.1},
    "power_sgd": {"compressor_rank": 2, "compressor_warm_up": 2},
    "ok_top_k": {"compressor_density": 0.05},
}
HALVES = ["fp16", "bf16", "int8", "int4", "int2"]
SCHEMES = {
    "ddp": {"bucket_cap_bytes": 20_000, "first_bucket_bytes": 4_000},
    "us_byte": {},
    "deft": {"merge": "mean"},
    "deft local": {"correction": "local"},
    "covap": {"interval": 3},
}


def plan_for(scheme, compressor, us_per_byte=0.6, **options):
    from gradweave import core

    settings = {"compressor": compressor, **SETTINGS[compressor]} if compressor else {}
    return core.make_plan(workload(), cluster(distributed.get_world_size(), us_per_byte), scheme.split()[0],
                          {**SCHEMES.get(scheme, {}), **settings, **options})


def test_every_compressor_is_compared():
    from gradweave import core

    chosen, = [option["choices"] for row in core.schemes() if row["name"] == "ddp" for option in row["options"]
               if option["name"] == "compressor"]
    # Its plain twin is in compressors.py.
    assert set(SETTINGS) == set(chosen) - {"none"} == set(compressors.CODECS)


def plain_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


class Compressed(Reference):
    """The reference loop, whose compressed messages go through plain codecs. `base`: iterations before this plan."""

    def __init__(self, model, plan, base=0):
        super().__init__(model, plain_sgd(model), plan, workload())
        self.codecs, self.base = {}, base

    def run_op(self, op, merges):
        if "compression" not in op or self.overflowed & set(merges):
            return super().run_op({**op, "collective": "all_reduce"} if op["collective"] == "compressed" else op, merges)
        if op["collective"] == "reduce_scatter":
            return None
        codec = self.codec(op)
        number, iteration = op["blocks"][0], self.base + self.n
        shapes = [self.shape_of(b) for b in op["blocks"]]
        every, distributed.all_reduce = distributed.all_reduce, lambda tensor: None
        try:
            message, own = super().run_op(op, merges)
        finally:
            distributed.all_reduce = every
        if op["collective"] == "all_gather" and isinstance(codec, compressors.Quantized):
            return codec.sum_of_halves(message, number, iteration + max(op["merges"]), iteration), own
        return codec.sum(message, number, iteration, shapes), own

    def codec(self, op):
        key = op["link"], tuple(op["blocks"])
        return self.codecs.setdefault(key, compressors.make(op["compression"]))

    def shape_of(self, number):
        block = self.blocks[number]
        length, tensor = block["end"] - block["begin"], self.parameters[block["tensor"]]
        if tensor.dim() < 2:
            return length, 1, length
        rows = tensor.shape[0] if length == tensor.numel() else math.isqrt(length)
        return length, rows, length // rows

    def left_behind(self):
        """tensor: what its gradient has left behind, in memory order."""
        left = {name: flat(p, p.detach()).clone().zero_() for name, p in self.parameters.items()}
        for (_, blocks), codec in self.codecs.items():
            begin = 0
            for b in blocks:
                block = self.blocks[b]
                length = block["end"] - block["begin"]
                for kept in (codec.left, getattr(codec, "rest", 0)):
                    if torch.is_tensor(kept):
                        left[block["tensor"]][block["begin"]:block["end"]] += kept[begin:begin + length] * self.world
                begin += length
        return left


def wrapped(rank, plan, **named):
    import gradweave

    model = make_net()
    return gradweave.wrap(model, plain_sgd(model), plan=plan, **named)


def difference(model, expected):
    """The largest over parameters, and whether all ranks have the same bits."""
    found = parameters(model)
    every = torch.cat([value.flatten() for value in found.values()])
    same = all(torch.equal(every, other) for other in compressors.gathered(every))
    return max((found[n] - value).abs().max().item() for n, value in parameters(expected).items()), same


def against_reference(rank, cases, steps):
    import gradweave

    wrong = []
    for scheme, compressor in cases:
        plan = plan_for(scheme, compressor)
        loop = Compressed(make_net(), plan)
        for step in range(steps):
            loop.train_step(*batch(rank, step))
        loop.drain()
        model, optimizer = wrapped(rank, plan)
        train(model, optimizer, rank, steps)
        gradweave.finish(model)
        found, same = difference(model, loop.model)
        if not same or found > (1e-5 if compressor == "power_sgd" else 0):
            wrong.append((scheme, compressor, found, same))
        model.gradweave.close()
    return wrong


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_compressor_in_every_kind_of_scheme(world_size):
    cases = [(scheme, compressor) for compressor in SETTINGS for scheme in SCHEMES]
    cases += [("dear", compressor) for compressor in HALVES]
    assert ranks.run(against_reference, world_size, cases=cases, steps=8) == [[]] * world_size


# Each has two all-reduces, the second of which begins when some thread has waited for the first.
@pytest.mark.parametrize("world_size", [2, 3])
def test_power_sgd_on_a_link_that_runs_many_ops_at_once(world_size):
    assert ranks.run(against_reference, world_size, cases=[("asc_wfbp", "power_sgd")] * 4, steps=12) == [[]] * world_size


def test_thresholds_and_densities_over_many_messages():
    cases = [("ddp", "ok_top_k"), ("ddp", "dgc")]
    assert ranks.run(against_reference, 2, cases=cases, steps=40) == [[]] * 2


def with_batches_left_out(rank, compressor, scheme, scaled, clipped=False, drained_before=None):
    """A dropped batch, or one whose loss overflows on some rank, leaves nothing behind, also soon after a drain."""
    import gradweave

    left_out = {1: 0, 4: 1, 5: 1}  # step -> the rank whose loss is infinite
    # Where a drain comes, messages are iterations late, so that some are listed after it.
    plan = plan_for(scheme, compressor, **({} if drained_before is None else {"us_per_byte": 4}))
    loop = Compressed(make_net(), plan)
    for step in range(9):
        if step == drained_before:
            loop.drain()
            codecs, loop = loop.codecs, Compressed(loop.model, plan, base=step)
            loop.codecs = codecs
        loop.train_step(*batch(rank, step), overflow=step in left_out)
    loop.drain()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) if scaled else None
    model, optimizer = wrapped(rank, plan, scaler=scaler)
    for step in range(9):
        if step == drained_before:
            gradweave.finish(model)
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if scaled:
            scaler.scale(loss * (math.inf if left_out.get(step) == rank else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            if clipped:  # what would be sent in the next forward is sent now
                gradweave.clip_grad_norm_(model, 1e9)
            model.gradweave.skip_step() if step in left_out else optimizer.step()
    gradweave.finish(model)
    found = difference(model, loop.model)
    model.gradweave.close()
    return found


def several(rank, cases):
    return [with_batches_left_out(rank, *case) for case in cases]


def test_what_is_left_out_leaves_nothing_behind():
    cases = [(compressor, scheme, scaled) for compressor in ("top_k", "ef_signsgd", "dgc", "ok_top_k", "int4")
             for scheme in ("ddp", "deft") for scaled in (False, True)]
    cases += [("power_sgd", "ddp", True), ("int4", "dear", False), ("int4", "dear", True), ("int4", "dear", False, True)]
    cases += [(compressor, "deft", scaled, False, before) for compressor in ("top_k", "int4") for scaled in (False, True)
              for before in (1, 4, 5)]
    for found in ranks.run(several, 2, cases=cases):
        for case, (off, same) in zip(cases, found):
            assert same and off <= (1e-5 if case[0] == "power_sgd" else 0), (case, off, same)


def change_of_plan(rank, cases):
    wrong = []
    for first, second, compressor in cases:
        before = plan_for(first, "int4" if first == "dear" else "top_k")
        model, optimizer = wrapped(rank, before)
        loop = Compressed(make_net(), before)
        for step in range(5):
            loop.train_step(*batch(rank, step))
        loop.drain()
        train(model, optimizer, rank, 5)
        model.gradweave.install(plan_for(second, compressor))
        train(model, optimizer, rank, 4, first=5)
        again = Compressed(loop.model, plan_for(second, compressor), base=5)
        left = loop.left_behind()
        assert max(values.abs().max() for values in left.values()) > 1e-3
        if compressor:
            for op in again.iteration(0)["ops"]:
                again.codec(op).left = torch.cat([again.part(left, b) for b in op["blocks"]]) / again.world
        for step in range(5, 9):
            if step == 5 and not compressor:  # into the next gradient
                compensate = again.compensate

                def with_left():
                    for name, values in left.items():
                        again.gradients[0][name] += values
                    compensate()
                again.compensate = with_left
            elif step == 6 and not compressor:
                again.compensate = compensate
            again.train_step(*batch(rank, step))
        found, same = difference(model, again.model)
        if found > 1e-6 or not same:
            wrong.append((first, second, compressor, found, same))
        model.gradweave.close()
    return wrong


def test_what_was_left_behind_outlives_the_plan():
    cases = [("ddp", "wfbp", None), ("ddp", "wfbp", "ef_signsgd"), ("wfbp", "ddp", "top_k"), ("us_byte", "ddp", "random_k"),
             ("us_byte", "ddp", "int8"), ("dear", "ddp", "int8")]
    assert ranks.run(change_of_plan, 2, cases=cases) == [[], []]


def left_to(rank, second):
    """Parameters after a change of plan, whose gradients are zeros from then on."""
    import gradweave

    model, optimizer = wrapped(rank, plan_for("ddp", "top_k"))
    train(model, optimizer, rank, 5)
    model.gradweave.install(plan_for(second, None))
    for step in range(5, 11):
        optimizer.zero_grad()
        (model(batch(rank, step)[0]) * 0).sum().backward()
        optimizer.step()
    gradweave.finish(model)
    found = parameters(model)
    model.gradweave.close()
    return found


def test_what_was_left_behind_goes_into_corrections_too():
    (one, other), corrected = ranks.run(left_to, 2, second="ddp"), ranks.run(left_to, 2, second="deft local")
    for found in (other, *corrected):
        assert max((one[name] - found[name]).abs().max() for name in one) < 1e-6


def momentum(rank):
    import gradweave

    said = []
    for beta, given in ((0.9, {}), (0.9, {"compressor_momentum": 0}), (0, {})):
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=beta)
        model, optimizer = gradweave.wrap(model, optimizer, "ddp", options={"compressor": "dgc", **given}, warm_up=1,
                                          profile_iterations=1, report=False)
        error = None
        try:
            train(model, optimizer, rank, 1)
        except gradweave.InvalidInput as refusal:
            error = refusal
        said.append(str(error or ""))
        model.gradweave.close(error)
    return said


def test_momentum_is_made_once():
    for both, none, one in ranks.run(momentum, 2):
        assert "compressor would make momentum too" in both and "compressor_momentum=0" in both
        assert not none and not one


def measured(rank):
    import gradweave

    model = make_net()
    with gradweave.wrap(model, plain_sgd(model), "ddp", options={"compressor": "top_k"}, warm_up=1, profile_iterations=2,
                        report=False) as (model, optimizer):
        train(model, optimizer, rank, 6)
        return model.gradweave.cluster["compressor_rates"], model.gradweave.plan["period"][0]["ops"][0]["compression"]


def test_speed_of_encoding_is_measured_in_the_profile():
    for rates, compression in ranks.run(measured, 2):
        assert list(rates) == ["top_k"] and rates["top_k"]["encode_us_per_byte"] > 0
        assert compression["name"] == "top_k"


def zeros_of_16_bits(rank):
    """A message of nothing but zeros, whose length the ranks don't divide."""
    import gradweave

    model = nn.Linear(6, 1).bfloat16()
    options = {"compressor": "ok_top_k", "compressor_density": 0.9}
    model, optimizer = gradweave.wrap(model, torch.optim.SGD(model.parameters(), 0.1), "ddp", options=options, warm_up=1,
                                      profile_iterations=1, report=False, timeout=20)
    before = model.weight.detach().clone()
    for _ in range(6):
        optimizer.zero_grad()
        (0 * model(torch.ones(2, 6, dtype=torch.bfloat16))).sum().backward()
        optimizer.step()
    gradweave.finish(model)
    model.gradweave.close()
    return torch.equal(model.weight, before)


def test_ok_top_k_sends_no_place_behind_the_end():
    assert ranks.run(zeros_of_16_bits, 2) == [True, True]


def with_one_nan(rank, compressors):
    """Those that have hidden it."""
    hidden = []
    for compressor in compressors:
        model = nn.Linear(300, 300, bias=False)  # of more elements than a sample looks at
        model, optimizer = gradweave_of(model, compressor)
        for step in range(40):
            optimizer.zero_grad()
            loss = (model.weight * torch.linspace(-1, 1, 300)).sum()
            if step == 5 and rank == 1:
                loss = loss + model.weight[7, 7] * math.nan
            (model(torch.ones(1, 300)).sum() * 0 + loss).backward()
            optimizer.step()
        hidden += [] if model.weight.isnan().any() else [compressor]
        model.gradweave.close()
    return hidden


def gradweave_of(model, compressor, lr=0.01):
    import gradweave

    return gradweave.wrap(model, torch.optim.SGD(model.parameters(), lr=lr), "ddp",
                          options={"compressor": compressor, **SETTINGS[compressor]}, warm_up=1, profile_iterations=1,
                          report=False, timeout=20)


def test_no_compressor_hides_a_nan():
    assert ranks.run(with_one_nan, 2, compressors=list(SETTINGS)) == [[], []]


def alone(rank):
    for compressor in HALVES:
        model, optimizer = gradweave_of(nn.Linear(600, 2), compressor)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(3, 600)).square().mean().backward()
            optimizer.step()
        model.gradweave.close()


def test_one_rank_trains_with_each_of_two_stages():
    ranks.run(alone, 1)


def of_small_gradients(rank, dtype):
    """What part of a constant gradient, of one direction for each row, has not arrived after 60 steps."""
    torch.manual_seed(0)
    gradient = torch.randn(64, 64)
    gradient *= 1e-4 / gradient.norm()
    model = nn.Linear(64, 64, bias=False).to(dtype)
    model.weight.data.zero_()
    model, optimizer = gradweave_of(model, "power_sgd", lr=100)
    for _ in range(60):
        optimizer.zero_grad()
        (model(torch.ones(1, 64, dtype=dtype)).sum() * 0 + (model.weight * gradient.to(dtype)).sum()).backward()
        optimizer.step()
    steps = 60 * 100
    left = ((model.weight.float() + steps * gradient).norm() / (steps * gradient.norm())).item()
    model.gradweave.close()
    return left


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_low_ranks_send_all_directions_of_small_gradients(dtype):
    assert all(left < 0.3 for left in ranks.run(of_small_gradients, 2, dtype=dtype))


def test_rates_are_measured_in_the_first_dtype_that_compressors_take():
    from gradweave import core, probe

    def measured(*dtypes):
        tensors = [{"name": f"t{n}", "numel": 1000, "dtype": dtype} for n, dtype in enumerate(dtypes)]
        layer = {"name": "l", "forward_us": 1.0, "backward_us": 1.0, "tensors": tensors}
        workload = core.Workload({"version": 1, "name": "w", "layers": [layer]})
        return probe.compressor_rates("auto", {"allow": "exact+compressed"}, workload, 2, torch.device("cpu"))

    assert "power_sgd" in measured("complex64", "float32")
    assert measured("complex64") == {}


def of_wide_gradients(rank):
    """How far weights are from where a gradient of 30 has to take them: sums of a row of it are too large for float16."""
    model = nn.Linear(4000, 4, bias=False).half()
    model.weight.data.zero_()
    model, optimizer = gradweave_of(model, "power_sgd", lr=0.001)
    for _ in range(20):
        optimizer.zero_grad()
        (model(torch.ones(1, 4000).half()).sum() * 0 + (model.weight * 30).float().sum()).backward()
        optimizer.step()
    off = (model.weight / (-20 * 0.001 * 30) - 1).abs().max().item()
    model.gradweave.close()
    return off


def test_low_ranks_of_float16_don_t_overflow_where_gradients_do_not():
    assert all(off < 0.05 for off in ranks.run(of_wide_gradients, 2))
