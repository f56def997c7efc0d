"""The groups of tests that show what works with a release of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Group:
    """Tests that run in one process.

    Args:
        name: as on the command line and in the results.
        part: the heading on the page.
        title: the row on the page.
        paths: files of tests.
        code: which of their tests run: those with a compiled case, those without, or all.
        keyword: pytest's ``-k``.
        slow: whether the group compiles native code; such groups run with ``--native`` only.
    """

    name: str
    part: Literal["loader", "builder", "fixes"]
    title: str
    paths: Sequence[str]
    code: Literal["portable", "native", "all"] = "all"
    keyword: str = ""
    slow: bool = False


_TABLE = ("tests/conformance/test_conformance.py",)
_FRONT_ENDS = ("tests/conformance/test_front_ends.py",)
_FIXES = ("tests/torch_fixes/test_fixes.py",)

GROUPS = (
    Group("vectors", "loader", "Frozen vectors of the format", ("tests/test_vectors.py",)),
    Group(
        "loading",
        "loader",
        "Portable bundles: load, call, train",
        tuple(f"tests/test_{name}.py" for name in ("load", "call", "modes", "modules", "archive", "identity", "purity")),
    ),
    Group(
        "native",
        "loader",
        "Native code",
        ("tests/test_cpu_target.py", "tests/conformance/test_compiled_later.py"),
        slow=True,
    ),
    Group("call-library", "loader", "Call library", ("tests/test_native_call.py",), slow=True),
    Group("front-end-dynamo", "builder", "Front end `dynamo`", _FRONT_ENDS, keyword="dynamo"),
    Group("front-end-export", "builder", "Front end `export`", _FRONT_ENDS, keyword="export"),
    Group("front-end-trace", "builder", "Front end `trace`", _FRONT_ENDS, keyword="trace"),
    Group("table", "builder", "Conformance table, target `portable`", _TABLE, code="portable"),
    Group("table-native", "builder", "Conformance table, target `cpu`", _TABLE, code="native", slow=True),
    Group(
        "building",
        "builder",
        "Builds: options, sizes, random numbers, recomputation, refusals",
        tuple(
            f"tests/test_{name}.py"
            for name in (
                "build",
                "branches",
                "capture",
                "overlaps",
                "random",
                "recompute",
                "refusals",
                "sizes_of_one",
                "unchanged",
            )
        ),
        code="portable",
    ),
    Group("fixes", "fixes", "Cases of fixes below Inductor", _FIXES, code="portable"),
    Group("gate", "fixes", "The gate", ("tests/torch_fixes/test_gate.py", "tests/torch_fixes/test_fail_closed.py")),
    Group("fixes-native", "fixes", "Cases of fixes of Inductor", _FIXES, code="native", slow=True),
)
