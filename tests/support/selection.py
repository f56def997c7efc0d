"""What ``scripts/test`` leaves to other commits. ``pytest`` by hand and nightly run all tests.

A case with the marker ``turns(N)`` runs at one in N commits. A test that takes N seconds, by its last run on this
machine or else by seconds.json, runs at one in 2 N. It also runs if its file has changed since the last run that
passed on this machine. A row of the conformance table also runs at once if a function that it enters has changed,
and not many rows enter that function. Of those that many enter, the rows whose turn it is tell.

A row notes which functions of aotpack, the loader, the devtools and the tests it enters, with a hash of each.
Hashes are of syntax trees without docstrings, so comments and formatting count for nothing.
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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from devtools.paths import ROOT

Notes = Mapping[str, Mapping[str, str]]
"""Hashes by file and function."""

MANY = 20
"""A function is common if more rows than one in this many enter it."""
_SECONDS = Path(__file__).with_name("seconds.json")
_LONG = 2
"""A test that takes this many seconds takes turns."""
_TURNS_A_SECOND = 2
"""So all tests that take turns take half a second each of a commit's run."""
_MODULE = "<module>"
_NOTHING = "{}"


def nightly() -> bool:
    """Whether this is a run of everything."""
    return os.environ.get("AOTPACK_TESTS") == "nightly"


def is_due(test: str, parts: int = 1) -> bool:
    """Whether it is the turn of a test, by its node ID: at one in ``parts`` commits or fewer, others at each."""
    if os.environ.get("AOTPACK_TESTS") != "commit":
        return True
    parts = max(parts, _seconds().get(test, 0) * _TURNS_A_SECOND)
    return int.from_bytes(hashlib.sha256(f"{_commit()} {test}".encode()).digest()[:4]) % parts == 0


@functools.cache
def _seconds() -> Mapping[str, int]:
    """What the tests take that take long, by node ID."""
    path = _kept("seconds.json")
    return json.loads(_SECONDS.read_text()) | (json.loads(path.read_text()) if path is not None and path.exists() else {})


def _write(path: Path, found: Mapping[str, Any]) -> None:
    """Write a file that other runs may read or write, too."""
    temporary = path.with_name(f"{path.name}-{os.getpid()}")
    temporary.write_text(json.dumps(found))
    temporary.replace(path)


def note_run(reports: Iterable[pytest.TestReport], passed: bool) -> None:
    """After a run: write what its tests took. A run of a commit that passed notes its files, too."""
    seconds = defaultdict[str, float](float)
    for report in reports:
        seconds[report.nodeid] += 0 if report.skipped else report.duration
    found = {test: round(took) for test, took in sorted(seconds.items()) if took >= _LONG}
    if nightly():
        ran = {test.partition("::")[0] for test in seconds}
        others = {test: took for test, took in json.loads(_SECONDS.read_text()).items() if test.partition("::")[0] not in ran}
        _SECONDS.write_text(json.dumps(dict(sorted((others | found).items())), indent=1) + "\n")
    elif path := _kept("seconds.json"):
        _write(path, _seconds() | found)
    if passed and (path := _kept("files.json")):
        ran = {report.nodeid.partition("::")[0] for report in reports}
        _write(path, _files_of_last_run(path) | {file: _hashes(file) for file in sorted(ran)})


def has_changed(file: str) -> bool:
    """Whether a file of tests has changed since the last run of a commit that passed with it on this machine."""
    path = _kept("files.json")
    return path is not None and _files_of_last_run(path).get(file, _hashes(file)) != _hashes(file)


def _files_of_last_run(path: Path) -> dict[str, Mapping[str, str]]:
    return json.loads(path.read_text()) if path.exists() else {}


def _kept(name: str) -> Path | None:
    """A file that runs of commits keep on this machine."""
    kept = os.environ.get("AOTPACK_TEST_CACHE")
    return Path(kept, name) if kept and os.environ.get("AOTPACK_TESTS") == "commit" else None


@functools.cache
def _commit() -> str:
    asked = ["git", "-C", os.fspath(ROOT), "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


class Entered:
    """What rows entered at their last run, a file for each in ``folder``. Without a folder nothing is noted."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._is_first_run = folder is not None and not folder.exists()

    def is_touched(self, name: str) -> bool:
        """Whether the row is new, failed at its last run, or enters a function that changed and that few rows enter."""
        path = self._path(name)
        if path is None:
            return False
        if not path.exists():
            if self._is_first_run:
                path.write_text(_NOTHING)  # what is added later is new
            return not self._is_first_run
        return name in self._touched

    @functools.cached_property
    def _touched(self) -> frozenset[str]:
        assert self._folder is not None
        entered, changed = Counter[tuple[str, str]](), dict[str, list[tuple[str, str]]]()
        noted = list(filter(_has_notes, self._folder.glob("*.json")))
        for path in noted:
            recorded = json.loads(path.read_text())
            notes: Notes = recorded["entered"]
            entered.update((file, function) for file, found in notes.items() for function in found)
            changed[recorded["row"]] = _changed(notes)
        common = {function for function, count in entered.items() if count * MANY > len(noted)}
        return frozenset(row for row, functions in changed.items() if not common.issuperset(functions))

    @contextlib.contextmanager
    def noting(self, name: str, functions: bool = True) -> Iterator[None]:
        """Note which functions the block enters, if they are not known or the row is touched. It takes twice the time.

        The first run on a machine, and one without ``functions``, notes no more than that the row passed.
        A row that fails runs again at the next commit.
        """
        path = self._path(name)
        if path is None or sys.gettrace() is not None:
            yield
            return
        without = self._is_first_run or not functions
        is_known = without or (_has_notes(path) and name not in self._touched)
        seen: set[CodeType] = set()
        try:
            with contextlib.nullcontext() if is_known else _tracing(seen):
                yield
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        if without:
            path.write_text(_NOTHING)
        elif not is_known:
            part = path.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({"row": name, "entered": _with_hashes(seen)}))
            part.replace(path)

    def _path(self, name: str) -> Path | None:
        if self._folder is None:
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.json"


def _has_notes(path: Path) -> bool:
    return path.exists() and path.stat().st_size > len(_NOTHING)


@contextlib.contextmanager
def _tracing(seen: set[CodeType]) -> Iterator[None]:
    """Add all code that the block enters to ``seen``."""

    def enter(frame: FrameType, event: str, argument: object) -> None:
        seen.add(frame.f_code)

    sys.settrace(enter)
    threading.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def _changed(notes: Notes) -> list[tuple[str, str]]:
    noted = [(file, function, digest) for file, found in notes.items() for function, digest in found.items()]
    return [(file, function) for file, function, digest in noted if _hashes(file).get(function) != digest]


def _with_hashes(seen: set[CodeType]) -> Notes:
    """What a module computes when it is imported counts as a function."""
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
def _hashes(file: str) -> Mapping[str, str]:
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
