"""The command line's contract: outputs, exit codes and messages that clients rely on."""

import copy
import json
import math
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(os.environ.get("GRADWEAVE_COMMAND", ROOT / "build" / "gradweave"))
WORKLOADS, CLUSTERS = ROOT / "examples" / "workloads", ROOT / "examples" / "clusters"
TABLE2 = WORKLOADS / "deft-table2-vgg19.json"
ONE_LINK = CLUSTERS / "deft-table2-one-link.json"

SCHEMES = """sequential wfbp ddp horovod mg_wfbp asc_wfbp p3 bytescheduler us_byte dear deft covap local_sgd partial_sgd
dreamddp delayed_averaging optimal auto""".split()
FIGURES = """name iteration_us cycle_us cycle_iterations exposed_us updates_per_iteration staleness_max lower_bound_us
lower_bound ops_per_iteration bytes_per_iteration extra_bytes period""".split()


def run(*arguments, code=0):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    assert len(done.stderr) < 20_000
    return done


def result(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.fixture
def workload():
    return {
        "version": 1,
        "name": "three",
        "layers": [
            {"name": "a", "forward_us": 10, "backward_us": 20.5,
             "tensors": [{"name": "a.w", "numel": 5000, "dtype": "float32"}]},
            {"name": "relu", "forward_us": 1, "backward_us": 1, "tensors": []},
            {"name": "b", "forward_us": 7, "backward_us": 0, "tensors": [
                {"name": "b.w", "numel": 300, "dtype": "float16"}, {"name": "b.b", "numel": 1, "dtype": "float32"}]},
        ],
    }


@pytest.fixture
def cluster():
    return {"version": 1, "workers": 4, "workers_per_node": 2, "startup_growth": "log",
            "links": [{"name": "net", "startup_us": 3, "us_per_byte": 0.0008}]}


def test_every_scheme_is_listed_with_its_options():
    listed = {row["name"]: row["options"] for row in result("schemes")["schemes"]}
    assert set(SCHEMES) == set(listed), "SCHEMES above has every scheme"
    for options in listed.values():
        for option in options:
            assert {"name", "type", "unit", "default", "default_source"} <= set(option)
    defaults = {option["name"]: option["default"] for option in listed["ddp"]}
    assert defaults["bucket_cap_bytes"] == 26214400 and defaults["first_bucket_bytes"] == 1048576


def test_compare_lists_every_scheme_with_every_figure():
    output = result("compare", "--workload", TABLE2, "--cluster", ONE_LINK)
    assert set(output) == {"workload", "cluster", "schemes"}
    rows = {row["name"]: row for row in output["schemes"]}
    assert set(SCHEMES) <= set(rows)
    for row in rows.values():
        assert "starves" in row or set(FIGURES) <= set(row)
        if "starves" not in row:
            assert row["iteration_us"] >= row["lower_bound_us"] - 1e-6
            assert row["iteration_us"] == pytest.approx(130285 + row["exposed_us"])
            assert row["cycle_us"] / row["cycle_iterations"] == pytest.approx(row["iteration_us"])
    assert rows["wfbp"]["iteration_us"] == 285053
    exact = [row["iteration_us"] for row in rows.values() if row.get("consistency") == "exact"]
    assert rows["optimal"]["iteration_us"] == min(exact)


def test_compare_measures_every_scheme_against_the_optimum_of_its_kind():
    tiny, cluster = WORKLOADS / "tiny.json", CLUSTERS / "tiny-4.json"
    rows = result("compare", "--workload", tiny, "--cluster", cluster)["schemes"]
    kinds = {}
    for row in rows:
        kinds.setdefault(row["consistency"], []).append(row)
        assert row["optimum_bound_us"] <= row["optimum_us"] <= row["iteration_us"]
        assert row["over_optimum"] == pytest.approx(row["iteration_us"] / row["optimum_us"] - 1)
    exact = {row["name"]: row for row in kinds["exact"]}
    for row in exact.values():  # proved by a search of all orders, fusions and splits
        assert row["optimum_us"] == row["optimum_bound_us"] == exact["optimal"]["iteration_us"] == 1370
        assert row["optimum_proof"].startswith("optimum: search")
    assert exact["p3"]["over_optimum"] == pytest.approx(1380 / 1370 - 1)
    local, = (result("compare", "--workload", tiny, "--cluster", cluster, "--schemes", "optimal", "--set", "family=local")
              ["schemes"])
    assert {row["optimum_us"] for row in kinds["local"]} == {local["iteration_us"]}
    for consistency in ("corrected", "delayed"):  # only computation bounds them
        assert {row["optimum_bound_us"] for row in kinds[consistency]} == {1050}
        assert {row["optimum_us"] for row in kinds[consistency]} == {min(row["iteration_us"] for row in kinds[consistency])}
    alone, = result("compare", "--workload", tiny, "--cluster", cluster, "--schemes", "wfbp")["schemes"]
    assert "optimum_us" not in alone
    methods = "optimal parts=1,optimal compressor=int8,wfbp"
    named = result("compare", "--workload", tiny, "--cluster", cluster, "--schemes", methods)["schemes"]
    searched, encoded, wfbp = (next(row for row in named if row["name"] == name) for name in methods.split(","))
    assert wfbp["optimum_us"] == searched["optimum_us"] == searched["iteration_us"]
    assert encoded["optimum_us"] == encoded["iteration_us"]


def test_a_search_of_whole_tensors_is_no_bound_beside_a_plan_that_cuts_them_and_is_faster(workload, cluster, tmp_path):
    layers = [("a", 1, 60, 1000), ("b", 40, 20, 1000), ("c", 80, 60, 20000), ("d", 80, 60, 40000)]
    workload["layers"] = [{"name": name, "forward_us": forward, "backward_us": backward,
                           "tensors": [{"name": name, "numel": numel}]} for name, forward, backward, numel in layers]
    cluster["links"][0].update(startup_us=0, us_per_byte=0.001)
    given = ["compare", "--workload", write(tmp_path / "w.json", workload), "--cluster", write(tmp_path / "c.json", cluster)]
    alone, = result(*given, "--schemes", "optimal")["schemes"]
    assert alone["optimum_bound_us"] == 406 and alone["optimum_proof"].startswith("optimum: search")
    rows = result(*given, "--schemes", "p3,optimal", "--set", "partition_bytes=1kB")["schemes"]
    assert {row["optimum_us"] for row in rows} == {405} and not any("optimum_bound_us" in row for row in rows)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_plan_is_valid_and_simulates_like_its_row(scheme, workload, cluster, tmp_path):
    w, c, p = write(tmp_path / "w.json", workload), write(tmp_path / "c.json", cluster), tmp_path / "p.json"
    given = ("--workload", w, "--cluster", c)
    printed = run("plan", *given, "--scheme", scheme, "--json").stdout
    run("plan", *given, "--scheme", scheme, "-o", p)
    assert p.read_text() == printed
    assert str(tmp_path) not in printed
    for key in ("period", "blocks"):
        assert key in json.loads(printed)
    assert result("validate", "--plan", p, "--workload", w)["violations"] == []
    simulated = result("simulate", "--plan", p, *given)
    row, = result("compare", *given, "--schemes", scheme)["schemes"]
    assert {key: simulated[key] for key in FIGURES if key != "name"} == {key: row[key] for key in FIGURES if key != "name"}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", ["no tensors", "one layer", "no compute", "one worker"])
def test_extreme_inputs_have_an_answer(scheme, shape, workload, cluster, tmp_path):
    if shape == "no tensors":
        for layer in workload["layers"]:
            layer["tensors"] = []
    elif shape == "one layer":
        workload["layers"] = workload["layers"][:1]
    elif shape == "no compute":
        for layer in workload["layers"]:
            layer["forward_us"] = layer["backward_us"] = 0
    else:
        cluster["workers"] = 1
    given = ("--workload", write(tmp_path / "w.json", workload), "--cluster", write(tmp_path / "c.json", cluster))
    row, = result("compare", *given, "--schemes", scheme)["schemes"]
    if "starves" in row:
        assert result("plan", *given, "--scheme", scheme, code=1)["starves"] == row["starves"]
    else:
        assert row["iteration_us"] >= row["lower_bound_us"] - 1e-6


BAD_WORKLOADS = {
    "not json": ("{", "w.json"),
    "empty": ("", "w.json"),
    "version": (lambda w: w.update(version=2), "version"),
    "no layers": (lambda w: w.update(layers=[]), "layers"),
    "negative time": (lambda w: w["layers"][0].update(forward_us=-1), "layers[0].forward_us"),
    "huge time": (lambda w: w["layers"][0].update(forward_us=1e300), "layers[0].forward_us"),
    "text as time": (lambda w: w["layers"][0].update(forward_us="1"), "layers[0].forward_us"),
    "missing key": (lambda w: w["layers"][1].pop("backward_us"), "layers[1]"),
    "zero elements": (lambda w: w["layers"][0]["tensors"][0].update(numel=0), "numel"),
    "overflow": (lambda w: w["layers"][0]["tensors"][0].update(numel=2**63), "numel"),
    "dtype": (lambda w: w["layers"][0]["tensors"][0].update(dtype="float33"), "dtype"),
    "same layer": (lambda w: w["layers"][1].update(name="a"), "layers[1].name"),
    "same tensor": (lambda w: w["layers"][2]["tensors"][0].update(name="a.w"), "layers[2].tensors[0].name"),
}


@pytest.mark.parametrize("case", BAD_WORKLOADS)
def test_a_bad_workload_is_named(case, workload, tmp_path):
    change, place = BAD_WORKLOADS[case]
    if callable(change):
        change(workload)
    path = write(tmp_path / "w.json", workload if callable(change) else change)
    done = run("compare", "--workload", path, "--cluster", ONE_LINK, code=2)
    assert "w.json" in done.stderr and place in done.stderr and done.stdout == ""


BAD_CLUSTERS = {
    "workers": (lambda c: c.update(workers=0), "workers"),
    "growth": (lambda c: c.update(startup_growth="cubic"), "startup_growth"),
    "no links": (lambda c: c.update(links=[]), "links"),
    "rate": (lambda c: c["links"][0].update(us_per_byte=-1), "us_per_byte"),
    "large rate": (lambda c: c["links"][0].update(us_per_byte=1e16), "links[0].us_per_byte: exceeds 1e15"),
    "concurrency": (lambda c: c["links"][0].update(concurrency=-1), "concurrency"),
    "same link": (lambda c: c["links"].append(copy.deepcopy(c["links"][0])), "links[1].name"),
}


@pytest.mark.parametrize("case", BAD_CLUSTERS)
def test_a_bad_cluster_is_named(case, cluster, tmp_path):
    change, place = BAD_CLUSTERS[case]
    change(cluster)
    done = run("compare", "--workload", TABLE2, "--cluster", write(tmp_path / "c.json", cluster), code=2)
    assert "c.json" in done.stderr and place in done.stderr


def test_bad_usage_lists_what_is_valid():
    given = ("--workload", TABLE2, "--cluster", ONE_LINK)
    for scheme in SCHEMES:
        assert scheme in run("plan", *given, "--scheme", "nope", code=2).stderr
    message = run("plan", *given, "--scheme", "ddp", "--set", "nope=1", code=2).stderr
    assert "bucket_cap_bytes" in message and "first_bucket_bytes" in message
    assert "bucket_cap_bytes" in run("plan", *given, "--scheme", "ddp", "--set", "bucket_cap_bytes=0", code=2).stderr
    assert "name=value" in run("plan", *given, "--scheme", "ddp", "--set", "oops", code=2).stderr
    run("plan", *given, code=2)
    run("nope", code=2)
    run(code=2)
    assert "no-such-file" in run("compare", "--workload", "no-such-file", "--cluster", ONE_LINK, code=2).stderr
    run("plan", *given, "--scheme", "ddp", "-o", "/nonexistent/plan.json", code=2)


@pytest.mark.parametrize("option, value, remedy", [
    ("--workers", "8,,16", "','"), ("--workers", "8,", "','"), ("--workers", "", "','"),
    ("--workers", "0", "from 1 to 10000000"),
    ("--workers", "8,1e3", "from 1 to 10000000"), ("--workers", "8 ", "from 1 to 10000000"),
    ("--links", "1,,2", "','"), ("--links", "0", "from 1e-06 to 1000000"), ("--links", "nan", "from 1e-06 to 1000000"),
    ("--links", "10Gb", "Gb/s"), ("--schemes", "wfbp,,ddp", "','"), ("--schemes", "wfbp,nope", "us_byte"),
])
def test_a_malformed_list_is_named(option, value, remedy):
    message = run("compare", "--workload", TABLE2, "--cluster", ONE_LINK, option, value, code=2).stderr
    assert remedy in message and (option in message or "nope" in message)


def test_messages_stay_short_whatever_the_argument():
    given, long = ("--workload", TABLE2, "--cluster", ONE_LINK), "x" * 100_000
    for arguments in (["plan", *given, "--scheme", long], ["plan", *given, "--scheme", "ddp", "--set", f"{long}=1"],
                      ["plan", *given, "--scheme", "ddp", "--set", f"bucket_cap_bytes={long}"],
                      ["plan", *given, "--scheme", "auto", "--set", f"allow={long}"],
                      ["compare", *given, "--set", f"{long}=1"],
                      ["compare", *given, "--set", long], ["compare", *given, "--workers", long],
                      ["compare", "--workload", long], ["plan", *given, "--scheme", "ddp", "-o", long]):
        run(*arguments, code=2)


def test_compare_says_which_scheme_cannot_serve_an_option():
    given = ("compare", "--workload", WORKLOADS / "tiny.json", "--cluster", CLUSTERS / "tiny-4.json")
    rows = {row["name"]: row for row in result(*given, "--set", "compressor=top_k")["schemes"]}
    assert set(SCHEMES) <= set(rows)
    assert "reduce-scatter" in rows.pop("dear")["starves"]
    assert all("iteration_us" in row for row in rows.values())
    assert "compressor_density" in run(*given, "--set", "compressor_density=0.5", code=2).stderr
    assert "partition_bytes" in run(*given, "--set", "partition_bytes=0", code=2).stderr
    # Casts are for gradients, `auto` is for averages.
    rows = {row["name"]: row for row in result(*given, "--set", "compressor=fp16")["schemes"]}
    assert "is not one of its values" in rows["local_sgd"]["starves"] and "iteration_us" in rows["ddp"]
    rows = {row["name"]: row for row in result(*given, "--set", "compressor=auto")["schemes"]}
    assert "is not one of its values" in rows["ddp"]["starves"] and rows["local_sgd"]["consistency"] == "compressed"
    assert "zip" in run(*given, "--set", "compressor=zip", code=2).stderr


def test_a_compressor_never_makes_auto_filter_gradients():
    # Communication takes 54 times the compute: COVAP's filter would be the fastest by far.
    given = ("--workload", TABLE2, "--cluster", ONE_LINK)
    rows = {row["name"]: row for row in result("compare", *given, "--links", "0.1", "--set", "compressor=fp16")["schemes"]}
    assert rows["covap"]["iteration_us"] < rows["auto"]["iteration_us"]
    assert rows["auto"]["chosen"]["effects"] == ["compressed"]
    plan = json.loads(run("plan", *given, "--scheme", "auto", "--set", "compressor=fp16").stdout)
    assert plan["finding"]["chosen"]["scheme"] != "covap" and not plan.get("residual")
    assert not any(iteration.get("dropped") for iteration in plan["period"])
    assert all(op["compression"]["name"] == "fp16" for iteration in plan["period"] for op in iteration["ops"])


def test_ddp_stays_the_baseline_under_a_compressor():
    given = ("compare", "--workload", TABLE2, "--cluster", ONE_LINK, "--schemes", "ddp,dear,delayed_averaging")
    plain = {row["name"]: row for row in result(*given)["schemes"]}
    cast = {row["name"]: row for row in result(*given, "--set", "compressor=fp16")["schemes"]}
    assert not any("compressor" in row for row in plain.values()) and plain["ddp"]["times_ddp"] == 1
    assert {name for name, row in cast.items() if "compressor" in row} == {"ddp", "dear"}
    for name in ("ddp", "dear"):
        assert cast[name]["compressor"] == "fp16"
        assert cast[name]["times_ddp"] == pytest.approx(plain["ddp"]["iteration_us"] / cast[name]["iteration_us"])
    assert cast["ddp"]["times_ddp"] > 1
    text = run(*given, "--set", "compressor=fp16").stdout
    assert "ddp +fp16" in text and "dear +fp16" in text and "delayed_averaging +" not in text


def test_what_faults_leave_of_training():
    given = ("--workload", WORKLOADS / "resnet50.json", "--cluster", CLUSTERS / "eth-10g-16.json", "--links", "1")
    inputs = ("--step", "1s", "--average", "4s", "--recovery", "2min", "--detection", "3s", "--epoch-change", "500ms",
              "--state-bytes", "125MB", "--checkpoint-every", "5min", "--checkpoint-time", "4s", "--restart", "30s")
    output = result("compare", *given, *inputs, "--mtbf", "6h,30d", "--islands", "8,64")
    assert set(output) == {"workload", "cluster", "goodput"}
    assert [(row["islands"], row["mtbf_us"]) for row in output["goodput"]] == [
        (islands, mtbf) for islands in (8, 64) for mtbf in (6 * 3600e6, 30 * 86400e6)]
    for row in output["goodput"]:
        told = {name: row[name] for name in ("step_us", "average_us", "recovery_us", "detection_us", "epoch_us", "state_bytes",
                                             "checkpoint_us", "restart_us")}
        assert list(told.values()) == [1e6, 4e6, 120e6, 3e6, 5e5, 125e6, 4e6, 30e6]
        assert row["state_us"] == pytest.approx(1e6, rel=0.01)  # at 1 Gb/s
        assert row["least_mtbf_us"] == pytest.approx(row["islands"] * 7.5e6 / math.log(2))
        ways = {way["way"]: way for way in row["ways"]}
        assert list(ways) == ["islands", "checkpoints", "best_checkpoints", "quorum"]
        for way in ways.values():
            assert way["goodput"] == pytest.approx(way["expected"], abs=3 * way["uncertainty"] + 0.002)
        assert ways["islands"]["goodput"] > ways["best_checkpoints"]["goodput"] > ways["checkpoints"]["goodput"]
        assert ways["islands"]["efficiency"] == ways["islands"]["goodput"]
        assert ways["quorum"]["efficiency"] < ways["quorum"]["goodput"]  # its messages don't hide
    often = {row["islands"]: {way["way"]: way["goodput"] for way in row["ways"]} for row in output["goodput"][::2]}
    assert often[64]["islands"] == pytest.approx(often[8]["islands"], abs=0.01)  # a loss is one island's
    assert often[64]["checkpoints"] < often[8]["checkpoints"] - 0.3              # or everybody's
    again = result("compare", *given, *inputs, "--mtbf", "6h,30d", "--islands", "8,64")
    assert again == output
    text = run("compare", *given, "--mtbf", "30min", "--islands", "4096").stdout
    assert "4096 islands, 1 Gb/s, each dies every 30 min" in text and "averages rarely land" in text
    assert "samples/s" in run("compare", *given, "--mtbf", "1d", "--batch-size", "32").stdout
    long, = result("compare", *given, "--mtbf", "6h", "--step", "30min")["goodput"]  # than the time between two checkpoints
    ways = {way["way"]: way["goodput"] for way in long["ways"]}
    assert ways["best_checkpoints"] >= ways["checkpoints"]
    large = ("--islands", "64", "--state-bytes")  # 1 Gb/s: 800 s and 8 s
    assert "dies before it has the state" in run("compare", *given, "--mtbf", "10min", *large, "100GB").stdout
    assert "dies before it has the state" not in run("compare", *given, "--mtbf", "10min", *large, "1GB").stdout


@pytest.mark.parametrize("words, said", [
    (("--mtbf", "0"), "--mtbf"), (("--mtbf", "6 hours"), "unknown unit"), (("--mtbf", "1d", "--islands", "1"), "--islands"),
    (("--mtbf", "1d", "--period", "0"), "--period"), (("--mtbf", "1d", "--compressor", "fp16"), "fp16"),
    (("--mtbf", "1d", "--recovery", "soon"), "--recovery"), (("--mtbf", "1d", "--state-bytes", "2 apples"), "--state-bytes"),
    (("--mtbf", "1d", "--schemes", "ddp"), "--schemes"), (("--recovery", "1min"), "--mtbf")])
def test_what_faults_are_refused(words, said):
    done = run("compare", "--workload", WORKLOADS / "resnet50.json", "--cluster", CLUSTERS / "eth-10g-16.json", *words, code=2)
    assert said in done.stderr and done.stdout == ""


def test_faults_need_tensors_and_a_rate(workload, cluster, tmp_path):
    for layer in workload["layers"]:
        layer["tensors"] = []
    bare = write(tmp_path / "w.json", workload)
    assert "no tensors" in run("compare", "--workload", bare, "--cluster", ONE_LINK, "--mtbf", "1d", code=2).stderr
    idle = {"name": "l", "forward_us": 0, "backward_us": 0, "tensors": [{"name": "w", "numel": 9}]}
    at_once = write(tmp_path / "o.json", {"version": 1, "name": "o", "layers": [idle]})
    said = run("compare", "--workload", at_once, "--cluster", ONE_LINK, "--mtbf", "1d", code=2).stderr
    assert "the workload: computes in no time" in said and "--step" in said
    cluster["workers"] = 1
    alone = write(tmp_path / "c.json", cluster)
    assert "one worker" in run("compare", "--workload", WORKLOADS / "resnet50.json", "--cluster", alone, "--mtbf", "1d",
                               "--islands", "4", code=2).stderr


def test_coverage_efficiency_and_samples_are_told(tmp_path):
    given = ("--workload", TABLE2, "--cluster", ONE_LINK)
    workers = json.loads(ONE_LINK.read_text())["workers"]
    model_us = sum(layer["communication_us"] for layer in json.loads(TABLE2.read_text())["layers"])
    rows = result("compare", *given, "--schemes", "ddp,deft", "--batch-size", "32")["schemes"]
    for row in rows:
        assert row["coverage_rate"] == pytest.approx(model_us / 130285)
        assert row["scaling_efficiency"] == pytest.approx(row["compute_us"] / row["iteration_us"])
        assert row["samples_per_second"] == pytest.approx(workers * 32e6 / row["iteration_us"])
    text = run("compare", *given, "--schemes", "ddp,deft").stdout
    assert "coverage rate 1.9" in text and "samples/s" not in text
    names = [line.split()[1 if line[0] == "*" or line[1] == "!" else 0] for line in text.splitlines()
             if " ms " in line and "forward" not in line and "best" not in line]
    assert names == ["ddp", "deft"]  # the exact one first, though the other is faster
    assert rows[0]["name"] == "deft"
    assert "samples/s" in run("compare", *given, "--schemes", "ddp", "--batch-size", "32").stdout
    ddp = next(row for row in rows if row["name"] == "ddp")
    said = run("plan", *given, "--scheme", "ddp", "--batch-size", "32", "-o", tmp_path / "plan.json").stderr
    assert f"scaling efficiency {100 * ddp['scaling_efficiency']:.1f} %" in said and "coverage rate 1.9" in said
    assert f"{ddp['samples_per_second']:.0f} samples/s" in said
    assert run("plan", *given, "--scheme", "ddp", "--quiet", "-o", tmp_path / "plan.json").stderr == ""
    assert "--batch-size" in run("compare", *given, "--batch-size", "0", code=2).stderr


def two_levels(cluster):
    inside = {"startup_growth": "constant", "links": [{"name": "bus", "startup_us": 10, "us_per_byte": 1e-5}]}
    return cluster | {"workers": 8, "workers_per_node": 2, "inside": inside}


def test_every_scheme_plans_over_two_levels(tmp_path, workload, cluster):
    given = ("--workload", write(tmp_path / "w.json", workload),
             "--cluster", write(tmp_path / "c.json", two_levels(cluster)))
    plan = tmp_path / "plan.json"
    compared = run("compare", *given, "--json")
    assert compared.stderr == ""
    for row in json.loads(compared.stdout)["schemes"]:
        assert row["workers"] == 8
        if "starves" in row:
            continue
        run("plan", *given, "--scheme", row["name"], "-o", plan)
        made = json.loads(plan.read_text())
        assert made["workers_per_node"] == 2 and {link["level"] for link in made["links"]} == {"inside", "between"}
        run("validate", *given, "--plan", plan)
        simulated = json.loads(run("simulate", *given, "--plan", plan, "--json").stdout)
        assert simulated["iteration_us"] == row["iteration_us"]
        assert {link["name"] for link in simulated["links"]} == {link["name"] for link in made["links"]}


def test_what_ifs_change_nodes_and_their_workers(tmp_path, workload, cluster):
    given = ("--workload", write(tmp_path / "w.json", workload),
             "--cluster", write(tmp_path / "c.json", two_levels(cluster)), "--schemes", "ddp")
    more_nodes = json.loads(run("compare", *given, "--workers", "4,8,16", "--json").stdout)["schemes"]
    assert [row["workers"] for row in more_nodes] == [4, 8, 16]
    assert more_nodes[0]["iteration_us"] < more_nodes[1]["iteration_us"] < more_nodes[2]["iteration_us"]
    larger = json.loads(run("compare", *given, "--workers-per-node", "1,2,4", "--json").stdout)["schemes"]
    assert [(row["workers"], row.get("workers_per_node", 1)) for row in larger] == [(4, 1), (8, 2), (16, 4)]
    assert larger[0]["iteration_us"] < larger[1]["iteration_us"] < larger[2]["iteration_us"]
    assert "not a multiple of workers_per_node, 2" in run("compare", *given, "--workers", "9", code=2).stderr
    flat = (*given[:3], write(tmp_path / "flat.json", cluster))
    said = run("compare", *flat, "--workers-per-node", "4", code=2).stderr
    assert "says nothing about the links within a node" in said and "flat.json" in said


def test_two_levels_without_links_inside_are_said_not_to_be_modelled(tmp_path, workload, cluster):
    nested = ("--workload", write(tmp_path / "w.json", workload), "--cluster", write(tmp_path / "c.json", cluster))
    flat = (*nested[:3], write(tmp_path / "flat.json", cluster | {"workers_per_node": 1}))
    plan = tmp_path / "plan.json"
    for arguments in (["plan", "--scheme", "ddp", "-o", plan], ["simulate", "--plan", plan], ["compare", "--schemes", "ddp"],
                      ["report", "--schemes", "ddp", "-o", tmp_path / "page.html"]):
        said = run(*arguments, *nested).stderr
        assert "workers_per_node is 2" in said and "'inside', the links within a node, is missing" in said
        assert "is missing" not in run(*arguments, *flat).stderr
        assert run(*arguments, *nested, "--quiet").stderr == ""


def test_a_plan_of_the_largest_model_is_valid_or_not_written(tmp_path):
    tensor = {"name": "w", "numel": 2**51, "dtype": "float32"}
    given = ("--workload", write(tmp_path / "w.json", {"version": 1, "name": "huge", "layers": [
        {"name": "l", "forward_us": 1, "backward_us": 1, "tensors": [tensor]}]}))
    path = tmp_path / "plan.json"
    for workers in (4, 10_000_000):
        cluster = write(tmp_path / "c.json", {"version": 1, "workers": workers, "workers_per_node": 1,
                                              "startup_growth": "log",
                                              "links": [{"name": "net", "startup_us": 3, "us_per_byte": 1e-6}]})
        for name in ("ef_signsgd", "top_k", "power_sgd", "int4"):
            path.unlink(missing_ok=True)
            arguments = ("plan", *given, "--cluster", cluster, "--scheme", "ddp", "--set", f"compressor={name}", "-o", path)
            if workers > 4 and name in ("ef_signsgd", "top_k"):
                assert "2^62" in run(*arguments, code=2).stderr and not path.exists()
            else:
                run(*arguments)
                run("validate", "--plan", path, *given, "--cluster", cluster)
                assert result("simulate", "--plan", path, *given, "--cluster", cluster)["exposed_us"] > 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_no_failed_check(tmp_path):
    given = ("--workload", WORKLOADS / "tiny.json", "--cluster", CLUSTERS / "tiny-4.json")
    plan = tmp_path / "plan.json"
    run("plan", *given, "--scheme", "wfbp", "-o", plan)
    assert "/dev/full" in run("plan", *given, "--scheme", "wfbp", "-o", "/dev/full", code=2).stderr
    for option in ("--trace", "--svg"):
        assert "/dev/full" in run("simulate", "--plan", plan, *given, option, "/dev/full", code=2).stderr
    for arguments in (["schemes"], ["--version"], ["plan", "--help"], ["simulate", "--plan", plan, *given, "--json"]):
        with open("/dev/full", "w") as full:
            assert subprocess.run([COMMAND, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE).returncode == 2


def test_auto_says_what_corrected_averages_would_give():
    given = ("--workload", WORKLOADS / "tiny.json", "--cluster", CLUSTERS / "tiny-4.json")
    row, = result("compare", *given, "--schemes", "auto")["schemes"]
    asked, = result("compare", *given, "--schemes", "auto", "--set", "allow=exact+corrected")["schemes"]
    assert row["consistency"] == "exact" and row["chosen"]["effects"] == ["exact"]
    assert row["if_corrected"] == asked["chosen"]
    assert row["if_corrected"]["iteration_us"] == asked["iteration_us"] < row["iteration_us"]
    assert "if_corrected" not in asked
    assert row["if_corrected"]["scheme"] in run("compare", *given, "--schemes", "auto").stdout
    plan = json.loads(run("plan", *given, "--scheme", "auto").stdout)
    assert plan["finding"]["if_corrected"] == row["if_corrected"]


def test_a_claim_that_the_plan_itself_refutes_is_no_bound(tmp_path):
    given = ("--workload", WORKLOADS / "tiny.json", "--cluster", CLUSTERS / "tiny-4.json")
    plan = json.loads(run("plan", *given, "--scheme", "optimal").stdout)
    path = tmp_path / "plan.json"
    assert result("simulate", "--plan", write(path, plan), *given)["lower_bound_us"] == 1370
    plan["finding"]["lower_bound_us"] = 5000
    simulated = result("simulate", "--plan", write(path, plan), *given)
    assert simulated["lower_bound_us"] <= simulated["iteration_us"]
    assert all(bound["name"] != "optimum" for bound in simulated["bounds"])


@pytest.mark.parametrize("command", ["plan", "simulate", "compare", "validate", "preserve", "schemes", "fit", "import kineto",
                                     "import nccl-tests"])
def test_help_has_an_example(command):
    assert "Example" in run(*command.split(), "--help").stdout


BREAKAGES = {
    "dropped op": lambda plan: plan["period"][0]["ops"].pop(),
    "doubled op": lambda plan: plan["period"][0]["ops"].append(plan["period"][0]["ops"][0]),
    "unknown link": lambda plan: plan["period"][0]["ops"][0].update(link="nope"),
    "early release": lambda plan: plan["period"][0]["ops"][-1].update(release=plan["period"][0]["ops"][0]["release"]),
    "no blocks": lambda plan: plan["blocks"].clear(),
    "hole": lambda plan: plan["blocks"][0].update(begin=1),
    "outside": lambda plan: plan["blocks"][0].update(end=10**12),
    "unknown tensor": lambda plan: plan["blocks"][0].update(tensor="nope"),
    "no apply": lambda plan: plan["period"][0]["applies"].clear(),
    "future gradient": lambda plan: plan["period"][0]["ops"][0].update(merges=[1]),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_broken_plan_fails_the_check(breakage, tmp_path):
    plan = json.loads(run("plan", "--workload", TABLE2, "--cluster", ONE_LINK, "--scheme", "wfbp").stdout)
    BREAKAGES[breakage](plan)
    path = write(tmp_path / "plan.json", plan)
    found = result("validate", "--plan", path, "--workload", TABLE2, code=1)["violations"]
    assert found and all({"what", "where", "remedy"} <= set(each) and " -1" not in each["remedy"] for each in found)
    assert "plan.json" in run("simulate", "--plan", path, "--workload", TABLE2, "--cluster", ONE_LINK, code=2).stderr


def test_what_if_scales_workers_and_links(tmp_path):
    resnet, cluster = WORKLOADS / "resnet50.json", CLUSTERS / "eth-10g-16.json"
    rows = result("compare", "--workload", resnet, "--cluster", cluster, "--schemes", "wfbp", "--workers", "8,16,64",
                  "--plot", tmp_path / "scaling.svg")["schemes"]
    assert [row["workers"] for row in rows] == [8, 16, 64]
    times = [row["iteration_us"] for row in rows]
    assert times == sorted(times)
    assert (tmp_path / "scaling.svg").read_text().startswith("<svg")
    slow, fast = result("compare", "--workload", resnet, "--cluster", cluster, "--schemes", "wfbp",
                        "--links", "1,100")["schemes"]
    assert slow["iteration_us"] > fast["iteration_us"]


def test_a_plot_of_workers_and_links_keeps_them_apart(tmp_path):
    plot = tmp_path / "curves.svg"
    run("compare", "--workload", WORKLOADS / "tiny.json", "--cluster", CLUSTERS / "tiny-4.json", "--schemes", "wfbp,ddp",
        "--workers", "2,8", "--links", "1,10", "--plot", plot)
    assert plot.read_text().count("<polyline") == 4 and "wfbp, 8 workers" in plot.read_text()
    run("compare", "--workload", WORKLOADS / "tiny.json", "--cluster", CLUSTERS / "tiny-4.json", "--schemes", "wfbp,ddp",
        "--workers", "2,8", "--links", "10", "--plot", plot)
    assert plot.read_text().count("<polyline") == 2 and "wfbp, 8 workers" not in plot.read_text()


@pytest.mark.parametrize("growth", ["linear", "constant"])
@pytest.mark.parametrize("workload", ["tiny", "deft-table2-vgg19"])  # modelled and given times
def test_what_if_begins_with_one_worker_who_waits_for_nobody(workload, growth, tmp_path):
    cluster = write(tmp_path / "c.json", json.loads((CLUSTERS / "tiny-4.json").read_text()) | {"startup_growth": growth})
    given = ("--workload", WORKLOADS / f"{workload}.json", "--cluster", cluster, "--workers", "1,2")
    for links in ([], ["--links", "10"]):
        rows = result("compare", *given, *links)["schemes"]
        alone = [row for row in rows if row["workers"] == 1]
        assert len(alone) == len(SCHEMES) and all(row["iteration_us"] == row["compute_us"]
                                                  for row in alone if row["name"] != "horovod")
        assert {row["workers"] for row in rows} == {1, 2}


def test_classes_of_workers_wait_for_the_slowest(workload, cluster, tmp_path):
    slow = copy.deepcopy(workload)
    slow["layers"][0]["forward_us"] = 100
    fast_file, slow_file = write(tmp_path / "fast.json", workload), write(tmp_path / "slow.json", slow)
    given = ("--cluster", write(tmp_path / "c.json", cluster), "--schemes", "wfbp")
    both, = result("compare", "--workload", fast_file, "--workload", slow_file, *given)["schemes"]
    alone, = result("compare", "--workload", slow_file, *given)["schemes"]
    assert both["iteration_us"] >= alone["iteration_us"]


@pytest.mark.parametrize("place, change", [
    ("layers", lambda w: w["layers"].pop()),
    ("layers[0].name", lambda w: w["layers"][0].update(name="z")),
    ("layers[1].tensors", lambda w: w["layers"][1].update(tensors=[{"name": "n", "numel": 1, "dtype": "float32"}])),
    ("layers[2].tensors[1].numel", lambda w: w["layers"][2]["tensors"][1].update(numel=2)),
    ("layers[2].tensors[0].dtype", lambda w: w["layers"][2]["tensors"][0].update(dtype="float32")),
    ("layers[0].communication_us", lambda w: w["layers"][0].update(communication_us=1)),
])
def test_classes_of_other_models_are_named(place, change, workload, cluster, tmp_path):
    first = write(tmp_path / "first.json", workload)
    change(workload)
    done = run("compare", "--workload", first, "--workload", write(tmp_path / "second.json", workload),
               "--cluster", write(tmp_path / "c.json", cluster), code=2)
    assert f"second.json: {place}: " in done.stderr


def test_a_cluster_that_cannot_be_changed_is_named(workload, cluster, tmp_path):
    cluster["workers"] = 1
    given = ("--workload", write(tmp_path / "w.json", workload), "--cluster", write(tmp_path / "c.json", cluster))
    assert "c.json: workers: " in run("compare", *given, "--workers", "8", code=2).stderr
    assert "c.json: links[0].us_per_byte: " in run("compare", *given, "--links", "8", code=2).stderr


def test_a_trace_opens_as_chrome_events(tmp_path):
    plan, trace, svg = tmp_path / "plan.json", tmp_path / "trace.json", tmp_path / "timeline.svg"
    run("plan", "--workload", TABLE2, "--cluster", ONE_LINK, "--scheme", "wfbp", "-o", plan)
    run("simulate", "--plan", plan, "--workload", TABLE2, "--cluster", ONE_LINK, "--trace", trace, "--svg", svg)
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"M", "X"} <= {event["ph"] for event in events}
    assert any("wait" in json.dumps(event).lower() for event in events)
    assert svg.read_text().startswith("<svg")


MEASUREMENTS = {"version": 1, "loss": [1.8, 2], "gradient_square": 0.3, "noise_square": [5, 20], "batch": 256,
                "learning_rate": 0.01, "momentum": 0.9, "curvature": [2, 6]}


def judged(folder, scheme, code, *options, **changes):
    plan = run("plan", "--workload", TABLE2, "--cluster", ONE_LINK, "--scheme", scheme).stdout
    return result("preserve", "--plan", write(folder / "plan.json", plan), "--workload", TABLE2, "--measurements",
                  write(folder / "measured.json", MEASUREMENTS | changes), *options, code=code)


def test_a_plan_is_judged_by_what_was_measured(tmp_path):
    kept = judged(tmp_path, "deft", 0)
    assert kept["preserves"] and kept["step"] == 0.06 and abs(kept["plain_largest_stable_step"] - 3.8) < 1e-5
    late, = kept["blocks"]
    assert late["share"] == 1 and late["updates_per_iteration"] == 0.5 and late["loss_kept"] and late["stable"]
    assert 0.99 < late["loss_ratio"] < 1 and late["growth"] < 1
    # The same plan at a larger learning rate: the stable step is the plan's, the bad end of the curvature counts.
    fast = judged(tmp_path, "deft", 1, learning_rate=0.05)
    assert not fast["preserves"] and not fast["blocks"][0]["stable"] and fast["blocks"][0]["growth"] > 1
    assert fast["blocks"][0]["largest_stable_step"] == late["largest_stable_step"]
    assert judged(tmp_path, "deft", 0, learning_rate=0.01, curvature=[2, 7.9])["preserves"]
    judged(tmp_path, "deft", 1, learning_rate=0.01, curvature=[2, 8.1])
    judged(tmp_path, "deft", 0, "--stable-share", "0.9", learning_rate=0.01, curvature=[2, 8.1])
    assert not judged(tmp_path, "deft", 1, "--tolerance", "0.0001")["blocks"][0]["loss_kept"]
    # Exact and corrected plans step as plain training does.
    for scheme in ("dear", "delayed_averaging"):
        assert all(block["loss_ratio"] == 1 for block in judged(tmp_path, scheme, 0, learning_rate=0.5)["blocks"])


def test_an_objection_says_what_it_rests_on(tmp_path):
    def said(**changes):
        judged(tmp_path, "deft", 1, **changes)
        return run("preserve", "--plan", tmp_path / "plan.json", "--workload", TABLE2, "--measurements",
                   tmp_path / "measured.json", code=1).stdout

    # Where noise alone moves the loss, rarer steps raise it less than plain training does.
    noisy = said(loss=0.001, gradient_square=1e-6, noise_square=50, curvature=0.01)
    assert "loss differs" in noisy and "falls behind" not in noisy
    late = said(gradient_square=30)
    assert "loss falls behind" in late and "use an exact one" in late
    # Plain training allows 3.8.
    assert "plain data parallelism would diverge too" in said(learning_rate=1, curvature=4)
    assert "would diverge" not in said(learning_rate=1, curvature=3)


def test_a_plan_is_made_so_that_it_keeps_the_accuracy(tmp_path):
    def planned(**changes):
        measured = write(tmp_path / "measured.json", MEASUREMENTS | changes)
        done = run("plan", "--workload", TABLE2, "--cluster", ONE_LINK, "--scheme", "deft", "--measurements", measured)
        plan = json.loads(done.stdout)
        again = write(tmp_path / "plan.json", plan)
        run("validate", "--plan", again, "--workload", TABLE2)
        run("preserve", "--plan", again, "--workload", TABLE2, "--measurements", measured)
        return plan, done.stderr

    plan, said = planned()
    assert plan == json.loads(run("plan", "--workload", TABLE2, "--cluster", ONE_LINK, "--scheme", "deft").stdout)
    assert "keeps the accuracy at capacity 1 " in said
    plan, said = planned(learning_rate=0.05)
    assert plan["scheme"] != "deft" and "best exact plan" in said and "11 tried" in said


def test_a_message_longer_than_time_is_refused(workload, cluster, tmp_path):
    cluster["links"][0]["us_per_byte"] = 1e15
    given = ["--workload", write(tmp_path / "w.json", workload), "--cluster", write(tmp_path / "c.json", cluster)]
    said = run("plan", *given, "--scheme", "ddp", code=2).stderr
    assert "link 'net': a message: takes more than 2^62 ns" in said and "us_per_byte" in said
    # A given time of 104 days, 500 times as long.
    cluster["links"][0].update(us_per_byte=0, relative_time=500)
    layer = {"name": "l", "forward_us": 1, "backward_us": 1, "tensors": [{"name": "w", "numel": 9}], "communication_us": 9e12}
    given = ["--workload", write(tmp_path / "w.json", {"version": 1, "name": "long", "layers": [layer]}),
             "--cluster", write(tmp_path / "c.json", cluster)]
    for scheme in ("dreamddp", "auto"):
        assert "the times of one period exceed 2^60 ns" in run("plan", *given, "--scheme", scheme, code=2).stderr


@pytest.mark.parametrize("changes, words", [
    ({"loss": [2, 1]}, ["loss", "[low, high]"]),
    ({"loss": [1, 2, 3]}, ["loss", "3 numbers"]),
    ({"loss": -1}, ["loss"]),
    ({"lowest": 3}, ["lowest"]),
    ({"momentum": 1}, ["momentum"]),
    ({"batch": 0}, ["batch"]),
    ({"learning_rate": 1e200, "curvature": 1e200}, ["learning_rate", "curvature"]),
    ({"learning_rate": "a"}, ["learning_rate", "number"]),
    ({"rate": 1}, ["rate"]),
    ({"version": 2}, ["version"]),
])
def test_measurements_that_cannot_be_are_refused(changes, words, tmp_path):
    plan = write(tmp_path / "plan.json", run("plan", "--workload", TABLE2, "--cluster", ONE_LINK, "--scheme", "ddp").stdout)
    measured = write(tmp_path / "measured.json", MEASUREMENTS | changes)
    said = run("preserve", "--plan", plan, "--workload", TABLE2, "--measurements", measured, code=2).stderr
    for word in ["measured.json", *words]:
        assert word in said
