"""What the extension module offers is what its stub says."""

import ast
import subprocess
import sys
from pathlib import Path

import torch  # noqa: F401  the extension's libraries are torch's
from gradweave import _native


def names_in(body):
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


def public(names):
    return {name for name in names if not name.startswith("_")}


def test_the_stub_names_what_the_module_has():
    stub = ast.parse(Path(_native.__file__).with_name("_native.pyi").read_text()).body
    assert public(names_in(stub)) == public(vars(_native))
    classes = {node.name: node for node in stub if isinstance(node, ast.ClassDef)}
    for name in public(classes):
        held = getattr(_native, name)
        if not issubclass(held, Exception):
            bodies = [classes[name].body, *(classes[base.id].body for base in classes[name].bases if base.id in classes)]
            assert public(names_in(sum(bodies, []))) == public(vars(held)), name


def test_the_module_can_be_imported_before_torch():
    done = subprocess.run([sys.executable, "-c", "import gradweave._native; print('imported')"],
                          capture_output=True, text=True)
    assert done.stdout == "imported\n", done
