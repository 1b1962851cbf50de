"""What the papers claim, the inputs that come nearest, and what to compute from simulated runs."""

from dataclasses import dataclass, field
from typing import Callable


@dataclass(frozen=True)
class Run:
    """One plan, simulated. options are those of `--set`."""

    scheme: str
    options: dict = field(default_factory=dict)

    def label(self):
        settings = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"`{self.scheme}`" + (f" ({settings})" if settings else "")


@dataclass(frozen=True)
class Claim:
    """value(results, compute) -> text, where results are the JSON of the runs in order, compute = (forward us, backward
    us)."""

    paper: str
    place: str
    claim: str
    figure: str
    workload: str
    cluster: str
    runs: tuple
    value: Callable
    remark: str = ""


def time_of(result):
    return result["iteration_us"]


def coverage(results, compute):
    return f"{(time_of(results[0]) - sum(compute)) / sum(compute):.3f}"


def ccr(results, compute):
    return f"{(time_of(results[0]) - sum(compute)) / compute[1]:.2f}"


def over_compute(results, compute):
    return f"{time_of(results[0]) / sum(compute):.3f}"


def speedup_of_last(results, compute):
    """How many times faster the last run is than each other."""
    return " / ".join(f"{time_of(other) / time_of(results[-1]):.3f}" for other in results[:-1])


def speedup_on(workers):
    """Throughput of that many workers over one that does not communicate."""
    return lambda results, compute: f"{workers * sum(compute) / time_of(results[0]):.2f}"


def updates(results, compute):
    return f"{results[0]['updates_per_iteration']:.3f}, iteration {over_compute(results, compute)} times compute"


def milliseconds(results, compute):
    return " / ".join(f"{time_of(result) / 1000:.1f}" for result in results)


SEQUENTIAL, WFBP, DDP, DEFT, US_BYTE = Run("sequential"), Run("wfbp"), Run("ddp"), Run("deft"), Run("us_byte")
BYTESCHEDULER, DEAR, COVAP, HOROVOD = Run("bytescheduler"), Run("dear"), Run("covap"), Run("horovod")
DEFT_22 = Run("deft", {"max_block_us": 22525})


def deft_claims():
    table1 = [("resnet101", "ResNet-101", "1.67", "a misprint: 242 / 177 is 1.367", "33-73"),
              ("vgg19", "VGG-19", "1.98", "", "90-115"), ("gpt2", "GPT-2", "0.99", "", "29-62")]
    for stem, network, rate, remark, _ in table1:
        yield Claim("DeFT", "Table I", f"coverage rate of {network}", rate, f"deft-table1-{stem}", "deft-table2-one-link",
                    (SEQUENTIAL,), coverage, remark)
    vgg, one, two = "deft-table2-vgg19", "deft-table2-one-link", "deft-table2-two-links"
    yield Claim("DeFT", "V.B.2", "PyTorch's iteration of VGG-19 over DeFT's", "2.15", vgg, one, (WFBP,), over_compute,
                "Table II; over compute alone, which is DeFT's time when all communication hides")
    yield Claim("DeFT", "V.B.2", "US-Byte's iteration of VGG-19 over DeFT's", "1.90", vgg, one, (US_BYTE,), over_compute,
                "as above; the link alone needs 247725 / 130285 = 1.901")
    yield Claim("DeFT", "V.B.2", "VGG-19: DeFT over PyTorch, ByteScheduler, US-Byte", "1.90-2.15", vgg, two,
                (WFBP, BYTESCHEDULER, US_BYTE, DEFT_22), speedup_of_last, "")
    yield Claim("DeFT", "III.B", "updates per iteration, one link", "about 1 / CR = 0.526", vgg, one, (DEFT_22,), updates, "")
    yield Claim("DeFT", "III.C", "updates per iteration, two links, mu = 1.65", "about 1.606 / CR = 0.845", vgg, two,
                (DEFT_22,), updates, "")
    for stem, network, _, _, gain in table1:
        if stem != "vgg19":
            yield Claim("DeFT", "V.B", f"{network}: DeFT faster than PyTorch, ByteScheduler, US-Byte by", f"{gain} %",
                        f"deft-table1-{stem}", two, (WFBP, BYTESCHEDULER, US_BYTE, DEFT), speedup_of_last,
                        "buckets are PyTorch's, their times shares of Table I's totals")


def covap_claims():
    rows = [("resnet101", "ResNet-101", "2.1", "1.43", "2.47", "21.52", "57.52", ""),
            ("vgg19", "VGG-19", "4.0", "1.22", "3.04", "12.07", "51.80", "S_LS is a misprint: 1157 / 315 is 3.67"),
            ("bert", "Bert", "3.1", "1.28", "3.08", "26.64", "57.84", "")]
    for stem, network, rate, overlap, linear, ddp, covap, remark in rows:
        file, cluster = f"covap-table1-{stem}", "eth-30g-64"
        yield Claim("COVAP", "Table I", f"CCR of {network}", rate, file, cluster, (SEQUENTIAL,), ccr)
        yield Claim("COVAP", "Table I", f"S_LS, linear scaling over no overlap, {network}", linear, file, cluster,
                    (SEQUENTIAL,), over_compute, remark)
        yield Claim("COVAP", "Table I, Eq. 4", f"S_ovlp, overlap over no overlap, {network}", overlap, file, cluster,
                    (SEQUENTIAL, WFBP), speedup_of_last)
        yield Claim("COVAP", "Table VII", f"speed-up of DDP with overlap on 64 GPUs, {network}", ddp, file, cluster, (WFBP,),
                    speedup_on(64))
        yield Claim("COVAP", "Table VII", f"speed-up of COVAP on 64 GPUs, {network}", covap, file, cluster, (COVAP,),
                    speedup_on(64))
    yield Claim("COVAP", "IV.B", "VGG-19, interval 4: speed-up on 64 GPUs", "51.51", "covap-table5-vgg19", "eth-30g-64",
                (Run("covap", {"interval": 4}),), speedup_on(64))
    yield Claim("COVAP", "III.C", "VGG-19: sharding shortens the iteration (without / with, ms)", "not quantified",
                "covap-table5-vgg19", "eth-30g-64",
                (Run("covap", {"interval": 4, "sharding": "off"}), Run("covap", {"interval": 4, "sharding": "on"})),
                milliseconds)


def dear_claims():
    rows = [("resnet50", "ResNet-50", "61.1", "61.6"), ("densenet201", "DenseNet-201", "52.8", "54.0"),
            ("inception-v4", "Inception-v4", "56.5", "57.2"), ("bert-base", "BERT-Base", "23.9", "49.6"),
            ("bert-large", "BERT-Large", "11.8", "37.5")]
    fused = Run("dear", {"buffer_bytes": 26214400})
    for stem, network, ethernet, infiniband in rows:
        for cluster, net, figure in (("eth-10g-64", "10 GbE", ethernet), ("ib-100g-64", "100 Gb InfiniBand", infiniband)):
            yield Claim("DeAR", "Table II", f"speed-up on 64 GPUs over {net}, {network}", figure, stem, cluster, (DEAR,),
                        speedup_on(64))
        yield Claim("DeAR", "VI.D, Fig. 7", f"faster than Horovod, PyTorch over 10 GbE, 25 MB buffers, {network}",
                    "6-83 % over all", stem, "eth-10g-64", (Run("horovod", {"fusion_bytes": 26214400}), DDP, fused),
                    speedup_of_last)
        yield Claim("DeAR", "VI.C, Fig. 6", f"faster than WFBP without fusion over 10 GbE, {network}", "6-19 %", stem,
                    "eth-10g-64", (WFBP, Run("dear", {"layers_per_group": 1})), speedup_of_last)


def us_byte_claims():
    other = "compute times are another GPU's, so only the tendency can agree"
    for stem, network in (("vgg16", "VGG-16"), ("resnet50", "ResNet-50"), ("bert-base", "BERT-Base")):
        yield Claim("US-Byte", "6.3, Fig. 10", f"faster than WFBP, ByteScheduler on 8 nodes, 10 GbE, {network}",
                    "21-56 %, 11-26 %", stem, "eth-10g-8", (WFBP, BYTESCHEDULER, US_BYTE), speedup_of_last, other)
        yield Claim("US-Byte", "6.7, Fig. 18", f"faster than WFBP on 128 nodes, {network}", "234-332 %", stem, "eth-10g-128",
                    (WFBP, US_BYTE), speedup_of_last,
                    "false for one channel and one operation or more per tensor: at most 1 + T_f / (T_f + T_b)")


def dreamddp_claims():
    for stem, network, ratio, dream, remark in (
            ("resnet50", "ResNet-50", "1.45", "690 / 650", ""),
            ("gpt2", "GPT-2", "1.23", "1990 / 1600", "printed S_2 is wrong: 2.08 / 1.60 is 1.30")):
        file, options = f"dreamddp-table1-{stem}", {"period": 8}
        yield Claim("DreamDDP", "Table 1", f"FLSGD over DreamDDP, {network}, 32 workers", ratio, file, "deft-table2-one-link",
                    (Run("local_sgd", options), Run("dreamddp", options)), speedup_of_last, remark)
        yield Claim("DreamDDP", "Table 1", f"PLSGD-ENP / DreamDDP (ms), {network}, 32 workers", dream, file,
                    "deft-table2-one-link", (Run("partial_sgd", options), Run("dreamddp", options)), milliseconds)
    for stem in ("skewed", "uniform"):
        options = {"period": 5}
        yield Claim("DreamDDP", "4.5, Fig. 15", f"iteration by its search over that by the exact optimum, H = 5, {stem}",
                    "1 in most cases",
                    stem, "two-sites-8", (Run("dreamddp", options | {"solver": "dfs"}), Run("dreamddp", options)),
                    speedup_of_last)


def all_claims():
    return [*deft_claims(), *covap_claims(), *dear_claims(), *us_byte_claims(), *dreamddp_claims()]
