"""What holds for the files of the checkout, whatever they do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

FILES = sorted(path for folder in ("scripts", "tests") for path in (ROOT / folder).rglob("*.py"))

IN_CHILDREN = {
    "tests/test_compile.py": "a user's module beside the model, in a process of its own",
    "tests/test_refusals.py": "the process imports this very file of tests",
    "tests/xla/test_build.py": "the process imports the models of these tests",
}
"""Files that start a process whose code edits ``sys.path``, and why."""

_METHODS = ("append", "extend", "insert", "remove", "pop", "clear")


def path_edits(code: ast.AST) -> Iterator[int]:
    """Lines that change ``sys.path``."""
    for node in ast.walk(code):
        written: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            written = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            written = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            written = [node.func.value] if node.func.attr in _METHODS else []
            if node.func.attr == "syspath_prepend" or ast.unparse(node.func) == "site.addsitedir":
                yield node.lineno
        for target in written:
            if ast.unparse(target).startswith("sys.path") and "sys.path_" not in ast.unparse(target):
                yield getattr(node, "lineno", 0)


def texts(code: ast.AST) -> Iterator[str]:
    """Strings that are code: what a process is started with."""
    for node in ast.walk(code):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "sys.path" in node.value:
            yield node.value


@pytest.mark.parametrize(
    "line",
    [
        "sys.path.insert(0, 'x')",
        "sys.path[:0] = ['x']",
        "sys.path += ['x']",
        "del sys.path[0]",
        "sys.path = []",
        "monkeypatch.syspath_prepend('x')",
    ],
)
def test_an_edit_is_found(line: str) -> None:
    assert list(path_edits(ast.parse(line))) == [1]


@pytest.mark.parametrize("line", ["before = list(sys.path)", "sys.path_hooks.clear()", "assert sys.path == before"])
def test_reading_is_no_edit(line: str) -> None:
    assert list(path_edits(ast.parse(line))) == []


def test_no_script_and_no_test_edits_the_import_path() -> None:
    """The package ``devtools`` is installed; a file of no package is imported by ``devtools.files``."""
    parsed = {path: ast.parse(path.read_text()) for path in FILES}
    assert [f"{path.relative_to(ROOT)}:{line}" for path, code in parsed.items() for line in path_edits(code)] == []
    in_children = {name_of(path) for path, code in parsed.items() if any(map(edits_in_text, texts(code)))}
    assert in_children - {name_of(Path(__file__))} == IN_CHILDREN.keys()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def edits_in_text(text: str) -> bool:
    return any(f"sys.path{change}" in text for change in (*(f".{name}(" for name in _METHODS), "[", " =", " +="))
