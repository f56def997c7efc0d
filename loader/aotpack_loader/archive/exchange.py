"""Exchanges two names of one file system at once, which Python's ``os`` cannot do."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

_HERE: Final = -100  # AT_FDCWD
_EXCHANGE: Final = 2  # RENAME_EXCHANGE


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two files or directories. False: this system or file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Linux
    if rename is None:
        return False
    rename.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return int(rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE)) == 0
