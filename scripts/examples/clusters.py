"""All clusters, as plain data for files.cluster_text."""

from fractions import Fraction

from . import published
from .published import DEFT_SPEED_RATIO, ETH_10G_BYTES_PER_S, fit_link, ring_us_per_byte


def cluster(workers, per_node, growth, links, description, source):
    return {"workers": workers, "workers_per_node": per_node, "startup_growth": growth, "links": links,
            "description": description, "source": source}


def link(name, startup, rate, concurrency=1, relative=1):
    return (name, startup, rate, concurrency, relative)


def deft_clusters():
    startup, rate = fit_link(published.VGG19_BUCKETS, [t // 1000 for t in published.DEFT_TABLE2_COMMUNICATION])
    ratio = DEFT_SPEED_RATIO
    fit = "Costs: least squares over DeFT's Table II with COVAP's Table V elements; a linear start-up growth is assumed."
    nccl = fit_link(published.DEFT_TABLE4_ELEMENTS, published.DEFT_TABLE4_NCCL_US)
    gloo = fit_link(published.DEFT_TABLE4_ELEMENTS, published.DEFT_TABLE4_GLOO_US)
    return {
        "deft-table2-one-link": cluster(
            16, 8, "linear", [link("nccl", startup, rate)], "2 nodes of 8 A100, 40 GbE, NCCL alone", fit),
        "deft-table2-two-links": cluster(
            16, 8, "linear", [link("nccl", startup, rate), link("gloo", startup * ratio, rate * ratio, relative=ratio)],
            "2 nodes of 8 A100, two 40 GbE interfaces: NCCL on one, Gloo on the other",
            fit + " The second link is 1.65 times slower, DeFT's mu."),
        "deft-table4-two-links": cluster(
            16, 8, "linear", [link("nccl", *nccl), link("gloo", *gloo, relative=gloo[1] / nccl[1])],
            "2 nodes of 8 A100, two 40 GbE interfaces, each link with its own fit",
            "Costs: least squares over DeFT's Table IV, multi-link rows, float32; the fitted start-ups are negative, so 0 is "
            "taken and the rates are fitted alone; relative_time is their ratio. (Table IV is about twice as slow as Table "
            "II.)"),
    }


def ethernet_clusters():
    # US-Byte, Fig. 9a: its a is usable, its b is not (398 Gb/s on a 10 Gb/s network).
    startup8 = Fraction("910.5")
    # DeAR, section II-D: 1 MB in about 4.5 ms on 64 GPUs; 1 MB at line rate is the rest.
    rate64 = ring_us_per_byte(64, ETH_10G_BYTES_PER_S)
    startup64 = 4500 - 10**6 * rate64
    covap = fit_link(published.VGG19_BUCKETS, [t // 1000 for t in published.COVAP_TABLE5_COMMUNICATION])
    line_rate = "us_per_byte: a ring at line rate. "
    return {
        "eth-10g-8": cluster(8, 1, "log", [link("eth", startup8, ring_us_per_byte(8, ETH_10G_BYTES_PER_S))],
                             "8 single-GPU nodes, 10 GbE",
                             "startup_us: US-Byte, Fig. 9a (its b is wrong and not used). " + line_rate),
        "eth-10g-16": cluster(16, 1, "log",
                              [link("eth", startup8 * Fraction(4, 3), ring_us_per_byte(16, ETH_10G_BYTES_PER_S))],
                              "16 single-GPU nodes, 10 GbE",
                              "startup_us: eth-10g-8 scaled by log2 16 / log2 8. " + line_rate),
        "eth-10g-64": cluster(64, 4, "linear", [link("eth", startup64, rate64)], "16 nodes of 4 RTX 2080 Ti, 10 GbE",
                              line_rate + "startup_us: what is left of DeAR's 4.5 ms for 1 MB on 64 GPUs (section II-D)."),
        "eth-10g-128": cluster(
            128, 1, "linear", [link("eth", startup8 * Fraction(127, 7), ring_us_per_byte(128, ETH_10G_BYTES_PER_S))],
            "128 single-GPU nodes, 10 GbE: the network that US-Byte simulates (section 6.7)",
            "startup_us: eth-10g-8 scaled by US-Byte's Eq. 14, 127 / 7. " + line_rate),
        "eth-30g-64": cluster(64, 8, "linear", [link("eth", *covap)], "8 nodes of 8 V100, 30 Gb/s public cloud",
                              "Costs: least squares over COVAP's Table V; a linear start-up growth is assumed."),
        "eth-100g-8": cluster(8, 1, "log", [link("eth", Fraction("1318.6"), Fraction("2.406e-4"))],
                              "8 single-GPU nodes (RTX 3090), 100 Gb/s", "Costs: US-Byte, Fig. 9b."),
    }


def other_clusters():
    infiniband = published.dear_infiniband_bytes_per_s()
    slow = Fraction(400 * 10**6, 8)
    wan = Fraction(10**9, 8)
    return {
        "ib-100g-64": cluster(
            64, 4, "linear", [link("ib", 126 * 5, ring_us_per_byte(64, infiniband))],
            "16 nodes of 4 RTX 2080 Ti, 100 Gb/s InfiniBand",
            "us_per_byte: a ring at the bandwidth (46.49 Gb/s) at which DeAR's Eq. 6 gives Table II's S_max over InfiniBand "
            "for all five networks. startup_us: assumed, 5 us for each of the ring's 126 steps; no paper gives it."),
        "slow-400m-2": cluster(
            2, 1, "linear", [link("slow", 500, ring_us_per_byte(2, slow))], "Two workers, one link of 400 Mb/s",
            "us_per_byte: a ring at line rate. startup_us: assumed."),
        "two-sites-8": cluster(
            8, 4, "constant", [link("wan", 30000, ring_us_per_byte(2, wan))],
            "Two sites of 4 workers, 1 Gb/s between them (DreamDDP: 10 Mb/s to 1 Gb/s between data centres)",
            "us_per_byte: the exchange between two sites at line rate, one copy per site; the local part is neglected. "
            "startup_us: assumed, two crossings of 15 ms."),
        "two-nics-4": cluster(
            4, 1, "linear", [link("nic0", 200, ring_us_per_byte(4, ETH_10G_BYTES_PER_S)),
                             link("nic1", 200, ring_us_per_byte(4, ETH_10G_BYTES_PER_S))],
            "Four workers, two equal 10 GbE interfaces",
            "us_per_byte: a ring at line rate. startup_us: assumed."),
        "shared-10g-8": cluster(
            8, 1, "log", [link("eth", Fraction("910.5"), ring_us_per_byte(8, ETH_10G_BYTES_PER_S), concurrency=0)],
            "eth-10g-8 with any number of operations at once, which share the bandwidth", "As eth-10g-8."),
        "tiny-4": cluster(4, 1, "linear", [link("net", 10, Fraction("0.001"))],
                          "Four workers in round numbers, for the documentation's timelines", "Invented."),
        "tiny-4-two-links": cluster(
            4, 1, "linear", [link("fast", 10, Fraction("0.001")), link("slow", 20, Fraction("0.002"), relative=2)],
            "tiny-4 with a second link of half the speed", "Invented."),
    }


def all_clusters():
    """File stem -> cluster."""
    return {**deft_clusters(), **ethernet_clusters(), **other_clusters()}
