"""Whose a file of code is: the user's own, an installed package's that may hold the model, or torch's, Python's, ours."""

from __future__ import annotations

import sys
import sysconfig
from functools import cache
from pathlib import Path

import torch

import aotpack_loader

_OURS = (f"{Path(__file__).parent}/", f"{Path(aotpack_loader.__file__).parent}/")
_TORCH = f"{Path(torch.__file__).parent}/"
_PYTHON = tuple({f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "platstdlib")})
_INSTALLED = tuple({f"{sysconfig.get_path(kind)}/" for kind in ("purelib", "platlib")})


ENTRY_MODULE = "_aotpack_entry_"
"""How the names of modules begin that an entry file (``model.py``) is imported under."""


def class_name(kind: type) -> str:
    """The module and name of a class, as its author knows them: one of an entry file is in a module of that file's name."""
    module = kind.__module__
    if module.startswith(ENTRY_MODULE):
        module = Path(getattr(sys.modules.get(module), "__file__", None) or module).stem
    return f"{module}.{kind.__qualname__}"


def is_ours(path: str) -> bool:
    """Code of aotpack or its loader."""
    return path.startswith(_OURS)


def is_torch(path: str) -> bool:
    """Code of torch."""
    return path.startswith(_TORCH)


@cache
def is_model(path: str) -> bool:
    """Code that may be the model's: of no file of torch, aotpack or Python itself, and not generated."""
    if path.startswith(("<", _TORCH, *_OURS)):
        return False
    return _is_installed(path) or not path.startswith(_PYTHON)


@cache
def is_users_own(path: str) -> bool:
    """Code that may be the model's, and is of no installed package."""
    return is_model(path) and not _is_installed(path)


def _is_installed(path: str) -> bool:
    return path.startswith(_INSTALLED) or "/site-packages/" in path or "/dist-packages/" in path
