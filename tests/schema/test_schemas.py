"""The schemas accept every example and every plan that the command makes, and refuse what the readers refuse."""

import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
from referencing import Registry

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ROOT / "build" / "gradweave"
EXAMPLES = ROOT / "examples"


SCHEMAS = {path.name: json.loads(path.read_text()) for path in (ROOT / "schema").glob("*.json")}
REGISTRY = Registry().with_contents(SCHEMAS.items())  # they refer to each other by file name


def schema(name):
    content = SCHEMAS[f"{name}.schema.json"]
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content, registry=REGISTRY)


def gradweave(*arguments):
    return subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.parametrize("path", sorted((EXAMPLES / "workloads").glob("*.json")), ids=lambda p: p.stem)
def test_example_workloads(path):
    schema("workload").validate(json.loads(path.read_text()))


@pytest.mark.parametrize("path", sorted((EXAMPLES / "clusters").glob("*.json")), ids=lambda p: p.stem)
def test_example_clusters(path):
    schema("cluster").validate(json.loads(path.read_text()))


@pytest.mark.parametrize("path", sorted((EXAMPLES / "measurements").glob("*.json")), ids=lambda p: p.stem)
def test_example_measurements(path):
    schema("measurements").validate(json.loads(path.read_text()))


@pytest.mark.parametrize("path", sorted((EXAMPLES / "links").glob("*.json")), ids=lambda p: p.stem)
def test_example_link_measurements_and_their_fits(path):
    schema("link-measurements").validate(json.loads(path.read_text()))
    fitted = gradweave("fit", path)
    assert fitted.returncode == 0, fitted.stderr
    schema("cluster").validate(json.loads(fitted.stdout))


def test_plans_of_every_scheme():
    listed = gradweave("schemes", "--json")
    assert listed.returncode == 0, listed.stderr
    made = 0
    for scheme in json.loads(listed.stdout)["schemes"]:
        plan = gradweave("plan", "--json", "--scheme", scheme["name"],
                         "--workload", EXAMPLES / "workloads" / "tiny.json",
                         "--cluster", EXAMPLES / "clusters" / "tiny-4-two-links.json")
        assert plan.returncode in (0, 1), plan.stderr
        if plan.returncode == 0:
            schema("plan").validate(json.loads(plan.stdout))
            made += 1
    assert made >= 5


def test_a_plan_of_compressed_averages():
    plan = gradweave("plan", "--json", "--scheme", "delayed_averaging", "--set", "compressor=int4",
                     "--set", "outer_momentum=0.5", "--workload", EXAMPLES / "workloads" / "tiny.json",
                     "--cluster", EXAMPLES / "clusters" / "tiny-4.json")
    content = json.loads(plan.stdout)
    schema("plan").validate(content)
    assert content["outer"] == {"momentum": 0.5, "learning_rate": 1}
    assert content["period"][0]["ops"][0]["compression"]["name"] == "int4"


LAYER = {"name": "l", "forward_us": 1, "backward_us": 2.5, "communication_us": 3}
WORKLOAD = {"version": 1, "name": "w", "layers": [LAYER]}
CLUSTER = {"version": 1, "workers": 2, "links": [{"name": "n", "startup_us": 0, "us_per_byte": 1e-3}]}
OP = {"link": "n", "blocks": [0], "merges": [0], "release": {"point": "backward_end", "layer": 0}}
APPLY = {"at": {"point": "iteration_end"}, "blocks": [0], "merges": [0]}
PLAN = {"version": 1, "blocks": [{"tensor": "l", "begin": 0, "end": 3000}], "links": [{"name": "n"}],
        "period": [{"ops": [OP], "applies": [APPLY]}]}
TIMELINE = {"version": 1, "name": "t", "origin": "simulated", "links": ["n"],
            "spans": [{"kind": "op", "track": 1, "iteration": 0, "begin_us": 0, "end_us": 1.5, "op": 0}]}
FILES = {"workload": WORKLOAD, "cluster": CLUSTER, "plan": PLAN}


def changed(value, *path, to=None):
    """A copy of `value` with the entry at `path` set, or removed if `to` is None."""
    copy = json.loads(json.dumps(value))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if to is None:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return copy


def simulate(folder, **files):
    arguments = []
    for kind, content in (FILES | files).items():
        path = folder / f"{kind}.json"
        path.write_text(json.dumps(content))
        arguments += [f"--{kind}", path]
    return gradweave("simulate", *arguments)


@pytest.mark.parametrize("name, value", [*FILES.items(), ("timeline", TIMELINE)])
def test_smallest_files(name, value):
    schema(name).validate(value)


def test_smallest_files_are_read(tmp_path):
    result = simulate(tmp_path)
    assert result.returncode == 0, result.stderr


FAULTS = [
    ("workload", changed(WORKLOAD, "version", to=2)),
    ("workload", changed(WORKLOAD, "layers", 0, "communication_us")),
    ("workload", changed(WORKLOAD, "layers", 0, "forward_us", to=-1)),
    ("workload", changed(WORKLOAD, "layers", 0, "forward", to=1)),
    ("workload", changed(WORKLOAD, "layers", to=[])),
    ("workload", changed(WORKLOAD, "layers", 0, "tensors", to=[{"name": "t", "numel": 0}])),
    ("workload", changed(WORKLOAD, "layers", 0, "tensors", to=[{"name": "t", "numel": 1, "dtype": "float"}])),
    ("cluster", changed(CLUSTER, "workers", to=0)),
    ("cluster", changed(CLUSTER, "startup_growth", to="square")),
    ("cluster", changed(CLUSTER, "links", to=[])),
    ("cluster", changed(CLUSTER, "links", 0, "relative_time", to=0)),
    ("cluster", changed(CLUSTER, "links", 0, "measured_bytes", to=[1])),
    ("plan", changed(PLAN, "period", 0, "ops", 0, "release", "layer")),
    ("plan", changed(PLAN, "period", 0, "applies")),
    ("plan", changed(PLAN, "outer", to={"momentum": 1, "learning_rate": 1})),
    ("plan", changed(PLAN, "outer", to={"momentum": 0.5})),
    ("plan", changed(PLAN, "period", 0, "ops", 0, "collective", to="gather")),
    ("plan", changed(PLAN, "period", 0, "ops", 0, "merges", to=[1.5])),
]


@pytest.mark.parametrize("name, value", FAULTS)
def test_schema_and_reader_refuse_the_same(name, value, tmp_path):
    with pytest.raises(jsonschema.ValidationError):
        schema(name).validate(value)
    result = simulate(tmp_path, **{name: value})
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert str(tmp_path / f"{name}.json") in result.stderr


def test_timeline_kinds():
    with pytest.raises(jsonschema.ValidationError):
        schema("timeline").validate(changed(TIMELINE, "spans", 0, "kind", to="pause"))


TINY = ["--workload", EXAMPLES / "workloads" / "tiny.json"]
ON_FOUR = [*TINY, "--cluster", EXAMPLES / "clusters" / "tiny-4.json"]
PLANNED = ["--plan", "PLAN", *ON_FOUR]
# The schema of what each command prints with --json: arguments and exit code. PLAN is a plan of `wfbp` on ON_FOUR.
OUTPUTS = {
    "compare": ("compare", [*ON_FOUR], 0),
    "compare under faults": ("compare", [*ON_FOUR, "--mtbf", "1h,1s", "--links", "1", "--batch-size", 8], 0),
    "compare under an option": ("compare", [*ON_FOUR, "--set", "compressor=top_k", "--links", "1,10Gb/s",
                                            "--workers", "1,8"], 0),
    "plan": ("plan", [*ON_FOUR, "--scheme", "auto"], 0),
    "plan that is infeasible": ("starved", [*ON_FOUR, "--scheme", "deft", "--set", "max_block_us=1ns"], 1),
    "simulate": ("simulate", PLANNED, 0),
    "validate": ("validate", ["--plan", "PLAN", *TINY], 0),
    "validate with violations": ("validate", ["--plan", "PLAN", "--workload", EXAMPLES / "workloads" / "one-layer.json"], 1),
    "preserve": ("preserve", ["--plan", "PLAN", *TINY, "--measurements", EXAMPLES / "measurements" / "sgd.json"], 0),
    "fit": ("fit", [EXAMPLES / "links" / "two-nics.json"], 0),
    "diff": ("diff", ["TIMELINE", "TIMELINE"], 0),
    "diff of two": ("diff", ["TIMELINE", "OTHER"], 1),
    "schemes": ("schemes", [], 0),
    "schemes by name": ("schemes", ["dear", "local_sgd"], 0),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_what_commands_print(case, tmp_path):
    form, arguments, code = OUTPUTS[case]
    plan = tmp_path / "plan.json"
    assert gradweave("plan", "--scheme", "wfbp", *ON_FOUR, "-o", plan).returncode == 0
    files = {"PLAN": plan, "TIMELINE": tmp_path / "timeline.json", "OTHER": tmp_path / "other.json"}
    if "TIMELINE" in arguments:
        assert gradweave("simulate", "--plan", plan, *ON_FOUR, "--timeline", files["TIMELINE"]).returncode == 0
        slower = ["--contention", "1.5", "--timeline", files["OTHER"]]
        assert gradweave("simulate", "--plan", plan, *ON_FOUR, *slower).returncode == 0
    done = gradweave(case.split()[0], "--json", *(files.get(word, word) for word in arguments))
    assert done.returncode == code, done.stderr
    schema(form).validate(json.loads(done.stdout))


def test_what_compare_prints_of_a_scheme_without_a_plan_on_two_levels(tmp_path):
    cluster = json.loads((EXAMPLES / "clusters" / "tiny-4.json").read_text())
    cluster |= {"workers": 8, "workers_per_node": 2, "inside": {"links": [cluster["links"][0] | {"name": "inside"}]}}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster))
    done = gradweave("compare", *TINY, "--cluster", path, "--schemes", "deft,ddp", "--set", "max_block_us=1ns", "--json")
    printed = json.loads(done.stdout)
    assert ["starves" in row for row in printed["schemes"]].count(True) == 1
    schema("compare").validate(printed)


def test_every_command_with_json_has_a_schema():
    commands = re.findall(r"^  (\w+) ", gradweave("--help").stdout.split("Subcommands:")[1], re.MULTILINE)
    assert len(commands) >= 6
    with_json = {command for command in commands if "--json" in gradweave(command, "--help").stdout}
    assert with_json <= {case.split()[0] for case in OUTPUTS}


@pytest.mark.parametrize("path", [("schemes", 0, "iteration_us"), ("schemes", 0, "consistency"), ("workload", "hash")])
def test_an_output_without_a_figure_is_refused(path):
    printed = json.loads(gradweave("compare", "--json", *ON_FOUR, "--schemes", "wfbp").stdout)
    schema("compare").validate(printed)
    with pytest.raises(jsonschema.ValidationError):
        schema("compare").validate(changed(printed, *path))
    with pytest.raises(jsonschema.ValidationError):
        schema("compare").validate(changed(printed, "schemes", 0, "speed", to=1))
