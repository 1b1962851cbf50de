"""Every scheme and every compressor of the command has its place in the documents, and what they call theirs is there."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = Path(os.environ.get("GRADWEAVE_COMMAND", ROOT / "build" / "gradweave"))


@pytest.fixture(scope="module")
def schemes():
    """{name: its options}"""
    printed = subprocess.run([COMMAND, "schemes", "--json"], capture_output=True, text=True, check=True).stdout
    return {row["name"]: row["options"] for row in json.loads(printed)["schemes"]}


def test_every_scheme_has_a_page_a_picture_and_a_row(schemes):
    table = (ROOT / "docs" / "schemes.md").read_text()
    missing = [name for name in schemes
               if not (ROOT / "docs" / "schemes" / f"{name}.md").exists() or f"| [{name}](schemes/{name}.md) |" not in table
               or (name not in ("optimal", "auto") and f"(pictures/{name}.svg)" not in table)]
    assert not missing, f"{missing}: write docs/schemes/NAME.md, its row in docs/schemes.md, and run `make pictures`"


def test_every_page_of_a_scheme_names_its_own_options(schemes):
    for name, options in schemes.items():
        page = (ROOT / "docs" / "schemes" / f"{name}.md").read_text()
        own = [option["name"] for option in options if not option["name"].startswith("compressor")]
        assert not [option for option in own if f"`{option}" not in page and f"{option}`" not in page], name


def test_every_compressor_has_a_row(schemes):
    chosen, = [option["choices"] for option in schemes["ddp"] if option["name"] == "compressor"]
    page = (ROOT / "docs" / "schemes" / "compressors.md").read_text()
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", page, re.M)))
    assert not set(chosen) - {"none"} - set(named)


def test_the_site_has_a_table_of_contents_of_one_screen():
    contents = re.search(r"^nav:\n(.*?)^\w", (ROOT / "mkdocs.yml").read_text(), re.M | re.S)[1].splitlines()
    assert 10 < len(contents) < 30
    assert all((ROOT / line.rpartition(": ")[2]).exists() for line in contents if line.endswith(".md"))


COMMANDS = [(page, line.split("  #")[0].strip())
            for page in [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "examples" / "README.md"]
            for line in re.findall(r"^(?:build/)?gradweave [^\\\n]+$", page.read_text(), re.M)]


def test_commands_on_the_pages_name_options_that_there_are():
    helps = {}
    assert len(COMMANDS) > 20
    for page, line in COMMANDS:
        _, *words = line.split()
        command = tuple(words[:2] if words[0] == "import" else words[:1])
        if command not in helps:
            helps[command] = subprocess.run([COMMAND, *command, "--help"], capture_output=True, text=True, check=True).stdout
        unknown = [word for word in words if word.startswith("-") and not re.search(rf"{word}\b", helps[command])]
        assert not unknown, f"{page.relative_to(ROOT)}: {line}"


def test_commands_on_given_files_run(tmp_path):
    """As in a clone, one after another."""
    for name in ("examples", "build"):
        (tmp_path / name).symlink_to(ROOT / name if name == "examples" else COMMAND.parent)
    pages = (ROOT / "docs" / "command.md", ROOT / "docs" / "preserver.md", ROOT / "examples" / "README.md")
    for page, line in [(page, line) for page, line in COMMANDS if page in pages]:
        refused = page.name == "preserver.md" and " preserve " in line  # a plan that loses accuracy
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=120,
                              env=os.environ | {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}"})
        assert done.returncode == refused, f"{line}\n{done.stderr}"
