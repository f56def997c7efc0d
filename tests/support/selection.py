"""Which rows of the conformance table a commit runs: half of those that enter a function that changed, and one in six.

A run of a row notes which functions of aotpack, the loader, the devtools and the tests it entered, with
a hash of each. The next run leaves the row out if all of them are as they were. Hashes are of syntax
trees without docstrings, so comments and formatting count for nothing. A change of what every row enters would run them
all: the other half runs at the next commit, and ``scripts/test nightly`` runs all rows.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

from devtools.paths import ROOT

PARTS = 6
"""One in this many rows runs at each commit, whatever changed."""
_MODULE = "<module>"


def nightly() -> bool:
    """Whether this is a run of everything."""
    return "AOTPACK_NIGHTLY" in os.environ


def is_due(name: str, parts: int = PARTS) -> bool:
    """Whether it is the turn of a row: one in ``parts``, others at each commit."""
    return nightly() or hashlib.sha256(f"{_commit()} {name}".encode()).digest()[0] % parts == 0


@functools.cache
def _commit() -> str:
    asked = ["git", "-C", os.fspath(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


class Entered:
    """What rows entered at their last run, a file for each in ``folder``. Without a folder every row runs."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def may_wait(self, name: str) -> bool:
        """Whether the row passed before, and nothing that it entered changed, or the next commit may run it."""
        path = self._path(name)
        if path is None or not path.exists():
            return False
        return self._is_unchanged(path) or not is_due(f"changed {name}", 2)

    def _is_unchanged(self, path: Path) -> bool:
        """Whether all functions that a row entered are as they were."""
        known: dict[str, dict[str, str]] = json.loads(path.read_text())
        return all(_hashes(file).get(function) == digest for file, found in known.items() for function, digest in found.items())

    @contextlib.contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Note which functions the block enters. Nothing is kept of a block that fails."""
        path = self._path(name)
        if path is None or sys.gettrace() is not None:
            yield
            return
        seen: set[CodeType] = set()

        def enter(frame: FrameType, event: str, argument: object) -> None:
            seen.add(frame.f_code)

        path.unlink(missing_ok=True)
        sys.settrace(enter)
        threading.settrace(enter)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(_with_hashes(seen)))
        part.replace(path)

    def _path(self, name: str) -> Path | None:
        if self._folder is None:
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.json"


def _with_hashes(seen: set[CodeType]) -> dict[str, dict[str, str]]:
    """Hashes by file and function. What a module computes when it is imported counts as a function."""
    found: dict[str, dict[str, str]] = {}
    for code in frozenset(seen):  # other threads may still add to it
        if file := _file_of(code.co_filename):
            hashes, function = _hashes(file), code.co_qualname.partition(".<locals>")[0]
            entered = found.setdefault(file, {_MODULE: hashes[_MODULE]})
            if function in hashes:
                entered[function] = hashes[function]
    return found


@functools.cache
def _file_of(name: str) -> str | None:
    """The path in the checkout, for a file of its code."""
    path = Path(name)
    if not path.is_relative_to(ROOT) or path.suffix != ".py":
        return None
    file = path.relative_to(ROOT).as_posix()
    return None if file.startswith(".") else file


@functools.cache
def _hashes(file: str) -> dict[str, str]:
    """The hash of each function of a file by its qualified name, and of all else. Empty for a file that is gone."""
    path = ROOT / file
    return _hashes_of(path.read_text()) if path.exists() else {}


def _hashes_of(source: str) -> dict[str, str]:
    tree, found = ast.parse(source), dict[str, str]()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        _drop_docstring(body)
        for i, node in enumerate(body):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                        _drop_docstring(inner.body)
                name = f"{prefix}{node.name}"  # overloads and properties share a name
                found[name] = hashlib.sha256((found.get(name, "") + ast.dump(node)).encode()).hexdigest()[:16]
                body[i] = ast.Pass()
            elif isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")

    visit(tree.body, "")
    found[_MODULE] = hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]
    return found


def _drop_docstring(body: list[ast.stmt]) -> None:
    if (
        body
        and isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        body[0] = ast.Pass()
