"""Names that torch's libraries export. Imported only to load code compiled on another release of torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

import torch


def not_exported_by_torch(names: Sequence[str]) -> list[str]:
    """Those of ``names`` that torch's libraries do not export, nor the libraries that these are linked to, nor a GPU's driver.

    Torch's libraries are already loaded.
    """
    folder = Path(torch.__file__).parent / "lib"
    found = [path for name in ("libtorch_cpu.so", "libtorch_cuda.so") if (path := folder / name).exists()]
    libraries = [ctypes.CDLL(os.fspath(path)) for path in found]
    if any(name.startswith("cu") for name in names):
        with contextlib.suppress(OSError):  # no driver: its names are missing
            libraries.append(ctypes.CDLL("libcuda.so.1"))
    return [name for name in names if not any(hasattr(library, name) for library in libraries)]
