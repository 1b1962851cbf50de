"""docs/papers.md lists the claims of scripts/papers/claims.py, on inputs that exist, filled from the command line's
answers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "make_papers.py"


@pytest.fixture(scope="module")
def papers():
    """The modules papers.claims and make_papers."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import make_papers
        from papers import claims
        yield claims, make_papers
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def rows(text):
    """Cells of the generated table's rows, without the head."""
    body = text.split("<!-- generated: papers -->\n")[1].split("<!-- end: papers -->")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]


def test_inputs_exist(papers):
    for claim in papers[0].all_claims():
        assert (ROOT / "examples" / "workloads" / f"{claim.workload}.json").is_file(), claim
        assert (ROOT / "examples" / "clusters" / f"{claim.cluster}.json").is_file(), claim
        assert claim.runs and claim.figure


def test_document_lists_every_claim(papers):
    claims, make_papers = papers
    blank = "<!-- generated: papers -->\n" + make_papers.table(claims.all_claims(), None) + "<!-- end: papers -->"
    without_values = [[cells[:4] + cells[5:] for cells in rows(text)]
                      for text in ((ROOT / "docs" / "papers.md").read_text(encoding="utf-8"), blank)]
    assert without_values[0] == without_values[1], "run `make papers`"


def test_values_are_what_their_claim_says(papers):
    claims, _ = papers
    fast, slow = {"iteration_us": 1000, "updates_per_iteration": 0.5}, {"iteration_us": 2500.5}
    compute = (400, 500)
    assert claims.coverage([slow], compute) == "1.778"
    assert claims.ccr([slow], compute) == "3.20"
    assert claims.over_compute([slow], compute) == "2.778"
    assert claims.speedup_of_last([slow, fast, fast], compute) == "2.501 / 1.000"
    assert claims.speedup_on(64)([fast], compute) == "57.60"
    assert claims.updates([fast], compute) == "0.500, iteration 1.111 times compute"
    assert claims.milliseconds([slow, fast], compute) == "2.5 / 1.0"


# Answers plan with a file that names the scheme, simulate with a time that depends on it; refuses deft.
FAKE = """#!{python}
import json, sys
words = sys.argv[1:]
after = lambda name: words[words.index(name) + 1]
if words[0] == "plan":
    if after("--scheme") == "deft":
        print(json.dumps({{"starves": "bucket too large"}}))
        sys.exit(1)
    json.dump({{"scheme": after("--scheme")}}, open(after("-o"), "w"))
else:
    scheme = json.load(open(after("--plan")))["scheme"]
    print(json.dumps({{"iteration_us": 1000 * len(scheme), "updates_per_iteration": 1}}))
"""


def test_table_is_filled_from_the_command_line(papers, tmp_path):
    claims, make_papers = papers
    fake = tmp_path / "gradweave"
    fake.write_text(FAKE.format(python=sys.executable))
    fake.chmod(0o755)
    own = [claims.Claim("P", "T", "ratio", "2", "tiny", "tiny-4", (claims.Run("sequential"), claims.Run("wfbp")),
                        claims.speedup_of_last),
           claims.Claim("P", "T", "none", "2", "tiny", "tiny-4", (claims.Run("deft"),), claims.over_compute)]
    lines = make_papers.table(own, make_papers.Simulator(str(fake))).splitlines()
    assert "| 2.500 | tiny, tiny-4 | `sequential`, `wfbp` |" in lines[2]
    assert "| infeasible: bucket too large |" in lines[3]


def test_missing_command_is_named():
    result = subprocess.run([sys.executable, SCRIPT, "--gradweave", "/no/such/command"], capture_output=True, text=True,
                            check=False)
    assert result.returncode != 0 and "/no/such/command" in result.stderr and "make build" in result.stderr


def test_failing_command_is_shown(papers, tmp_path):
    _, make_papers = papers
    with pytest.raises(SystemExit, match="No such file|cannot"):
        make_papers.Simulator("ls").call("--zero", str(tmp_path / "missing"))


def test_compute_times_are_the_files(papers):
    layers = json.loads((ROOT / "examples/workloads/tiny.json").read_text(encoding="utf-8"))["layers"]
    assert papers[1].compute_of("tiny") == (sum(layer["forward_us"] for layer in layers),
                                            sum(layer["backward_us"] for layer in layers))
