"""What the documents show is what there is: the tutorial's commands and scripts run, pages that are written are up to date."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradweave.lab.hosts import free_port

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("GRADWEAVE_BUILD", ROOT / "build"))
# [the name of a file before the block], the kind of block, its text
BLOCK = re.compile(r"(?:^`(\w+\.\w+)`[^\n]*:\n\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)


def environment_of(folder):
    """As a user's after `make runtime`."""
    python = Path(sys.executable).parent
    names = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "NO_COLOR")}
    return names | {"PATH": f"{BUILD}:{python}:{os.environ['PATH']}", "PYTHONPATH": f"{ROOT / 'python'}:{folder}",
                    "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def run(command, folder):
    done = subprocess.run(["bash", "-e", "-c", command], cwd=folder, env=environment_of(folder), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, f"{command}{done.stdout}"
    return done.stdout


def words_of(output):
    """The words of each line, without what depends on the machine and the moment: numbers, marks, and the scheme of `auto`."""
    numbers = re.sub(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?(?: (?:us|ms|s|B|kB|MB)\b)?", "0", output)
    told = re.sub(r"(?<=in force: )\w+|(?<=gradweave: )\w+(?=: 0 an)|^[*! ]{2}", "", numbers, flags=re.M)
    return [line.split() for line in told.splitlines() if line.strip()]


@pytest.mark.slow
def test_the_tutorial_runs_and_prints_what_it_shows(tmp_path):
    printed = None
    for name, kind, text in BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text()):
        if name:
            (tmp_path / name).write_text(text)
        elif kind == "sh":
            printed = run(text, tmp_path)
        elif kind == "text":
            real = words_of(printed)
            missing = [line for line in words_of(text) if line not in real]
            assert not missing, f"{missing} not in:\n{printed}"
    for made in ("trace.json", "delayed.json"):
        assert (tmp_path / made).stat().st_size > 1000


@pytest.mark.slow
def test_two_nodes_meet_as_in_the_page_about_clusters(tmp_path):
    """On one machine: the command for two nodes, started twice."""
    page = (ROOT / "docs" / "clusters.md").read_text()
    command, = re.findall(r"^(torchrun --nnodes 2 .*) train.py$", page, re.M)
    (tmp_path / "train.py").write_text("from torch import distributed\ndistributed.init_process_group('gloo')\n"
                                       "print('rank', distributed.get_rank(), 'of', distributed.get_world_size())\n"
                                       "distributed.destroy_process_group()\n")
    words = f"exec {command} train.py".replace("head:29400", f"127.0.0.1:{free_port()}")
    nodes = [subprocess.Popen(["bash", "-c", words], cwd=tmp_path, env=environment_of(tmp_path), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    printed = "".join(node.communicate(timeout=120)[0] for node in nodes)
    assert not any(node.returncode for node in nodes), printed
    assert sorted(re.findall(r"rank \d of \d", printed)) == ["rank 0 of 2", "rank 1 of 2"]


def test_names_of_mpi_are_translated(tmp_path):
    page = (ROOT / "docs" / "clusters.md").read_text()
    block, = re.findall(r"^export RANK=.*?(?=^```)", page, re.M | re.S)
    given = "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1\n"
    assert run(given + block + "echo $RANK $WORLD_SIZE $LOCAL_RANK", tmp_path).split() == ["3", "4", "1"]


def test_api_pages_are_up_to_date():
    subprocess.run([sys.executable, ROOT / "scripts" / "make_api.py", "--check"], check=True)


def test_cpp_page_shows_the_consumer():
    page = (ROOT / "docs" / "cpp.md").read_text()
    consumer = ROOT / "tests" / "packaging" / "consumer"
    assert (consumer / "main.cc").read_text() in page
    assert (consumer / "CMakeLists.txt").read_text().partition("\n")[2] in page


def test_accuracies_in_choosing_are_those_measured():
    table, _, _ = (ROOT / "docs" / "results" / "accuracy.md").read_text().partition("<!-- training accuracy: end -->")
    rows = re.findall(r"^\| (\d) \| (sgd|adamw) \| (.*?) \| (\d*) \| .*? \| .*? \| (\S*) \| .*? \|$", table, re.M)
    shown = re.findall(r"^\| `(.*?)` \| (\d) \| (\d+) \|([^|]*)\|([^|]*)\|$",
                       (ROOT / "docs" / "choosing.md").read_text(), re.M)
    assert len(shown) > 5
    for scheme, workers, rate, *differences in shown:
        for optimizer, difference in zip(("sgd", "adamw"), differences):
            number = re.split("[ ,]", difference.strip())[0]
            assert not number or (workers, optimizer, scheme, rate, number) in rows, (scheme, optimizer)
