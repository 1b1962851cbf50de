"""`gradweave import` and `gradweave fit`: files that other tools write become files that the commands take."""

import gzip
import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(os.environ.get("GRADWEAVE_COMMAND", ROOT / "build" / "gradweave"))
LINKS = ROOT / "examples" / "links" / "two-nics.json"


def run(*arguments, code=0):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert len(done.stderr) < 20_000
    return done


def iteration(at, number):
    """A forward and a backward of one layer, as the profiler writes them; ts and dur in microseconds."""
    def span(category, name, begin, duration, **arguments):
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": at + begin, "dur": duration,
                "args": arguments}
    return [span("user_annotation", f"ProfilerStep#{number}", 0, 900), span("python_function", "nn.Module: Linear_0", 10, 20),
            span("cpu_op", "aten::linear", 12, 15, **{"Sequence number": number, "Fwd thread id": 0}),
            span("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 40, 30,
                 **{"Sequence number": number, "Fwd thread id": 1}),
            span("cpu_op", "torch::autograd::AccumulateGrad", 72, 8, **{"Input type": ["float"], "Input Dims": [[100, 10]]})]


@pytest.fixture
def trace(tmp_path):
    events = [event for number in range(3) for event in iteration(1000 * number, number)]
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
    return path


@pytest.fixture
def workload_of_100_megabytes(tmp_path):
    path = tmp_path / "large.json"
    layer = {"name": "l", "forward_us": 10, "backward_us": 20, "tensors": [{"name": "t", "numel": 25_000_000}]}
    path.write_text(json.dumps({"version": 1, "name": "large", "layers": [layer]}))
    return path


def test_a_trace_becomes_a_workload_that_plans(trace, tmp_path):
    workload = tmp_path / "workload.json"
    done = run("import", "kineto", trace, "--name", "one", "-o", workload)
    assert done.stdout == "" and "1 layers, 1 tensors, 4.0 kB" in done.stderr and "3 iteration(s) of 1 rank(s)" in done.stderr
    content = json.loads(workload.read_text())
    assert content["name"] == "one"
    assert content["layers"] == [{"name": "Linear_0", "forward_us": 30, "backward_us": 40,
                                  "tensors": [{"name": "Linear_0.0", "numel": 1000, "dtype": "float32"}]}]
    assert json.loads(run("import", "kineto", trace, "--name", "one").stdout) == content
    found = json.loads(run("import", "kineto", trace, "--name", "one", "--json").stdout)
    assert found == {"ranks": 1, "iterations": 3, "left_out": 0, "damaged": 0, "notes": [], "workload": content}
    cluster = tmp_path / "cluster.json"
    run("fit", LINKS, "-o", cluster)
    rows = json.loads(run("compare", "--workload", workload, "--cluster", cluster, "--schemes", "ddp", "--json").stdout)
    assert rows["schemes"][0]["iteration_us"] > 70


@pytest.mark.parametrize("packed", [True, False])
def test_a_trace_may_come_from_standard_input(trace, packed):
    content = trace.read_bytes() if packed else gzip.decompress(trace.read_bytes())
    done = subprocess.run([COMMAND, "import", "kineto", "-", "--name", "one"], input=content, capture_output=True, timeout=60)
    assert done.stdout.decode() == run("import", "kineto", trace, "--name", "one").stdout
    assert "stdin: is empty" in run("import", "kineto", "-", code=2).stderr


def test_a_trace_that_was_not_copied_whole_says_so(tmp_path):
    random = "".join(chr(97 + number * number % 1009 % 26) for number in range(40_000))  # so that packing keeps the size
    events = [event for number in range(3) for event in iteration(1000 * number, number)]
    packed = gzip.compress(json.dumps({"traceEvents": events, "rest": random}).encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(packed[:-20])
    done = run("import", "kineto", path)
    assert f"{path} is gzipped and ends in the middle" in done.stderr and json.loads(done.stdout)["layers"]
    for size, words in ((150, "before a whole iteration"), (20, "before its first event")):
        path.write_bytes(packed[:size])
        message = run("import", "kineto", path, code=2).stderr
        assert f"{path}: is gzipped and ends in the middle, {words}; copy" in message


def test_a_trace_that_cannot_be_used_says_what_to_switch_on(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}')
    workload = tmp_path / "workload.json"
    done = run("import", "kineto", path, "-o", workload, code=2)
    assert str(path) in done.stderr and "record_shapes=True" in done.stderr
    assert not workload.exists()
    assert "missing.json" in run("import", "kineto", tmp_path / "missing.json", code=2).stderr


def test_a_fit_shows_residuals_and_range(tmp_path):
    done = run("fit", LINKS, "-o", tmp_path / "cluster.json")
    assert done.stdout == "" and "8.2 kB" in done.stderr and "33.6 MB" in done.stderr and "extrapolated" in done.stderr
    found = json.loads(run("fit", LINKS, "--json").stdout)
    assert found["cluster"] == json.loads((tmp_path / "cluster.json").read_text())
    assert [(line["link"], line["collective"]) for line in found["fits"]] == [
        ("eth0", "all_reduce"), ("eth0", "reduce_scatter"), ("eth0", "all_gather"), ("eth1", "all_reduce")]
    for line in found["fits"]:
        assert line["residual"] < 0.02 and abs(line["worst"]) >= line["residual"] and line["doubts"] == []
        assert (line["smallest_bytes"], line["largest_bytes"]) == (8192, 33554432)


def test_what_a_fit_does_not_show_is_not_used_in_silence(workload_of_100_megabytes, tmp_path):
    cluster, plan = tmp_path / "cluster.json", tmp_path / "plan.json"
    run("fit", LINKS, "-o", cluster)
    assert json.loads(cluster.read_text())["links"][0]["measured_bytes"] == [8192, 33554432]
    given = ["--workload", workload_of_100_megabytes, "--cluster", cluster]
    words = "link 'eth0' is measured for messages of 8.2 kB to 33.6 MB, the plan sends 100.0 MB to 100.0 MB"
    assert words in run("plan", *given, "--scheme", "wfbp", "-o", plan).stderr
    assert words in run("simulate", *given, "--plan", plan).stderr
    compared = run("compare", *given, "--schemes", "wfbp,p3", "--set", "partition_bytes=1000000")
    assert "link 'eth0', measured from 8.2 kB to 33.6 MB, is extrapolated by wfbp\n" in compared.stdout
    rows = json.loads(run("compare", *given, "--schemes", "wfbp,p3", "--set", "partition_bytes=1000000", "--json").stdout)
    extrapolated = {row["name"]: row.get("extrapolated") for row in rows["schemes"]}
    assert extrapolated == {"wfbp": {"eth0": [100_000_000] * 2}, "p3": None}
    assert "measured" not in run("plan", *given, "--scheme", "p3", "--set", "partition_bytes=1000000", "-o", plan).stderr


def test_what_is_extrapolated_is_what_a_link_is_asked_for(tmp_path):
    workload, cluster = tmp_path / "w.json", tmp_path / "c.json"
    layer = {"name": "a", "forward_us": 9, "backward_us": 9, "tensors": [{"name": "a.w", "numel": 1_000_001}]}
    given = {"name": "b", "forward_us": 1, "backward_us": 1, "communication_us": 5, "tensors": [{"name": "b.w", "numel": 10}]}
    link = {"name": "net", "startup_us": 10, "us_per_byte": 0.001}

    def extrapolated(layers, measured, more={}, **levels):
        workload.write_text(json.dumps({"version": 1, "name": "w", "layers": layers}))
        links = [link | {"measured_bytes": measured} | more]
        cluster.write_text(json.dumps({"version": 1, "workers": 16, "links": links} | levels))
        compared = run("compare", "--workload", workload, "--cluster", cluster, "--schemes", "wfbp", "--json").stdout
        return json.loads(compared)["schemes"][0].get("extrapolated")
    assert extrapolated([layer, given], [1, 1000]) == {"net": [4_000_004] * 2}
    assert extrapolated([given], [1000, 2000]) is None
    # Four workers of a node send a quarter each.
    levels = {"workers_per_node": 4, "inside": {"links": [{"name": "bus", "startup_us": 1, "us_per_byte": 1e-4}]}}
    assert extrapolated([layer], [1, 1_000_001], {"each_worker": True}, **levels) is None
    assert extrapolated([layer], [2_000_000, 5_000_000], {"each_worker": True}, **levels) == {"net": [1_000_001] * 2}
    assert extrapolated([layer], [2_000_000, 5_000_000], **levels) is None


@pytest.mark.parametrize("change, words", [
    ({"workers": 0}, "workers"), ({"links": []}, "links"), ({"version": 2}, "version"),
    ({"links": [{"name": "n", "measurements": [{"bytes": 8, "us": 1}]}]}, "links[0], all_reduce: measurements: fewer"),
    ({"links": [{"name": "n", "measurements": [{"bytes": 8, "us": 0}]}]}, "links[0].measurements[0].us"),
    ({"links": [{"name": "n", "measurements": [{"bytes": 8, "us": 1e308}]}]}, "links[0].measurements[0].us: is out of range")])
def test_measurements_that_cannot_be_fitted_are_named(change, words, tmp_path):
    path = tmp_path / "links.json"
    path.write_text(json.dumps(json.loads(LINKS.read_text()) | change))
    done = run("fit", path, "-o", tmp_path / "cluster.json", code=2)
    assert f"{path}: {words}" in done.stderr
    assert not (tmp_path / "cluster.json").exists()


def table(program, redop, ranks=4, per_host=2):
    rows = "".join(f"{size:12} {size // 4:13} float {redop} -1 {us:.2f} 1.0 1.5 0 {us:.2f} 1.0 1.5 N/A\n"
                   for size in (1024, 65536, 4194304) for us in [30 + size * 1e-4])
    devices = "".join(f"#  Rank {rank:2} Group  0 Pid   {rank} on     host{rank // per_host} device  0 [0000:f9:05] H100\n"
                      for rank in range(ranks))
    columns = "    time   algbw   busbw #wrong"
    return (f"# Collective test starting: {program}\n# nThread 1 nGpus 1 minBytes 1024 maxBytes 4194304\n# Using devices\n"
            f"{devices}#       size         count      type   redop    root {columns} {columns}\n"
            f"#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
            f"{rows}# Out of bounds values : 0 OK\n")


def test_nccl_tests_become_a_cluster(tmp_path):
    for program, redop in (("all_reduce", "sum"), ("reduce_scatter", "sum"), ("all_gather", "none")):
        (tmp_path / f"{program}.txt").write_text(table(f"{program}_perf", redop))
    files = [tmp_path / f"{program}.txt" for program in ("all_reduce", "reduce_scatter", "all_gather")]
    done = run("import", "nccl-tests", *files, "--link", "ib", "--startup-growth", "log")
    cluster = json.loads(done.stdout)
    assert "all_gather" in done.stderr and "residual" in done.stderr
    assert (cluster["workers"], cluster["workers_per_node"], cluster["startup_growth"]) == (4, 2, "log")
    link, = cluster["links"]
    assert link["name"] == "ib" and link["startup_us"] == pytest.approx(30, rel=1e-3) and "reduce_scatter" in link
    two = json.loads(run("import", "nccl-tests", files[0], files[0], "--link", "ib", "--link", "eth").stdout)
    assert [link["name"] for link in two["links"]] == ["ib", "eth"]
    assert "a second run of all_reduce" in run("import", "nccl-tests", files[0], files[0], code=2).stderr
    other = tmp_path / "other.txt"
    other.write_text(table("all_gather_perf", "none", ranks=8))
    assert "8 ranks, not on 4" in run("import", "nccl-tests", files[0], other, code=2).stderr
    assert "--link" in run("import", "nccl-tests", *files, "--link", "a", "--link", "b", code=2).stderr


def test_a_link_is_named_before_the_files(tmp_path):
    files = []
    for program, redop in (("all_reduce", "sum"), ("reduce_scatter", "sum"), ("all_gather", "none")):
        files.append(tmp_path / f"{program}.txt")
        files[-1].write_text(table(f"{program}_perf", redop, per_host=1))
    link, = json.loads(run("import", "nccl-tests", "--link", "ib", *files).stdout)["links"]
    assert link["name"] == "ib" and "all_gather" in link
    inside = tmp_path / "inside.txt"
    inside.write_text(table("all_reduce_perf", "sum", per_host=4))
    cluster = json.loads(run("import", "nccl-tests", "--inside", inside, files[0]).stdout)
    assert (cluster["workers"], cluster["workers_per_node"]) == (16, 4)


def test_an_unnamed_collective_is_told_by_the_number_of_ranks(tmp_path):
    path = tmp_path / "unnamed.txt"
    path.write_text(table("", "sum", ranks=0))  # a bus bandwidth of 1.5 times the other one
    found = json.loads(run("import", "nccl-tests", path, "--workers", "4", "--json").stdout)
    assert found["fits"][0]["collective"] == "all_reduce"
    for more in ([], ["--workers", "128"]):
        assert "which collective" in run("import", "nccl-tests", path, *more, code=2).stderr


@pytest.mark.parametrize("time", ["nan", "-20.1", "0.00", "inf"])
def test_a_size_without_a_time_above_0_is_refused(tmp_path, time):
    path = tmp_path / "run.txt"
    path.write_text(table("all_reduce_perf", "sum").replace("30.10", time))
    assert "line 10: has no time above 0" in run("import", "nccl-tests", path, code=2).stderr


def test_a_size_beyond_all_memory_is_refused(tmp_path):
    path = tmp_path / "run.txt"
    path.write_text(table("all_reduce_perf", "sum").replace("     4194304 ", "99999999999999999999 "))
    assert "2^53 bytes" in run("import", "nccl-tests", path, code=2).stderr


@pytest.mark.parametrize("command", [["fit", LINKS], ["import", "kineto", "t.json"], ["import", "nccl-tests", "t.txt"]])
def test_one_result_goes_to_standard_output(command):
    done = run(*command, "--json", "-o", "-", code=2)
    assert "more than one result" in done.stderr and done.stdout == ""


def test_runs_of_one_host_become_the_links_inside(tmp_path):
    between, inside, all_ranks = tmp_path / "between.txt", tmp_path / "inside.txt", tmp_path / "all.txt"
    between.write_text(table("all_reduce_perf", "sum", ranks=3, per_host=1))
    inside.write_text(table("all_reduce_perf", "sum", ranks=4, per_host=4))
    all_ranks.write_text(table("all_reduce_perf", "sum", ranks=12, per_host=4))
    done = run("import", "nccl-tests", between, "--link", "ib", "--inside", inside, "--inside-link", "nvlink")
    cluster = json.loads(done.stdout)
    assert (cluster["workers"], cluster["workers_per_node"]) == (12, 4)
    assert [link["name"] for link in cluster["links"]] == ["ib"]
    assert [link["name"] for link in cluster["inside"]["links"]] == ["nvlink"]
    assert "nvlink" in done.stderr
    refused = run("import", "nccl-tests", all_ranks, "--inside", inside, code=2).stderr
    assert "all.txt: ran on 4 ranks of a host" in refused and "one rank on each host" in refused
    refused = run("import", "nccl-tests", between, "--inside", all_ranks, code=2).stderr
    assert "all.txt: ran on more than one host" in refused
    nameless = tmp_path / "nameless.txt"
    nameless.write_text(table("all_reduce_perf", "sum", ranks=0))
    assert "--workers-per-node" in run("import", "nccl-tests", between, "--inside", nameless, code=2).stderr
    told = run("import", "nccl-tests", nameless, "--inside", inside, "--workers", "8").stdout
    assert json.loads(told)["workers"] == 8
    refused = run("import", "nccl-tests", nameless, "--inside", inside, "--workers", "6", code=2).stderr
    assert "--workers: 6 ranks are not whole hosts of 4" in refused
    one_size = tmp_path / "one.txt"
    one_size.write_text(re.sub(r"^ +(65536|4194304) .*\n", "", inside.read_text(), flags=re.MULTILINE))
    refused = run("import", "nccl-tests", between, "--inside", one_size, code=2).stderr
    assert f"{between}, {one_size}: inside.links[0], all_reduce: measurements: fewer than two" in refused


def test_measurements_inside_a_node_are_fitted(tmp_path):
    path = tmp_path / "links.json"
    measured = json.loads(LINKS.read_text())
    inside = {"startup_growth": "log", "links": [measured["links"][1] | {"name": "bus"}]}
    path.write_text(json.dumps(measured | {"workers": 8, "workers_per_node": 2, "inside": inside}))
    found = json.loads(run("fit", path, "--json").stdout)
    assert found["fits"][-1]["link"] == "bus"
    assert found["cluster"]["inside"]["startup_growth"] == "log"
    line, = found["cluster"]["inside"]["links"]
    assert line | {"name": "eth1"} == found["cluster"]["links"][1]
    path.write_text(json.dumps(measured | {"workers": 8, "workers_per_node": 2, "inside": {"links": [{"name": "bus"}]}}))
    assert f"{path}: inside.links[0].measurements" in run("fit", path, code=2).stderr


def test_workers_are_asked_for_where_no_file_tells_them(tmp_path):
    path = tmp_path / "ar.txt"
    path.write_text(table("all_reduce_perf", "sum", ranks=0))
    assert "--workers" in run("import", "nccl-tests", path, code=2).stderr
    assert json.loads(run("import", "nccl-tests", path, "--workers", "16").stdout)["workers"] == 16
