"""Includes go downward, from floor to floor (docs/architecture.md); folders include each other in one direction; the engine
knows nothing of the simulator; threads have owners."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# From the lowest: folders of src/, and public headers. "results": what is found, for programs and people.
FLOORS = {
    "base": ("base codec", "error decimal"),
    "model": ("model compressors", "workload cluster collective compression cost fit"),
    "plan": ("plan", "plan validate effects timeline iteration_statistics"),
    "predict": ("simulate preserve observe", "simulate preserve estimate observe goodput"),
    "formats": ("io io/import", "json import"),
    "plan makers": ("schemes schemes/deft schemes/dreamddp schemes/us_byte solve tune", "schemes options ranked_plans tune"),
    "results": ("report", "report"),
    "engine": ("peers islands run runtime runtime/codec runtime/transport", ""),
    "control": ("control", ""),
    "faces": ("cli jobs session python", "torch"),
}
LOCAL = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def floors():
    """{folder of src/ or public header: floor's number}"""
    numbers = {}
    for number, (folders, headers) in enumerate(FLOORS.values()):
        numbers |= {f"src/{folder}": number for folder in folders.split()}
        numbers |= {f"include/gradweave/{header}.h": number for header in headers.split()}
    return numbers


def included(file):
    """Files of the tree that `file` includes, by their paths in it."""
    for name in LOCAL.findall((ROOT / file).read_text()):
        for folder in ("src", "include", str(Path(file).parent)):
            if (ROOT / folder / name).is_file():
                yield f"{folder}/{name}"
                break


def place(file):
    return file if file.startswith("include/") else str(Path(file).parent)


@pytest.fixture(scope="module")
def includes():
    files = [str(path.relative_to(ROOT)) for folder in ("src", "include") for path in (ROOT / folder).rglob("*")
             if path.suffix in (".h", ".cc") and "gloo_headers" not in path.parts]
    return {file: sorted(set(included(file))) for file in files}


def test_every_file_is_on_a_floor(includes):
    numbers = floors()
    assert sorted({place(file) for file in includes} - numbers.keys()) == []


def test_includes_go_downward(includes):
    numbers = floors()
    assert [f"{file} includes {other}" for file, others in includes.items() for other in others
            if numbers[place(other)] > numbers[place(file)]] == []


def test_folders_include_each_other_in_one_direction(includes):
    def folder_of(file):  # a scheme in several files has a folder in that of all
        return "src/schemes" if file.startswith("src/schemes/") else place(file)

    towards = defaultdict(set)
    for file, others in includes.items():
        for other in others:
            if file.startswith("src/") and other.startswith("src/") and folder_of(file) != folder_of(other):
                towards[folder_of(file)].add(folder_of(other))

    def reached(start):
        seen, ahead = set(), list(towards[start])
        while ahead:
            folder = ahead.pop()
            if folder not in seen:
                seen.add(folder)
                ahead += towards[folder]
        return seen

    assert [folder for folder in sorted(towards) if folder in reached(folder)] == []


def test_the_engine_knows_nothing_of_the_simulator(includes):
    engine = [file for file in includes if place(file).startswith(("src/run", "src/peers"))]
    seen, ahead = set(), list(engine)
    while ahead:
        file = ahead.pop()
        if file not in seen:
            seen.add(file)
            ahead += includes[file]
    assert [file for file in sorted(seen) if "simulate" in file] == []


def test_threads_are_started_by_their_owner_alone(includes):
    starts = re.compile(r"std::j?thread(?!::)|pthread_create")
    found = [file for file in includes if starts.search((ROOT / file).read_text())]
    assert sorted(found) == ["src/base/thread.cc", "src/base/thread.h"]
