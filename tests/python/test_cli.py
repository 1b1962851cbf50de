"""`python -m gradweave`: exit codes, messages that name the fault and the remedy, files that are what they should be."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch

from gradweave import cli, doctor, releases
from gradweave.lab import fashion_mnist, jobs

needs_data = pytest.mark.skipif(not fashion_mnist.DATA_DIRECTORY.exists(), reason="apt-get install dataset-fashion-mnist")


@dataclasses.dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def gradweave(capsys, monkeypatch):
    """Runs the command in this process: importing torch anew for each case would take minutes."""
    def run(*arguments):
        monkeypatch.delenv("RANK", raising=False)
        monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
        capsys.readouterr()
        try:
            code = cli.main(list(arguments))
        except SystemExit as error:
            code = error.code
        return Done(code, *capsys.readouterr())
    return run


@pytest.fixture
def no_images(monkeypatch, tmp_path):
    monkeypatch.setattr(fashion_mnist, "DATA_DIRECTORY", tmp_path / "nothing")


@pytest.mark.parametrize("arguments,words", [
    ([], ["COMMAND"]),
    (["fly"], ["fly", "probe", "profile", "train", "doctor"]),
    (["train", "nonsense"], ["nonsense", "demo"]),
    (["train", "demo", "--coverage", "-1"], ["--coverage", "-1"]),
    (["train", "demo", "--workers", "1"], ["--workers", "at least 2"]),
    (["train", "demo", "--rounds", "0"], ["--rounds", "at least 1"]),
    (["profile", "nonsense"], ["nonsense", "demo", "MODULE:FUNCTION"]),
    (["profile", "os:nonsense"], ["os:nonsense", "nonsense"]),
    (["profile", "no_such_module:f"], ["no_such_module"]),
    (["profile", "os:getcwd"], ["must return", "str"]),
    (["profile", ".os:f"], ["job '.os:f'", "relative import"]),
    (["probe"], ["torchrun"]),
    (["probe", "--seconds", "abc"], ["--seconds", "'abc' is not a positive number"]),
    (["train", "demo", "--schemes", "deft merge"], ["--schemes", "name=value"]),
    (["train", "demo", "--schemes", "ddpp"], ["--schemes", "did you mean 'ddp'"]),
    (["train", "demo", "--output", sys.executable], ["--output", "is no folder"]),
    (["train", "demo"], ["apt-get install dataset-fashion-mnist"]),
])
def test_bad_usage_is_exit_code_2_with_the_fault_and_the_remedy(gradweave, no_images, arguments, words):
    done = gradweave(*arguments)
    assert done.returncode == 2
    for word in words:
        assert word in done.stderr + (done.stdout if not arguments else "")


@pytest.mark.parametrize("command", [[], ["doctor"], ["probe"], ["profile"], ["train"]])
def test_help_is_on_standard_output(gradweave, command):
    done = gradweave(*command, "--help")
    assert done.returncode == 0 and "usage" in done.stdout and not done.stderr


def test_the_jobs_that_help_names_are_those_of_the_laboratory(gradweave):
    assert f"{{{','.join(jobs.KINDS)}}}" in "".join(gradweave("train", "--help").stdout.split())
    assert "".join(f"{name}," for name in jobs.KINDS) in "".join(gradweave("profile", "--help").stdout.split())


_SLOW_JOB = """

def slow():
    import time
    model, optimizer, loss, batches = job()
    model.register_forward_pre_hook(lambda module, inputs: time.sleep(0.05))
    return model, optimizer, loss, batches
"""
_OWN_JOB = """
import torch
def job():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    batches = [(torch.randn(4, 8), torch.zeros(4, dtype=torch.long))] * 3
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.functional.cross_entropy, batches
"""


def test_the_module_is_a_program():
    done = subprocess.run([sys.executable, "-m", "gradweave", "fly"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "fly" in done.stderr and "Traceback" not in done.stderr


def test_training_a_job_of_ones_own_needs_nothing_of_the_laboratory():
    program = ("import sys, gradweave.session, gradweave.wrapping; "
               "sys.exit(any(n.startswith('gradweave.lab') for n in sys.modules))")
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


def test_without_the_laboratory_commands_say_where_it_is(tmp_path):
    def installed(*arguments):
        program = ("import sys; sys.modules['gradweave.lab'] = None; from gradweave.cli import main; "
                   "sys.exit(main(sys.argv[1:]))")
        return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120,
                              cwd=tmp_path)

    for command in (["train", "demo"], ["profile", "demo"]):
        done = installed(*command)
        assert done.returncode == 2 and "a clone of the repository" in done.stderr and "make demo" in done.stderr
        assert done.stderr.count("\n") == 1
    (tmp_path / "mine.py").write_text(_OWN_JOB)
    assert installed("profile", "mine:job", "--iterations", "2", "-o", "w.json").returncode == 0
    told = json.loads(installed("doctor", "--json").stdout)["findings"]
    assert {"torch", "extension"} <= {finding["name"] for finding in told} and not any("dataset" in f["name"] for f in told)


def test_profile_writes_the_workload_of_ones_own_job(gradweave, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(_OWN_JOB)
    done = gradweave("profile", "mine:job", "--iterations", "4", "-o", "w.json")
    assert done.returncode == 0, done.stderr
    workload = json.loads((tmp_path / "w.json").read_text())
    assert [layer["name"] for layer in workload["layers"]] == ["0", "1"]
    assert workload["layers"][0]["tensors"][0] == {"name": "0.weight", "numel": 32, "dtype": "float32", "shape": [4, 8]}
    assert all(layer["forward_us"] > 0 and layer["backward_us"] > 0 for layer in workload["layers"])
    assert "2 layers" in done.stderr and not done.stdout


@pytest.mark.parametrize("batches", ["[]", "torch.utils.data.DataLoader(Endless(), batch_size=1)"])
def test_a_job_needs_batches_but_no_length(gradweave, tmp_path, monkeypatch, batches):
    name = f"job_{len(batches)}"
    (tmp_path / f"{name}.py").write_text(f"""
import torch

class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(2), torch.zeros(2)

def make():
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.functional.mse_loss, {batches}
""")
    monkeypatch.chdir(tmp_path)
    done = gradweave("profile", f"{name}:make", "--iterations", "1", "-o", "workload.json")
    assert (done.returncode, "returned no batches" in done.stderr) == ((2, True) if batches == "[]" else (0, False))


def test_profile_counts_all_passes_of_an_iteration(gradweave, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "late.py").write_text(_OWN_JOB + _SLOW_JOB)  # modules stay loaded: a name of its own
    done = gradweave("profile", "late:slow", "--iterations", "1", "--accumulate", "4", "-o", "w.json")
    assert done.returncode == 0, done.stderr
    # Between the last layer's first forward and its last backward are the other three passes.
    assert json.loads((tmp_path / "w.json").read_text())["layers"][-1]["forward_us"] >= 3 * 50e3
    done = gradweave("profile", "late:slow", "--accumulate", "0")
    assert done.returncode == 2 and "--accumulate must be at least 1" in done.stderr


def test_an_output_that_cannot_be_written_is_named(gradweave, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(_OWN_JOB)
    done = gradweave("profile", "mine:job", "--iterations", "1", "-o", "no/where.json")
    assert done.returncode == 2 and "no/where.json" in done.stderr


@needs_data
def test_profile_prints_json_to_standard_output_by_default(gradweave):
    done = gradweave("profile", "small", "--iterations", "2", "--batch-size", "8")
    assert done.returncode == 0
    assert [layer["name"] for layer in json.loads(done.stdout)["layers"]] == ["conv1", "conv2", "hidden", "classes"]


def test_doctor_prints_the_same_findings_as_text_and_as_json(gradweave):
    text, data = gradweave("doctor"), gradweave("doctor", "--json")
    findings = json.loads(data.stdout)["findings"]
    assert text.returncode == data.returncode == (1 if any(f["state"] == "failed" for f in findings) else 0)
    assert {"torch", "extension", "gloo", "interfaces", "test hosts", "dataset"} <= {f["name"] for f in findings}
    for finding in findings:
        assert finding["name"] in text.stdout and finding["state"] in ("ok", "warning", "failed")
        assert finding["state"] == "ok" or finding["remedy"]


def test_doctor_compares_the_torch_that_the_extension_was_built_for_with_the_one_that_runs(monkeypatch):
    assert doctor._extension().what == f"built for torch {releases.built_for()}, and torch {torch.__version__} is installed"
    minor = int(torch.__version__.split(".")[1])
    other = f"2.{minor + 1 if minor == releases.OLDEST[1] else minor - 1}.0"
    monkeypatch.setattr(releases, "built_for", lambda: other)
    finding = doctor._extension()
    assert finding.state == doctor.FAILED and "make runtime" in finding.remedy
    assert other in finding.what and torch.__version__ in finding.what


@pytest.mark.parametrize("built,running,said", [
    ("2.13.0+cpu", "2.13.0+cu130", ""),
    ("2.13.0", "2.13.1", ""),
    ("2.11.0+cu130", "2.11.0+cpu", ""),
    ("2.15.0+cu132", "2.15.1a0+git123", ""),
    ("2.13.0", "2.14.0", "built for torch 2.13.0, and torch 2.14.0 is installed here"),
    (None, "2.14.0", "is not built: make runtime"),
    ("2.13.0", "2.10.0", f"torch 2.10.0 is installed here, and gradweave works with {releases.RANGE}: pip install"),
    (None, "2.16.0", f"torch 2.16.0 is installed here, and gradweave works with {releases.RANGE}: pip install"),
    ("2.15.0", "3.0.0", f"torch 3.0.0 is installed here, and gradweave works with {releases.RANGE}: pip install"),
])
def test_an_extension_fits_releases_of_the_same_minor_number(built, running, said):
    reason = releases.reason_against(running, built)
    assert said in reason and bool(reason) == bool(said) and "\n" not in reason


def test_doctor_says_how_to_get_the_images(gradweave, no_images):
    done = gradweave("doctor", "--json")
    dataset = next(f for f in json.loads(done.stdout)["findings"] if f["name"] == "dataset")
    assert dataset["state"] == "warning" and "apt-get install dataset-fashion-mnist" in dataset["what"]


@pytest.mark.parametrize("found,chosen,state", [
    ({"lo": ["127.0.0.1"], "eth0": ["10.0.0.2"]}, None, doctor.OK),
    ({"eth0": ["8.8.8.8"]}, None, doctor.WARNING),
    ({"eth0": ["10.0.0.2", "2001:4860:4860::8888"]}, None, doctor.WARNING),
    ({"eth0": ["8.8.8.8"], "eth1": ["10.0.0.2"]}, "eth1", doctor.OK),
    ({"eth0": ["8.8.8.8"], "eth1": ["10.0.0.2"]}, "eth1,eth0", doctor.WARNING),
    ({"eth0": ["10.0.0.2"]}, "eth7", doctor.FAILED),
    ({}, "eth7", doctor.OK),
])
def test_doctor_judges_interfaces(found, chosen, state):
    finding = doctor._interface(found, chosen)
    assert finding.state == state
    assert bool(finding.remedy) == (state != doctor.OK)
