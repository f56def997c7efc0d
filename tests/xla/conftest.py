"""What the XLA tests share. They run where torch_xla is (scripts/test-xla), and are left out everywhere else."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
IS_THERE = importlib.util.find_spec("torch_xla") is not None

if IS_THERE:
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    import torch_xla

    torch_xla.device()  # before any backward of this process


collect_ignore_glob = [] if IS_THERE else ["test_*.py"]  # some import what needs torch_xla


def pytest_report_header() -> str | None:
    return None if IS_THERE else "tests/xla: left out, for torch_xla is not there; scripts/test-xla runs them"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xla)


@pytest.fixture
def device() -> torch.device:
    """The XLA device."""
    return torch_xla.device()


@pytest.fixture
def compiles() -> Callable[[], int]:
    """How many graphs torch_xla has compiled so far in this process, by its own counter."""
    from torch_xla.debug import metrics

    return lambda: metrics.counter_value("UncachedCompile") or 0
