"""How the command is used: standard input and output, units, slips of the finger, tables, terminals."""

import fcntl
import gzip
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = pathlib.Path(os.environ.get("GRADWEAVE_COMMAND", ROOT / "build" / "gradweave"))
TINY = ROOT / "examples" / "workloads" / "tiny.json"
TWO_NICS = ROOT / "examples" / "links" / "two-nics.json"
FOUR = ROOT / "examples" / "clusters" / "tiny-4.json"
GIVEN = ("--workload", TINY, "--cluster", FOUR)


def run(*arguments, code=0, given=None):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=120, input=given)
    assert done.returncode == code, done.stderr
    return done


def on_terminal(*arguments, columns=100, **environment):
    """What a terminal of so many columns gets."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen([COMMAND, *map(str, arguments)], stdout=slave, stderr=slave, env=clean | environment)
    os.close(slave)
    text = b""
    try:
        while piece := os.read(master, 65536):
            text += piece
    except OSError:  # the other end is closed
        pass
    process.wait(timeout=60)
    os.close(master)
    return text.decode().replace("\r\n", "\n")


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "plan.json"
    run("plan", *GIVEN, "--scheme", "wfbp", "-o", path)
    return path


def test_every_file_may_be_a_standard_stream(plan, tmp_path):
    text = plan.read_text()
    assert run("plan", "--workload", "-", "--cluster", FOUR, "--scheme", "wfbp", given=TINY.read_text()).stdout == text
    assert run("plan", *GIVEN, "--scheme", "wfbp", "-o", "-").stdout == text
    assert run("plan", *GIVEN, "--scheme", "wfbp", "-o", "-", "--json").stdout == text
    for arguments in (["validate", "--workload", TINY], ["simulate", *GIVEN],
                      ["preserve", "--workload", TINY, "--measurements", ROOT / "examples/measurements/sgd.json"]):
        assert run(*arguments, "--plan", "-", given=text).stdout == run(*arguments, "--plan", plan).stdout
    for option in ("--trace", "--svg"):
        path = tmp_path / "written"
        run("simulate", *GIVEN, "--plan", plan, option, path)
        assert run("simulate", *GIVEN, "--plan", plan, option, "-").stdout == path.read_text()
    assert run("compare", *GIVEN, "--schemes", "wfbp", "--plot", "-").stdout.startswith("<svg")


def test_a_standard_stream_serves_once(plan):
    assert "one '-' only" in run("compare", "--workload", "-", "--cluster", "-", code=2, given=FOUR.read_text()).stderr
    for more in (["--svg", "-"], ["--json"]):
        done = run("simulate", *GIVEN, "--plan", plan, "--trace", "-", *more, code=2)
        assert "'-' once" in done.stderr and done.stdout == ""
    assert "stdin: layers" in run("compare", "--workload", "-", "--cluster", FOUR, code=2,
                                  given='{"version": 1, "name": "w", "layers": 1}').stderr


@pytest.mark.parametrize("scheme, option, given, number", [
    ("ddp", "bucket_cap_bytes", "1.1MB", "1100000"), ("ddp", "bucket_cap_bytes", "25MiB", "26214400"),
    ("ddp", "bucket_cap_bytes", "100", "100"), ("horovod", "cycle_us", "1.5ms", "1500"),
    ("horovod", "cycle_us", "2s", "2000000"),
    ("deft", "max_block_us", "500us", "500"), ("auto", "max_extra_bytes", "1GB", "1000000000"),
])
def test_sizes_and_times_have_units(scheme, option, given, number):
    with_unit, plain = (run("plan", *GIVEN, "--scheme", scheme, "--set", f"{option}={value}").stdout
                        for value in (given, number))
    assert with_unit == plain
    assert scheme == "auto" or json.loads(plain)["options"][option] == number


def test_a_wrong_unit_is_told_the_right_ones(plan):
    message = run("plan", *GIVEN, "--scheme", "ddp", "--set", "bucket_cap_bytes=10us", code=2).stderr
    assert "10us" in message and "MB" in message and "MiB" in message
    message = run("simulate", *GIVEN, "--plan", plan, "--optimizer-us", "1MB", code=2).stderr
    assert "--optimizer-us" in message and "ms" in message
    assert "Gb/s" in run("compare", *GIVEN, "--links", "10Gb", code=2).stderr


@pytest.mark.parametrize("option", ["--optimizer-us", "--apply-us", "--handover-us", "--launch-us"])
def test_times_of_the_simulation_have_units_and_cost(tmp_path, option):
    plan = tmp_path / "plan.json"
    run("plan", *GIVEN, "--scheme", "p3", "-o", plan)

    def simulated(time):
        return json.loads(run("simulate", *GIVEN, "--plan", plan, option, time, "--json").stdout)["iteration_us"]
    assert simulated("1.5ms") == simulated("1500") > simulated("1500ns") > simulated("0")


def test_what_a_link_saves_up_makes_it_faster(plan):
    def simulated(*more):
        return json.loads(run("simulate", *GIVEN, "--plan", plan, *more, "--json").stdout)["iteration_us"]
    assert simulated("--burst-us", "1.5ms") == simulated("--burst-us", "1500") < simulated("--burst-us", "0") == simulated()


def test_two_results_need_two_files(plan, tmp_path):
    file = tmp_path / "result"
    said = run("simulate", *GIVEN, "--plan", plan, "--trace", file, "--svg", file, code=2).stderr
    assert "give each its own" in said and not file.exists()


# A bucket that fills more slowly than it is emptied is empty in the end, however large it is.
def test_no_bucket_beats_the_lower_bound(tmp_path):
    layer = {"name": "l", "forward_us": 10, "backward_us": 20, "tensors": [{"name": "w", "numel": 1000, "dtype": "float32"}]}
    link = {"name": "net", "startup_us": 5, "us_per_byte": 0.01, "concurrency": 1}  # a message takes 5 + 40 us
    workload, cluster, plan = (tmp_path / name for name in ("workload.json", "cluster.json", "plan.json"))
    workload.write_text(json.dumps({"version": 1, "name": "one", "layers": [layer]}))
    cluster.write_text(json.dumps({"version": 1, "workers": 4, "startup_growth": "linear", "links": [link]}))
    given = ("--workload", workload, "--cluster", cluster)
    run("plan", *given, "--scheme", "wfbp", "-o", plan)
    done = json.loads(run("simulate", *given, "--plan", plan, "--burst-us", "1s", "--json").stdout)
    assert done["steady"] and done["iteration_us"] == done["lower_bound_us"] == 40  # 35 us are saved in each


def test_a_result_replaces_no_input_and_no_other_result(plan, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "one")
    before = plan.read_bytes()
    for outputs, words in ((["--trace", plan], "is an input"), (["--timeline", tmp_path / "." / plan.name], "is an input"),
                           (["--trace", tmp_path / "one", "--timeline", f"{tmp_path}/./one"], "more than one result"),
                           (["--trace", tmp_path / "one", "--svg", tmp_path / "link"], "more than one result")):
        assert words in run("simulate", *GIVEN, "--plan", plan, *outputs, code=2).stderr
        assert plan.read_bytes() == before and not (tmp_path / "one").exists()
    run("simulate", *GIVEN, "--plan", plan, "--trace", "/dev/null", "--timeline", "/dev/null")
    links = tmp_path / "links.json"
    links.write_bytes(TWO_NICS.read_bytes())
    assert "is an input" in run("fit", links, "-o", links, code=2).stderr


def test_names_in_files_give_a_terminal_no_orders(tmp_path):
    workload, plan = tmp_path / "workload.json", tmp_path / "plan.json"
    bad = "a\x1b]0;owned\x07\x9b2J\x00é"
    workload.write_text(json.dumps(json.loads(TINY.read_text()) | {"name": bad}))
    shown = r"a\x1b]0;owned\x07\x9b2J\x00é"
    assert run("compare", "--workload", workload, "--cluster", FOUR, "--schemes", "ddp").stdout.startswith(f"{shown}: ")
    run("plan", *GIVEN, "--scheme", "ddp", "-o", plan)
    made = json.loads(plan.read_text())
    made["blocks"][0]["tensor"] = bad
    plan.write_text(json.dumps(made))
    said = run("simulate", *GIVEN, "--plan", plan, code=2).stderr
    assert shown in said and "blocks[0]" in said and said.endswith("name one of its tensors\n"), said


def with_orders(value):
    """JSON in which all names and labels order a terminal to do something."""
    named = ("name", "tensor", "link", "label", "scheme", "origin", "description")
    if isinstance(value, dict):
        return {key: f"{each}\x1b[2J\x07\x9b" if key in named else with_orders(each) for key, each in value.items()}
    return [each if isinstance(each, str) else with_orders(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("command", [
    ["simulate", "--workload", "workload", "--cluster", "cluster", "--plan", "plan"],
    ["compare", "--workload", "workload", "--cluster", "cluster", "--wide", "--workers", "2,4"],
    ["validate", "--plan", "plan", "--workload", "other"], ["simulate", *GIVEN, "--plan", "plan"],
    ["diff", "timeline", "plain"], ["diff", "timeline", "timeline"], ["fit", "links", "-o", "made"]])
def test_no_command_hands_a_terminal_orders_of_a_file(command, plan, tmp_path):
    run("simulate", *GIVEN, "--plan", plan, "--timeline", tmp_path / "plain")
    (tmp_path / "other").write_bytes(TINY.read_bytes())
    for name, path in (("workload", TINY), ("cluster", FOUR), ("plan", plan), ("timeline", tmp_path / "plain"),
                       ("links", TWO_NICS)):
        (tmp_path / name).write_text(json.dumps(with_orders(json.loads(path.read_text()))))
    done = subprocess.run([COMMAND, *map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    said = done.stdout + done.stderr
    assert r"\x1b[2J\x07\x9b" in said
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said), repr(said)


def test_options_of_commands_have_units():
    one, other = (json.loads(run("compare", *GIVEN, "--schemes", "wfbp", "--json", "--links", links).stdout)
                  for links in ("10,0.4", "10Gb/s,400Mb/s"))
    assert one == other and [row["gigabits"] for row in one["schemes"]] == [10, 0.4]


@pytest.mark.parametrize("arguments, words", [
    (["compar"], ["'compar'", "did you mean 'compare'", "validate"]),
    (["compare", "--workloda", TINY], ["compare", "'--workloda'", "did you mean '--workload'"]),
    (["compare", f"--clusetr={FOUR}"], ["'--clusetr'", "did you mean '--cluster'"]),
    (["compare", *GIVEN, "everything"], ["compare", "'everything'", "--help"]),
    (["plan", *GIVEN, "--scheme", "dera"], ["did you mean 'dear'"]),
    (["schemes", "dera"], ["did you mean 'dear'"]),
    (["probe", "--seconds", "1"], ["'probe' needs PyTorch", "python -m gradweave probe"]),
    (["compare", *GIVEN, "--schemes", "ddp,dera compressor=int8"], ["did you mean 'dear'"]),
    (["compare", *GIVEN, "--schemes", "ddp,dear compressor"], ["'compressor' is not an assignment", "NAME=VALUE"]),
    (["compare", *GIVEN, "--schemes", "dear compressor=int8 compressor=int4"], ["sets 'compressor' twice"]),
    (["compare", *GIVEN, "--schemes", "dear period=3"], ["'dear' has no option 'period'"]),
    (["plan", *GIVEN, "--scheme", "dreamddp", "--set", "period=1,forward_overlap=only"],
     ["more than one assignment", "--set period=1 --set forward_overlap=only"]),
    (["plan", *GIVEN, "--scheme", "ddp", "--set", "bucket_cap_mb=25"], ["did you mean 'bucket_cap_bytes'"]),
    (["plan", *GIVEN, "--scheme", "mg_wfbp", "--set", "solver=greddy"], ["did you mean 'greedy'"]),
    (["compare", *GIVEN, "--set", "bucket_cap_mb=25"], ["did you mean 'bucket_cap_bytes'"]),
    (["compare", "--workload", FOUR, "--cluster", TINY], ["tiny", "is a workload file", "cluster"]),
    (["compare", "--workload", FOUR, "--cluster", FOUR], ["tiny-4.json", "is a cluster file", "workload"]),
    (["validate", "--plan", TINY, "--workload", TINY], ["is a workload file", "plan"]),
    (["diff", TINY, TINY, "--tolerance", "nan"], ["--tolerance", "nan", "[0 - 1]"]),
    (["preserve", "--plan", TINY, "--workload", TINY, "--measurements", TINY, "--stable-share", "nan"],
     ["--stable-share", "nan", "[0 - 1]"]),
    (["fit", TWO_NICS, "-o", ""], ["--output", "give the name of a file"]),
    (["simulate", *GIVEN, "--plan", TINY, "--contention", "NaN"], ["--contention", "[1 - 1000]"]),
    (["plan", *GIVEN, "--scheme", "ddp", "-o", ""], ["--output", "give the name of a file"]),
    (["compare", *GIVEN, "--workers", "2,4", "--plot", "-", "--json"], ["more than one result", "stdout"]),
    (["import", "nccl-tests", TINY, "--link", ""], ["--link", "give the link a name"]),
    (["import", "nccl-tests", TINY, "--link", 4097 * "n"], ["--link", "longer than 4096 bytes"]),
    (["import", "kineto", TINY, "--name", 4097 * "n"], ["--name", "longer than 4096 bytes"]),
    ([], ["command is missing", "--help"]),
    (["Compare"], ["'Compare'", "did you mean 'compare'"]),
    (["import", "kinetto", TINY], ["import", "'kinetto'", "did you mean 'kineto'", "nccl-tests"]),
    (["import"], ["import: a command is missing", "kineto, nccl-tests"]),
    (["import", "kineto", "--nam", "n", TINY], ["import kineto", "did you mean '--name'"]),
    (["import", "nccl-tests", "--startup-growth", "lin", TINY], ["did you mean 'linear'"]),
    (["plan", *GIVEN, "--scheme", "DeAR"], ["did you mean 'dear'"]),
    (["compare", *GIVEN, "--schemes", "DDP,dear"], ["did you mean 'ddp'"]),
    (["plan", *GIVEN, "--scheme", "auto", "--set", "allow=exact+corected"], ["'corected'", "did you mean 'corrected'"]),
    (["plan", *GIVEN, "--scheme", "ddp", "--set", "compressor=FP16"], ["did you mean 'fp16'"]),
    (["plan", *GIVEN, "--scheme", "ddp", "--set", "bucket_cap=25MB"], ["did you mean 'bucket_cap_bytes'"]),
    (["plan", *GIVEN, "--scheme", "ddp", "--set", "bucket_cap_bytes=25M"], ["'25M'", "did you mean '25MB'", "MiB"]),
    (["plan", *GIVEN, "--scheme", "ddp", "--set", "bucket_cap_bytes=25mib"], ["did you mean '25MiB'"]),
    (["plan", *GIVEN, "--scheme", "horovod", "--set", "cycle_us=1mS"], ["did you mean '1ms'"]),
    (["compare", *GIVEN, "--links", "10Gbps"], ["--links", "'10Gbps'", "did you mean '10Gb/s'"]),
    (["compare", *GIVEN, "--links", "10G"], ["did you mean '10Gb/s'"]),
    (["report", *GIVEN, "--startups", "5US"], ["did you mean '5us'"]),
    (["simulate", *GIVEN, "--plan", TINY, "--optimizer-us", "1Ms"], ["did you mean '1ms'"]),
    (["plan", *GIVEN, "--scheme", "ddp", "--bucket-cap-bytes", "25MB"], ["--set bucket_cap_bytes=VALUE"]),
    (["--quiet", "compare", *GIVEN], ["'--quiet'", "after 'compare'"]),
    (["--workload", TINY, "compare", "--cluster", FOUR], ["'--workload'", "after 'compare'"]),
    (["import", "--json", "kineto", TINY], ["'--json'", "after 'kineto'"]),
    (["plan", "--workload", "--cluster", FOUR, "--scheme", "ddp"], ["--workload has no value", "'--cluster'"]),
    (["plan", *GIVEN, "--scheme"], ["--scheme has no value"]),
    (["plan", *GIVEN, "--scheme", "ddp", "--scheme", "dear"], ["--scheme is given more than once"]),
    (["plan", "--workload", "", "--cluster", FOUR, "--scheme", "ddp"], ["path is empty"]),
    (["fit", TINY], ["tiny.json", "is a workload file", "link measurements", "--workload takes"]),
    (["fit", FOUR], ["tiny-4.json", "is a cluster file", "--cluster takes"]),
    (["compare", "--workload", TINY, "--cluster", TWO_NICS], ["is a link measurements file", "'gradweave fit' takes"]),
    (["import", "kineto", TINY], ["tiny.json", "is a workload file", "give a trace file"]),
    (["import", "kineto", TWO_NICS], ["is a link measurements file"]),
    (["import", "nccl-tests", FOUR], ["tiny-4.json", "is a cluster file", "an nccl-tests file"]),
    (["report", *GIVEN, "--schemes", "ddp,dear", "--baseline", "foo"], ["--baseline", "'foo'", "use one of ddp, dear"]),
    (["report", *GIVEN, "--schemes", "ddp,dear", "--baseline", "DDP"], ["did you mean 'ddp'"]),
    (["import", "kineto", ROOT], ["is a folder"]),
    (["import", "kineto", "/dev/null"], ["/dev/null: is empty"]),
    (["compare", "--workload", ROOT, "--cluster", FOUR], ["Is a directory"]),
])
def test_a_slip_is_told_what_was_meant(arguments, words):
    message = run(*arguments, code=2).stderr
    for word in words:
        assert word in message
    assert message.count("\n") == 1


def test_results_and_packed_files_are_told_apart_from_inputs(plan, tmp_path):
    for command in (["simulate", *GIVEN, "--plan", plan], ["compare", *GIVEN]):
        result = tmp_path / "result.json"
        result.write_text(run(*command, "--json").stdout)
        assert "is a result file; give a plan file" in run("validate", "--plan", result, "--workload", TINY, code=2).stderr
    assert "is a plan file; give a link measurements file" in run("fit", plan, code=2).stderr
    packed = tmp_path / "w.json.gz"
    packed.write_bytes(gzip.compress(TINY.read_bytes()))
    assert "is gzipped; unpack it" in run("compare", "--workload", packed, "--cluster", FOUR, code=2).stderr


def test_the_baseline_of_a_report_may_be_any_of_its_rows(plan, tmp_path):
    page = tmp_path / "page.html"
    for baseline in ("wfbp", plan.name):
        run("report", *GIVEN, "--schemes", "wfbp", "--plan", plan, "--baseline", baseline, "-o", page)
        assert f'"baseline":"{baseline}"' in page.read_text()
    run("report", *GIVEN, "--schemes", "wfbp", "-o", page)  # none was asked for


def test_compare_takes_methods_with_options_of_their_own():
    methods = "ddp,dear compressor=int8,delayed_averaging compressor=int4"
    rows = {row["name"]: row for row in json.loads(run("compare", *GIVEN, "--json", "--schemes", methods).stdout)["schemes"]}
    assert set(rows) == set(methods.split(","))
    for name in methods.split(","):
        scheme, *options = name.split()
        alone, = json.loads(run("compare", *GIVEN, "--json", "--schemes", scheme, *(
            word for option in options for word in ("--set", option))).stdout)["schemes"]
        assert rows[name] == alone | {"name": name}
    mixed = json.loads(run("compare", *GIVEN, "--json", "--set", "compressor=int8", "--schemes",
                           "dear,dear compressor=int4").stdout)["schemes"]
    assert {row["name"]: row["compressor"] for row in mixed} == {"dear": "int8", "dear compressor=int4": "int4"}
    table = run("compare", *GIVEN, "--schemes", methods).stdout
    assert "dear compressor=int8  " in table and "+int8" not in table
    assert "+int8" not in run("compare", *GIVEN, "--schemes", "dear compressor=int8 buffer_bytes=1000").stdout
    page = run("report", *GIVEN, "--schemes", methods, "-o", "-").stdout
    assert all(f'"name":"{name}"' in page for name in methods.split(","))


@pytest.mark.parametrize("scheme", ["dear", "delayed_averaging"])
def test_a_valid_plan_is_told_so_whatever_it_sends(tmp_path, scheme):
    plan = tmp_path / "plan.json"
    run("plan", *GIVEN, "--scheme", scheme, "-o", plan)
    assert run("validate", "--plan", plan, "--workload", TINY).stdout.startswith(
        "valid: nothing is lost, and nothing is applied twice; generations alive at once: ")


def test_compare_marks_what_changes_training():
    rows = {row["name"]: row for row in json.loads(run("compare", *GIVEN, "--json").stdout)["schemes"]}
    assert rows["ddp"]["times_ddp"] == 1 and not rows["ddp"]["changes_training"]
    assert rows["deft"]["changes_training"]
    for row in rows.values():
        assert row["times_ddp"] == pytest.approx(rows["ddp"]["iteration_us"] / row["iteration_us"])
        assert row["changes_training"] == (row["consistency"] != "exact")
    alone, = json.loads(run("compare", *GIVEN, "--json", "--schemes", "deft").stdout)["schemes"]
    assert alone["times_ddp"] == rows["deft"]["times_ddp"]
    table = [line for line in run("compare", *GIVEN).stdout.splitlines() if re.match(r"[ *][ !]  \w", line)]
    lines = {line[4:].split()[0]: line for line in table}
    assert set(lines) == {"scheme", *rows}
    for name, row in rows.items():
        assert (lines[name][1] == "!") == row["changes_training"] and f" {row['times_ddp']:.2f} " in lines[name]
    assert lines[min(rows, key=lambda name: rows[name]["iteration_us"])][0] == "*"


def test_tables_fit_a_usual_terminal_and_more_is_asked_for(plan):
    for text in (run("compare", *GIVEN).stdout, run("simulate", *GIVEN, "--plan", plan).stdout):
        table = [line for line in text.splitlines() if "  " in line]
        assert table and max(map(len, table)) <= 100
    assert "updates/it" not in run("compare", *GIVEN).stdout and "updates/it" in run("compare", *GIVEN, "--wide").stdout


def test_text_is_wrapped_on_a_terminal_and_nowhere_else():
    piped, wrapped = run("schemes").stdout, on_terminal("schemes", columns=80, NO_COLOR="1")
    assert max(map(len, piped.splitlines())) > 100
    assert max(map(len, wrapped.splitlines())) <= 80
    assert piped.split() == wrapped.split()


def test_schemes_list_what_they_share_once():
    text = run("schemes").stdout
    assert text.count("compressor_density") == 2  # of gradients, of averages
    assert text.count("bucket_cap_bytes") == 1
    dear = run("schemes", "dear").stdout
    assert "buffer_bytes" in dear and "compressor_density" in dear and "bucket_cap_bytes" not in dear
    assert "1 to 1024" in dear  # the range of compressor_rank
    listed = json.loads(run("schemes", "dear", "ddp", "--json").stdout)["schemes"]
    assert [row["name"] for row in listed] == ["dear", "ddp"]
    assert listed[0] in json.loads(run("schemes", "--json").stdout)["schemes"]


def test_colours_are_for_terminals_that_want_them():
    arguments = ("compare", *GIVEN, "--schemes", "ddp,deft")
    assert "\033[" in on_terminal(*arguments)
    assert "\033[" in on_terminal("compar")
    for environment in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\033[" not in on_terminal(*arguments, **environment)
    assert "\033[" in on_terminal(*arguments, NO_COLOR="")
    assert "\033[" not in run(*arguments).stdout
    assert "\033[" not in on_terminal(*arguments, "--json")


def test_long_work_shows_that_it_goes_on(plan):
    """The command waits for its plan: a terminal is told after a second, unless it is to be quiet."""
    def told(*more):
        master, slave = pty.openpty()
        process = subprocess.Popen([COMMAND, "validate", "--plan", "-", "--workload", TINY, *more], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=slave)
        os.close(slave)
        text = b""
        if not more:
            while b"2 s" not in text:
                text += os.read(master, 65536)
        output, _ = process.communicate(plan.read_bytes(), timeout=60)
        try:
            while piece := os.read(master, 65536):
                text += piece
        except OSError:
            pass
        os.close(master)
        assert output.startswith(b"valid") and process.returncode == 0
        return text.decode()

    shown = told()
    assert "validating: 1 s" in shown and shown.endswith("\r\033[K")
    assert told("--quiet") == ""


def test_quiet_leaves_results_and_errors(tmp_path):
    measured = ROOT / "examples/measurements/sgd.json"
    arguments = ("plan", *GIVEN, "--scheme", "deft", "--measurements", measured)
    loud, quiet = run(*arguments), run(*arguments, "--quiet")
    assert "accuracy" in loud.stderr and quiet.stderr == "" and quiet.stdout == loud.stdout
    assert "did you mean" in run("plan", "--quiet", *GIVEN, "--scheme", "dera", code=2).stderr


def test_memory_is_asked_for_within_limits(tmp_path):
    """What would take gigabytes is refused before it is made."""
    many = {"version": 1, "name": "many", "layers": [{"name": "all", "forward_us": 1, "backward_us": 1, "tensors": [
        {"name": f"t{i}", "numel": 1} for i in range(30_000)]}]}
    path = tmp_path / "many.json"
    path.write_text(json.dumps(many))
    for scheme in ("local_sgd", "partial_sgd", "dreamddp", "delayed_averaging"):
        message = run("plan", "--workload", path, "--cluster", FOUR, "--scheme", scheme, "--set", "period=1000", code=2).stderr
        assert "20000000 blocks" in message and "period" in message
    plan = tmp_path / "plan.json"
    run("plan", "--workload", path, "--cluster", FOUR, "--scheme", "wfbp", "-o", plan)
    message = run("simulate", "--plan", plan, "--workload", path, "--cluster", FOUR, "--trace", tmp_path / "trace",
                  "--trace-iterations", "1000", code=2).stderr
    assert "spans" in message and "--trace-iterations" in message
    assert not (tmp_path / "trace").exists()


COMPLETIONS = {
    (): ["plan", "compare", "--version"],
    ("com",): ["compare"],
    ("compare", ""): ["--workload", "--wide"],
    ("plan", "--workload", "w.json", "--scheme", ""): ["dear", "deft"],
    ("schemes", ""): ["dear", "--json"],
    ("import", ""): ["kineto", "nccl-tests", "--help"],
    ("import", "nccl-tests", ""): ["--link", "--inside"],
}


@pytest.mark.parametrize("words", COMPLETIONS)
def test_a_command_line_is_completed(words):
    assert set(COMPLETIONS[words]) <= set(run("complete", *words).stdout.split())


def test_where_a_file_stands_the_shell_completes():
    for words in (["compare", "--workload", ""], ["plan", "-o", ""], ["import", "kineto", "-o", ""], ["nope", ""],
                  ["import", "nope", ""]):
        assert run("complete", *words).stdout == ""


def with_command():
    return os.environ | {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}"}


def test_bash_completes():
    script = ROOT / "completions" / "gradweave.bash"
    ask = f"source {script}; COMP_WORDS=(gradweave plan --scheme de); COMP_CWORD=3; _gradweave; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, env=with_command())
    assert done.stdout.split() == ["dear", "deft", "delayed_averaging"], done.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes(tmp_path):
    ask = f"source {ROOT / 'completions/gradweave.fish'}; complete -C 'gradweave plan --scheme de'"
    done = subprocess.run(["fish", "-c", ask], capture_output=True, text=True, env=with_command() | {"HOME": str(tmp_path)})
    assert done.stdout.split() == ["dear", "deft", "delayed_averaging"], done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_completes(tmp_path):
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], with_command() | {"TERM": "dumb", "HOME": str(tmp_path), "PS1": ""})
    folder = ROOT / "completions"
    try:
        for line in (f"fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -d {tmp_path}/dump\n",
                     "gradweave plan --scheme dela\t\x01print -r -- end of \n"):  # what the tab made is printed, not run
            os.write(terminal, line.encode())
        said, until = "", time.monotonic() + 30
        while "\nend of gradweave" not in said and time.monotonic() < until:
            if select.select([terminal], [], [], 1)[0]:
                said += os.read(terminal, 4096).decode().replace("\r", "")
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)
    assert "\nend of gradweave plan --scheme delayed_averaging" in said, said


def test_the_man_page_has_every_command():
    page = (ROOT / "docs" / "gradweave.1").read_text()
    for command in run("complete").stdout.split():
        assert command.startswith("-") or f".B {command}\n" in page
