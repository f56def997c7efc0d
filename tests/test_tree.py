"""What holds for the files of the checkout, whatever they do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from aotpack._torch.fixes.entries import FIXES, HOOKS

PACKAGES = sorted(path for folder in ("aotpack", "loader/aotpack_loader") for path in (ROOT / folder).rglob("*.py"))
FILES = sorted(path for folder in ("scripts", "tests") for path in (ROOT / folder).rglob("*.py"))

ENTRIES = {entry.id for entry in (*FIXES, *HOOKS)}

RUN_A_USERS_FILE = {
    "aotpack/tools/measure/contender.py": "what is measured runs model.py, and imports modules beside it",
    "aotpack/model/entry.py": "a build runs model.py, and undoes the edit",
}
"""Files that edit ``sys.path``, as ``python model.py`` does, and why."""

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


def test_the_import_path_is_edited_for_a_users_file_alone() -> None:
    """The package ``devtools`` is installed; a file of no package is imported by ``devtools.files``.

    A process of a test gets its modules by ``PYTHONPATH``.
    """
    parsed = {path: ast.parse(path.read_text()) for path in (*PACKAGES, *FILES)}
    edited = {name_of(path) for path, code in parsed.items() if any(path_edits(code))}
    assert edited == RUN_A_USERS_FILE.keys()
    in_children = {name_of(path) for path, code in parsed.items() if any(map(edits_in_text, texts(code)))}
    assert in_children == {name_of(Path(__file__)), "tests/support/forks.py"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def edits_in_text(text: str) -> bool:
    return any(f"sys.path{change}" in text for change in (*(f".{name}(" for name in _METHODS), "[", " =", " +="))


REPLACES = ROOT / "aotpack/_torch/api/patching.py"
"""The module through which the compiler replaces attributes of torch; each replacement names its entry of the register."""


def replacements(code: ast.AST) -> Iterator[int]:
    """Lines that may replace an attribute of torch."""
    torchs = set(_names_of_torch(code))
    for node in ast.walk(code):
        written: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            written = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            written = [node.target]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith(("mock.patch", "mock.patch.object")) or called in ("patch", "patch.object"):
                yield node.lineno
            elif called in ("setattr", "delattr", "mock.patch.dict", "patch.dict"):
                written = [ast.Attribute(node.args[0], "")]
        for target in written:
            if isinstance(target, ast.Attribute | ast.Subscript) and _root(target) in torchs:
                yield getattr(node, "lineno", 0)


def _names_of_torch(code: ast.AST) -> Iterator[str]:
    """Names under which a module knows parts of torch."""
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or "torch") for alias in node.names if alias.name.partition(".")[0] == "torch")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch" and not node.level:
            yield from ((alias.asname or alias.name) for alias in node.names)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    "line",
    [
        "import torch\ntorch.nn.Module.to = f",
        "from torch._inductor import lowering\nlowering.lowerings[x] = f",
        "from torch import nn\nsetattr(nn.Module, name, f)",
        "from unittest import mock\nmock.patch.object(owner, 'to', f)",
        "from unittest.mock import patch\npatch('torch.add')",
        "import torch._inductor.codecache as cache\ndel cache.x",
    ],
)
def test_a_replacement_is_found(line: str) -> None:
    assert list(replacements(ast.parse(line))) == [2]


def test_torch_is_replaced_in_one_module() -> None:
    """What is replaced there is compared with the register after every test (``conftest``)."""
    found = {path: list(replacements(ast.parse(path.read_text()))) for path in PACKAGES if path != REPLACES}
    assert [f"{path.relative_to(ROOT)}:{line}" for path, lines in found.items() for line in lines] == []


def test_every_replacement_names_an_entry() -> None:
    """Ids are literals, or names to which one is assigned."""
    parsed = {path: ast.parse(path.read_text()) for path in PACKAGES if path != REPLACES}
    calls = [(path, code, node) for path, code in parsed.items() for node in _calls_of_patching(code)]
    found = {f"{path.relative_to(ROOT)}:{node.lineno}": _text(node.args[0], code) for path, code, node in calls}
    assert found
    assert {line: named for line, named in found.items() if named not in ENTRIES} == {}


def _calls_of_patching(code: ast.AST) -> Iterator[ast.Call]:
    """Calls of the functions that a module imports from ``patching`` and that take an entry's id."""
    imports = [node for node in ast.walk(code) if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("patching")]
    names = {alias.name for node in imports for alias in node.names} - {"attribute_set", "caller", "replaced_outside_torch"}
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def _text(node: ast.expr, code: ast.AST) -> Any:
    """The value of a literal, or of a name to which a literal is assigned."""
    if isinstance(node, ast.Constant):
        return node.value
    for assigned in ast.walk(code):
        if isinstance(assigned, ast.Assign) and ast.unparse(assigned.targets[0]) == ast.unparse(node):
            return getattr(assigned.value, "value", None)
    return None


TOOLS = sorted((ROOT / "scripts").rglob("*.py"))


def test_a_file_is_read_in_a_sitting() -> None:
    lengths = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in (*PACKAGES, *TOOLS)}
    assert not {name for name, lines in lengths.items() if lines > 400}


def many_values(code: ast.AST) -> Iterator[int]:
    """Lines of functions that take ten positional values or more, and where a class gets as many."""
    for node in ast.walk(code):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = len([one for one in (*node.args.posonlyargs, *node.args.args) if one.arg not in ("self", "cls")])
        else:
            of_class = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2][:1].isupper()
            count = len(node.args) if of_class and isinstance(node, ast.Call) else 0
        if count >= 10:
            yield node.lineno


@pytest.mark.parametrize("text", ["def f(a, b, c, d, e, f, g, h, i, j): ...", "F(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)"])
def test_many_values_are_found(text: str) -> None:
    assert [*many_values(ast.parse(text))] == [1]


def test_what_travels_together_has_names() -> None:
    code = {path.relative_to(ROOT): ast.parse(path.read_text()) for path in (*PACKAGES, *TOOLS)}
    assert [f"{path}:{line}" for path, tree in code.items() for line in many_values(tree)] == []
