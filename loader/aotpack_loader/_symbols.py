"""Names that torch's libraries export. Imported only to load code compiled on another release of torch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import torch


def not_exported_by_torch(names: Sequence[str]) -> list[str]:
    """Those of ``names`` that torch's libraries do not export. The libraries are already loaded."""
    library = ctypes.CDLL(os.fspath(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    return [name for name in names if not hasattr(library, name)]
