"""Every relative link in the documents leads to a file, and every anchor to a heading."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(ROOT / name for name in subprocess.run(
    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True,
    check=True).stdout.split())
FENCED = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")


def prose_of(text):
    """Without code, in which brackets are no links."""
    return re.sub(r"`[^`\n]*`", "", FENCED.sub("", text))


def anchor_of(heading):
    """As GitHub and MkDocs make it of a heading."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def anchors_of(path):
    found = []
    for heading in re.findall(r"^#{1,6} (.*)$", FENCED.sub("", path.read_text()), re.M):
        anchor = anchor_of(heading)
        found.append(anchor + (f"-{found.count(anchor)}" if anchor in found else ""))
    return found


def broken(page):
    links = [link for link in LINK.findall(prose_of(page.read_text())) if not re.match(r"\w+:", link)]
    for link in links:
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and anchor not in anchors_of(target):
            yield f"{link}: no such heading"


def test_there_are_pages():
    assert len(PAGES) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not list(broken(page))


def test_the_index_leads_to_every_page():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose_of(index.read_text()))}
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page not in linked | {index}]
    assert not missing


def test_a_wrong_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page, `code` and more\n\n[a](page.md#a-page-code-and-more) [b](#nowhere) [c](gone.md) `[d](e)`\n\n"
                    "```\n[f](g)\n```\n")
    assert list(broken(page)) == ["#nowhere: no such heading", "gone.md: no such file"]
