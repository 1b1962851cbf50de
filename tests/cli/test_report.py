"""`gradweave report` and `gradweave diff`: files, messages, and the page in a browser."""

import html.parser
import json
import shutil
import subprocess

import pytest
from test_contract import CLUSTERS, SCHEMES, WORKLOADS, result, run, write

GIVEN = ("--workload", WORKLOADS / "tiny.json", "--cluster", CLUSTERS / "tiny-4.json")


class Page(html.parser.HTMLParser):
    """A page's elements by tag, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


def timeline(folder, scheme, file, **changes):
    plan, path = folder / f"{scheme}.json", folder / file
    run("plan", *GIVEN, "--scheme", scheme, "-o", plan)
    run("simulate", *GIVEN, "--plan", plan, "--timeline", path, "--json")
    write(path, json.loads(path.read_text()) | changes)
    return path


def test_a_page_is_whole_and_loads_nothing(tmp_path):
    run("report", *GIVEN, "--schemes", "ddp,dear", "--workers", "2,4", "--links", "1,10", "-o", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert page.open == [] and len(page.scripts) == 2
    assert not [tag for tag, attributes in page.tags if "src" in attributes or "href" in attributes or tag in ("link", "img")]
    data = json.loads(page.scripts[0])
    rows = {row["name"]: row for row in result("compare", *GIVEN, "--schemes", "ddp,dear")["schemes"]}
    assert {row["name"]: row["iteration_us"] for row in data["rows"]} == {
        name: row["iteration_us"] for name, row in rows.items()}
    assert data["grid"]["workers"] == [2, 4] and len(data["grid"]["iteration_us"][0]) == 2 * 3 * 3
    printed = run("report", *GIVEN, "--schemes", "ddp,dear", "--workers", "2,4", "--links", "1,10").stdout
    assert printed == (tmp_path / "page.html").read_text()


def test_a_page_shows_given_plans_and_timelines(tmp_path):
    measured = timeline(tmp_path, "ddp", "rank0.json", name="rank 0", origin="measured")
    text = run("report", *GIVEN, "--plan", tmp_path / "ddp.json", "--timeline", measured).stdout
    assert [row["name"] for row in json.loads(Page(text).scripts[0])["rows"]] == ["ddp.json", "rank 0"]
    text = run("report", "--timeline", measured).stdout
    assert [row["name"] for row in json.loads(Page(text).scripts[0])["rows"]] == ["rank 0"]


@pytest.mark.parametrize("arguments, words", [
    ([], ["workload", "timeline"]),
    (["--workload", WORKLOADS / "tiny.json"], ["--cluster"]),
    ([*GIVEN, "--schemes", "nope"], ["nope", "us_byte"]),
    ([*GIVEN, "--workers", "0"], ["--workers", "from 1"]),
    ([*GIVEN, "--startups", "x"], ["--startups"]),
    ([*GIVEN, "--set", "nope=1"], ["nope"]),
    (["--timeline", "no-such-file"], ["no-such-file"]),
    ([*GIVEN, "--schemes", "ddp", "-o", "/nonexistent/page.html"], ["/nonexistent/page.html"]),
])
def test_bad_input_of_a_report_is_named(arguments, words):
    said = run("report", *arguments, code=2).stderr
    assert all(word in said for word in words)


def test_a_plan_of_another_model_is_refused(tmp_path):
    run("plan", *GIVEN, "--scheme", "ddp", "-o", tmp_path / "plan.json")
    said = run("report", "--workload", WORKLOADS / "resnet50.json", "--cluster", CLUSTERS / "tiny-4.json",
               "--plan", tmp_path / "plan.json", code=2).stderr
    assert "plan.json" in said


def test_timelines_part_where_they_differ(tmp_path):
    ddp, dear = timeline(tmp_path, "ddp", "a.json"), timeline(tmp_path, "dear", "b.json")
    same = result("diff", ddp, ddp)
    assert same["parts"] is None and same["spans"] == []
    apart = result("diff", ddp, dear, code=1)
    assert apart["a"]["name"] == "ddp" and apart["b"]["name"] == "dear"
    assert apart["parts"]["iteration"] == 0
    only_b = [row["what"] for row in apart["spans"] if row["a_us"] is None]
    assert any(what.startswith("all_gather") for what in only_b)
    assert "they differ from iteration 0 on" in run("diff", ddp, dear, code=1).stdout
    assert "they agree within 100 %" in run("diff", ddp, ddp, "--tolerance", "1").stdout


def test_bad_timelines_of_a_diff_are_named(tmp_path):
    empty = timeline(tmp_path, "ddp", "empty.json", spans=[])
    assert "empty.json" in run("diff", empty, empty, code=2).stderr
    assert "no-such-file" in run("diff", "no-such-file", empty, code=2).stderr
    run("diff", empty, code=2)
    span = {"kind": "op", "track": 1, "iteration": 0, "begin_us": 2, "end_us": 5}
    for change, words in (({"end_us": 1}, "end_us: is before begin_us"), ({"track": 2}, "track"),
                          ({"end_us": 2.4e15}, "end_us: is out of range"),
                          ({"begin_us": -2.4e15}, "begin_us: is out of range")):
        bad = timeline(tmp_path, "ddp", "bad.json", links=["k"], spans=[span | change])
        said = run("diff", bad, bad, code=2).stderr
        assert "bad.json: spans[0]." in said and words in said


# Acts in a copy of the page and leaves what it sees in the body.
ACTS = """
const seen = {errors: [], chips: document.querySelectorAll("#picks button").length,
  rows: document.querySelectorAll("tbody tr").length, advice: document.querySelectorAll("#advice li").length,
  curves: document.querySelectorAll("#charts svg polyline").length, wide: document.documentElement.scrollWidth};
const painted = (canvas) =>
  canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value);
seen.painted = [...document.querySelectorAll("#lines canvas")].map(painted);
const canvas = document.querySelector("#lines canvas"), box = canvas.getBoundingClientRect();
canvas.dispatchEvent(new PointerEvent("pointermove", {clientX: box.left + 76, clientY: box.top + 28, bubbles: true}));
seen.tip = document.getElementById("tip").textContent;
const picture = () => canvas.toDataURL(), before = picture();
document.getElementById("in").click();
seen.zoomed = picture() !== before;
document.getElementById("all").click();
seen.whole = picture() === before;
const found = document.getElementById("found").textContent;
const slider = document.querySelector("#sliders input[aria-label=Bandwidth]");
slider.value = 0;
slider.dispatchEvent(new Event("input"));
seen.slid = [found, document.getElementById("found").textContent];
document.querySelectorAll("#picks button")[0].click();
seen.lines = document.querySelectorAll("#lines canvas").length;
document.querySelectorAll("thead button")[0].click();
seen.first = document.querySelector("tbody td").textContent;
const wide = document.querySelector(".scroll"), more = () => [document.getElementById("beside").hidden,
  wide.parentNode.classList.contains("more"), document.getElementById("beside").textContent];
seen.cut = [wide.scrollWidth > wide.clientWidth + 1, ...more()];
wide.scrollLeft = 10000;
wide.dispatchEvent(new Event("scroll"));
seen.end = more();
document.getElementById("theme").click();
seen.theme = document.documentElement.dataset.theme;
document.body.append(Object.assign(document.createElement("pre"), {id: "seen", textContent: JSON.stringify(seen)}));
"""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: apt-get install chromium")
@pytest.mark.parametrize("width", [420, 900, 1400])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_works_in_a_browser(width, dark, tmp_path):
    evil = "</script><script>document.title='broken'</script>"
    workload = json.loads((WORKLOADS / "tiny.json").read_text())
    workload["layers"][0]["name"] = workload["name"] = evil
    text = run("report", "--workload", write(tmp_path / "w.json", workload), "--cluster", CLUSTERS / "tiny-4.json").stdout
    write(tmp_path / "page.html", text.replace("</body>", f"<script>{ACTS}</script></body>"))
    # A window is at least 500 wide: a narrow page stands in a frame, and what it has seen in the frame's document.
    write(tmp_path / "frame.html", f"""<body><iframe id=f src=page.html style="width:{width}px;height:3000px"></iframe><script>
        f.onload = () => document.body.append(f.contentDocument.getElementById("seen").cloneNode(true))</script>""")
    done = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1500,3200", "--enable-logging=stderr",
         "--allow-file-access-from-files", f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=5000",
         *(["--blink-settings=preferredColorScheme=0"] if dark else []), "--dump-dom", f"file://{tmp_path}/frame.html"],
        capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr
    shown = done.stdout.split('<pre id="seen">')[1].split("</pre>")[0]
    seen = json.loads(shown.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert seen["chips"] == seen["rows"] == len(SCHEMES) and seen["advice"] >= 4 and seen["curves"] >= 3 * 16
    assert seen["painted"] and all(seen["painted"]) and seen["zoomed"] and seen["whole"]
    assert "iteration" in seen["tip"] and evil in seen["tip"]
    assert seen["slid"][0] != seen["slid"][1] and seen["lines"] == len(seen["painted"]) + 1
    assert seen["first"] == "asc_wfbp" and seen["theme"] == ("light" if dark else "dark")
    assert seen["wide"] <= width
    # What doesn't fit scrolls, and the page says so until its end is in sight.
    cut, hidden, shaded, said = seen["cut"]
    assert (cut or width == 1400) and hidden != cut and shaded == cut and (not cut or " columns are out of sight" in said)
    assert not cut or seen["end"][:2] == [False, False]
