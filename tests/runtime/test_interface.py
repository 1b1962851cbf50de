"""What the extension module offers is what its stub says."""

import ast
from pathlib import Path

import torch  # noqa: F401  the extension's libraries are torch's
from gradweave import _native


def names_in(body):
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.AnnAssign):
            yield node.target.id


def public(held):
    return {name for name in vars(held) if not name.startswith("_")}


def test_the_stub_names_what_the_module_has():
    stub = ast.parse(Path(_native.__file__).with_name("_native.pyi").read_text()).body
    assert set(names_in(stub)) == public(_native)
    for node in stub:
        if isinstance(node, ast.ClassDef) and not issubclass(getattr(_native, node.name), Exception):
            assert {name for name in names_in(node.body) if name != "__init__"} == public(getattr(_native, node.name))
