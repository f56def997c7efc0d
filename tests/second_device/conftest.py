"""These tests run in a process of their own, which tests/test_devices.py starts: torch keeps a device that it got to know."""

from __future__ import annotations

import os

import pytest
import torch

ASKED = bool(os.environ.get("AOTPACK_SECOND_DEVICE"))

if ASKED:
    from second_device import register

    register()

collect_ignore_glob = [] if ASKED else ["test_*.py"]


@pytest.fixture
def device() -> torch.device:
    """The first of the simulated devices."""
    return torch.device("simulated", 0)
