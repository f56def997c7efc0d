"""Compiles and links generated code and the call library."""

from __future__ import annotations

from pathlib import Path
from typing import Final

CSRC: Final = Path(__file__).parent.parent / "csrc"
"""Sources in C++ that are compiled as they are, or written into generated code."""
