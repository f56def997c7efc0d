"""A pytest plugin that appends the outcome of each test to a file as soon as it is known.

A test that ends the process is therefore the last one that has started. A second run skips the
tests whose outcome the file holds, so a run can be continued.

``AOTPACK_OUTCOMES`` names the file. ``AOTPACK_ONLY`` has the names of the tests to run, a line each;
without it all run. ``AOTPACK_CODE`` chooses ``portable`` or ``native`` tests, or
``all``; native ones have a case that is compiled.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

STARTED = "started"
TOTAL = "total"
_FROM_BEST = ("passed", "skipped", "failed")


class Outcomes:
    """The file of outcomes: an object with ``test`` and ``outcome`` in each line.

    The line of the test ``total`` holds the number of chosen tests.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = set(read(path))
        self._worst: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)  # after -k, which leaves out tests of other groups
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        code, only = os.environ.get("AOTPACK_CODE", "all"), os.environ.get("AOTPACK_ONLY", "").splitlines()
        chosen = [item for item in items if code in ("all", code_of(item)) and (not only or item.nodeid in only)]
        self._write(TOTAL, str(len(chosen)))
        left = [item for item in chosen if item.nodeid not in self._known]
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = left

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, STARTED)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected = hasattr(report, "wasxfail") and report.skipped
        outcome = "passed" if expected else report.outcome
        self._worst[report.nodeid] = max(self._worst.get(report.nodeid, "passed"), outcome, key=_FROM_BEST.index)
        if report.when == "teardown":
            self._write(report.nodeid, self._worst[report.nodeid])

    def _write(self, test: str, outcome: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"test": test, "outcome": outcome}) + "\n")


def code_of(item: pytest.Item) -> str:
    """Whether a test compiles its case: ``native`` or ``portable``."""
    parameters = getattr(item, "callspec", None)
    case: Any = parameters.params.get("case") if parameters is not None else None
    native = "cpu" in getattr(case, "targets", ()) or item.get_closest_marker("compiled") is not None
    return "native" if native else "portable"


def read(path: Path) -> dict[str, str]:
    """The last outcome of each test of a file; ``started`` for a test that did not end."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["test"]: line["outcome"] for line in map(json.loads, lines)}


def accept_this_torch() -> None:
    """Let builds run with this torch, if none was ever tried with it.

    A release that was tried for portable bundles alone still refuses native code.
    """
    import torch

    from aotpack._torch.fixes import gate
    from aotpack._torch.fixes.register import minor, name_of

    here = name_of(minor(str(torch.__version__)))
    if here not in gate.SUPPORTED:
        gate.SUPPORTED = (*gate.SUPPORTED, here)
        gate.INDUCTOR_SUPPORTED = (*gate.INDUCTOR_SUPPORTED, here)


def pytest_configure(config: pytest.Config) -> None:
    accept_this_torch()
    config.pluginmanager.register(Outcomes(Path(os.environ["AOTPACK_OUTCOMES"])), "aotpack-outcomes")
