#!/usr/bin/env python3
"""Writes docs/api.md and docs/api-cpp.md from the docstrings and the headers, which are the source. --check: only compares."""

import argparse
import ast
import inspect
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "gradweave"

# (heading, file, what of it): a name, CLASS.METHOD, or NAME(CLASS), a function whose other arguments are the fields of CLASS.
PYTHON = [
    ("gradweave", "wrapping.py", ["wrap(settings.py:Settings)", "Wrapped", "finish", "clip_grad_norm_"]),
    ("model.gradweave", "session.py", [
        "Session", "Session.report", "Session.log_to", "Session.record_timeline", "Session.timeline", "Session.counters",
        "Session.tuning", "Session.install", "Session.synchronize", "Session.skip_step", "Session.no_sync",
        "Session.state_dict", "Session.load_state_dict", "Session.of_ranks", "Session.finish", "Session.average",
        "Session.broadcast_buffers", "Session.close"]),
    ("Links", "links.py", ["EmulatedLink", "EmulatedLink.__init__", "EmulatedLink.set"]),
    ("gradweave.core", "core.py", None),
    ("gradweave.integrations.accelerate", "integrations/accelerate.py", ["wrap"]),
    ("gradweave.integrations.transformers", "integrations/transformers.py", ["wrap"]),
    ("gradweave.integrations.lightning", "integrations/lightning.py", ["Strategy", "FabricStrategy"]),
]

HEADERS = [
    "workload", "cluster", "plan", "schemes", "options", "ranked_plans", "tune", "validate", "simulate", "timeline", "effects",
    "preserve", "estimate", "iteration_statistics", "observe", "report", "import", "fit", "json", "torch", "collective",
    "compression", "cost", "decimal", "error", "goodput"]

NOTE = "<!-- Written by scripts/make_api.py; the source is {source}. -->\n"


def members(path):
    """{"name" or "class.name": node} of a module, in its order."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}": each for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def argument_list(function, fields=()):
    """The arguments as one writes them, without self; `fields`: those of a dataclass in place of the last."""
    own = [each for each in function.args.args if each.arg != "self"]
    if fields:
        return ", ".join([f"{each.arg}: {ast.unparse(each.annotation)}" for each in own[:-1]] + list(fields))
    text = re.sub(r"^self(, |$)", "", ast.unparse(function.args))
    return re.sub(r"(?<=[\w\]])=", " = ", text)


def fields_of(node):
    """The fields of a dataclass as arguments of a call."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign):
            name, kind = each.target.id, ast.unparse(each.annotation)
            yield "*" if name == "_" else f"{name}: {kind}" + (f" = {ast.unparse(each.value)}" if each.value else "")


def text_of(node):
    """The docstring as paragraphs."""
    return re.sub(r"(?<!\n)\n(?!\n|    )", " ", inspect.cleandoc(ast.get_docstring(node) or ""))


def listed(text):
    """Sentences that begin with "name: " as a list."""
    return re.sub(r"(?:(?<=\.) |(?<=\n)\n)((?:[a-z_]+, )*[a-z_]+): ",
                  lambda found: "\n- `" + found[1].replace(", ", "`, `") + "`: ", text)


def entry(path, name):
    name, _, settings = name.rstrip(")").partition("(")
    node, more, fields = members(path)[name], "", ()
    if settings:
        file, kind = settings.split(":")
        source = members(PACKAGE / file)[kind]
        more, fields = "\n\n" + listed(text_of(source)), tuple(fields_of(source))
    shown = name.replace("Session.", "model.gradweave.").replace(".__init__", "")
    if isinstance(node, ast.ClassDef):
        return f"### {shown}\n\n{listed(text_of(node))}\n"
    if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
        return f"### {shown}\n\n{text_of(node)}\n"
    result = f" -> {ast.unparse(node.returns)}" if node.returns and name != "EmulatedLink.__init__" else ""
    call = f"{shown}({argument_list(node, fields)}){result}"
    if len(call) > 120:  # one argument a line
        call = re.sub(r", (?=\*?\w+:|\*)", ",\n    ", call.replace("(", "(\n    ", 1))
    heading = "" if name.endswith("__init__") else f"### {shown}\n\n"
    return f"{heading}```python\n{call}\n```\n\n{text_of(node)}{more}".rstrip() + "\n"


def python_page():
    parts = ["# Python\n", NOTE.format(source="the docstrings in python/gradweave"),
             "Errors called InvalidInput are `gradweave.InvalidInput`, a ValueError: what the caller can change, with the "
             "remedy. `gradweave.RuntimeFailure`, a RuntimeError, is a lost peer. *Collective*: every rank calls it alike. "
             "What a loop may do is in [runtime.md](runtime.md), how to begin in [tutorial.md](tutorial.md).\n"]
    for heading, file, names in PYTHON:
        public = [name for name in members(PACKAGE / file) if not name.startswith("_")]
        parts.append(f"## {heading}\n")
        parts += [entry(PACKAGE / file, name) for name in names or public]
    return "\n".join(parts)


def header_entry(name):
    text = (ROOT / "include" / "gradweave" / f"{name}.h").read_text()
    comment = re.match(r"(?://[^\n]*\n)+", text)[0]
    introduction = re.sub(r"^// ?", "", comment, flags=re.M).replace("\n", " ").strip()
    body = re.search(r"^namespace gradweave \{\n(.*)^\}  // namespace gradweave$", text, re.M | re.S)[1].strip()
    return f"## gradweave/{name}.h\n\n{introduction}\n\n```cpp\n{body}\n```\n"


def cpp_page():
    parts = ["# C++\n", NOTE.format(source="include/gradweave"),
             "Everything is in namespace `gradweave`. Functions are pure unless they say otherwise: same input, same output, "
             "on every machine, from any thread. Errors are exceptions (`error.h`); what may be infeasible is data. Times of "
             "the simulator are integer nanoseconds, intervals `[begin, end)`. How to build with it is in [cpp.md](cpp.md).\n"]
    return "\n".join(parts + [header_entry(name) for name in HEADERS])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a page is not up to date")
    check = parser.parse_args().check
    missing = {path.stem for path in (ROOT / "include" / "gradweave").glob("*.h")} ^ set(HEADERS)
    if missing:
        sys.exit(f"scripts/make_api.py: HEADERS and include/gradweave differ in {', '.join(sorted(missing))}")
    for path, page in ((ROOT / "docs" / "api.md", python_page()), (ROOT / "docs" / "api-cpp.md", cpp_page())):
        if not check:
            path.write_text(page)
        elif not path.exists() or path.read_text() != page:
            sys.exit(f"{path.relative_to(ROOT)} is not up to date: run scripts/make_api.py")


if __name__ == "__main__":
    main()
