"""Bundles on a device that is not the CPU, without a GPU: tests/second_device, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_the_tests_on_a_second_device_pass() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "second_device"]
    done = subprocess.run(
        command, cwd=HERE, env={**environment, "AOTPACK_SECOND_DEVICE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
