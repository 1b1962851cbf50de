"""What the papers print, and what follows from it. Times in integer nanoseconds unless a name says otherwise."""

from fractions import Fraction

MS = 1_000_000
US = 1_000

# DeFT (Meng and Sun), Table II, printed as ms but in us: VGG-19's buckets, 1 nearest the input.
DEFT_TABLE2_FORWARD = [v * US for v in (1238, 28799, 4801, 1899, 326, 103)]
DEFT_TABLE2_BACKWARD = [v * US for v in (72496, 12786, 4872, 2319, 484, 162)]
DEFT_TABLE2_COMMUNICATION = [v * US for v in (1968, 11262, 15447, 178643, 31754, 8651)]

# COVAP, Table V: the same buckets; the paper counts them from the output.
VGG19_BUCKETS = [555072, 7669760, 7079424, 107480576, 16781312, 4101096]
COVAP_TABLE5_COMMUNICATION = [v * US for v in (34218, 40743, 36513, 603238, 99205, 16177)]

# DeFT, Table I: forward, backward, communication.
DEFT_TABLE1 = {"ResNet-101": (59 * MS, 118 * MS, 242 * MS), "VGG-19": (37 * MS, 93 * MS, 258 * MS),
               "GPT-2": (169 * MS, 381 * MS, 546_400 * US)}
# COVAP, Table I: before the backward pass (with data loading), backward, communication.
COVAP_TABLE1 = {"ResNet-101": (55 * MS, 135 * MS, 280 * MS), "VGG-19": (105 * MS, 210 * MS, 842 * MS),
                "Bert": (80 * MS, 170 * MS, 520 * MS)}

# DeFT, Table IV, several links: elements, then us for Gloo and for NCCL.
DEFT_TABLE4_ELEMENTS = [4194304, 8388608, 16777216, 33554432, 67108864]
DEFT_TABLE4_GLOO_US = [22000, 41000, 80000, 169000, 428000]
DEFT_TABLE4_NCCL_US = [14000, 25000, 51000, 110000, 231000]
DEFT_SPEED_RATIO = Fraction(165, 100)

# DreamDDP, Table 1, 32 workers: seconds an iteration of S-SGD, FLSGD and DreamDDP.
DREAMDDP_TABLE1 = {"ResNet-50": (Fraction("4.52"), Fraction("0.94"), Fraction("0.65")),
                   "GPT-2": (Fraction("8.67"), Fraction("2.08"), Fraction("1.60"))}
# The paper does not say Table 1's H. DreamDDP's times are possible for all four networks at 32 workers with H = 7..10.
DREAMDDP_PERIOD = 8

# DeAR, Tables I and II, 64 GPUs: millions of parameters, S_max over 10 GbE, S_max over 100 Gb InfiniBand.
DEAR_WORKERS = 64
DEAR_TABLES = {"ResNet-50": (Fraction("25.6"), Fraction("61.6"), 64), "DenseNet-201": (Fraction("20.0"), 64, 64),
               "Inception-v4": (Fraction("42.7"), Fraction("59.8"), 64),
               "BERT-Base": (Fraction("110.1"), Fraction("25.5"), 64),
               "BERT-Large": (Fraction("336.2"), Fraction("12.1"), Fraction("51.8"))}
ETH_10G_BYTES_PER_S = Fraction(10**10, 8)


def dear_smax(forward, backward, half):
    """DeAR Eq. 6 at 64 workers: half is the time of one reduce-scatter or one all-gather, in the unit of the others."""
    compute = forward + backward
    exposed = max(half - backward, 0) + max(half - forward, 0)
    return DEAR_WORKERS * compute / (compute + exposed)


def dear_compute(network):
    """(forward, backward) in ns that make Eq. 6 give Table II's S_max over 10 GbE, with the paper's backward = 2 forward.

    Where S_max is 64 the table only bounds the compute time; the smallest one is returned.
    """
    millions, smax, _ = DEAR_TABLES[network]
    half = millions * 10**6 * 4 / ETH_10G_BYTES_PER_S * 10**9
    if smax == DEAR_WORKERS:
        forward = half
    else:
        exposed_per_compute = DEAR_WORKERS / Fraction(smax) - 1
        # half - forward = 3 * forward * e while the reduce-scatter hides in the backward pass, else both are exposed.
        forward = half / (1 + 3 * exposed_per_compute)
        if 2 * forward < half:
            forward = 2 * half / (3 + 3 * exposed_per_compute)
    forward = round(forward / US) * US
    assert abs(dear_smax(Fraction(forward), Fraction(2 * forward), half) - smax) < Fraction(1, 1000)
    return forward, 2 * forward


def dear_infiniband_bytes_per_s():
    """The bandwidth at which BERT-Large's compute time above gives Table II's 51.8 over 100 Gb InfiniBand; the other four stay
    at 64."""
    millions, _, smax = DEAR_TABLES["BERT-Large"]
    forward, backward = dear_compute("BERT-Large")
    half = forward + (forward + backward) * (DEAR_WORKERS / smax - 1)
    assert half <= backward
    rate = millions * 10**6 * 4 / (half / 10**9)
    for network, (size, _, expected) in DEAR_TABLES.items():
        other = dear_smax(*map(Fraction, dear_compute(network)), size * 10**6 * 4 / rate * 10**9)
        assert abs(other - expected) < Fraction(1, 20), network
    return rate


def dreamddp_times(network):
    """(forward, backward, communication) in ns that give Table 1's S-SGD and FLSGD times, with backward = 2 forward.

    S-SGD: compute + communication. FLSGD: compute + communication / H.
    """
    ssgd, flsgd, dreamddp = DREAMDDP_TABLE1[network]
    communication = (ssgd - flsgd) * Fraction(DREAMDDP_PERIOD, DREAMDDP_PERIOD - 1)
    compute = ssgd - communication
    assert max(compute, communication / DREAMDDP_PERIOD) <= dreamddp, "DreamDDP would beat its lower bound"
    forward = round(compute * 10**6 / 3) * US
    return forward, 2 * forward, round(communication * 10**6) * US


def fit_link(elements, times_us, element_bytes=4):
    """Start-up in us and us per byte by least squares; a negative start-up becomes 0 and the rate is fitted alone."""
    sizes, times = [Fraction(n * element_bytes) for n in elements], [Fraction(t) for t in times_us]
    count, n, t = len(sizes), sum(sizes), sum(times)
    nn, nt = sum(x * x for x in sizes), sum(x * y for x, y in zip(sizes, times, strict=True))
    rate = (count * nt - n * t) / (count * nn - n * n)
    startup = (t - rate * n) / count
    return (startup, rate) if startup >= 0 else (Fraction(0), nt / nn)


def ring_us_per_byte(workers, bytes_per_s):
    """A ring all-reduce at line rate: every worker sends 2 (P - 1) / P of the message."""
    return Fraction(2 * (workers - 1), workers) / bytes_per_s * 10**6
