"""Bundles on a device that is not the CPU, without a GPU: tests/second_device, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", ["test_bundles.py", "test_rows.py"])
def test_a_second_device(file: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"second_device/{file}"]
    done = subprocess.run(
        command, cwd=HERE, env={**environment, "AOTPACK_SECOND_DEVICE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
