"""Determines whose code a source file is: the user's, an installed package's, torch's, Python's or aotpack's."""

from __future__ import annotations

import itertools
import linecache
import re
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType

import torch

import aotpack_loader

_OURS = (f"{Path(__file__).parent}/", f"{Path(aotpack_loader.__file__).parent}/")
_TORCH = f"{Path(torch.__file__).parent}/"
_PYTHON = tuple({f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "platstdlib")})
_INSTALLED = tuple({f"{sysconfig.get_path(kind)}/" for kind in ("purelib", "platlib")})


ENTRY_MODULE = "_aotpack_entry_"
"""The prefix of the module name under which an entry file (``model.py``) is imported."""


def class_name(kind: type) -> str:
    """Return the module and name of a class as its author knows them.

    For an entry file, the module is the file's name.
    """
    module = kind.__module__
    if module.startswith(ENTRY_MODULE):
        module = Path(getattr(sys.modules.get(module), "__file__", None) or module).stem
    return f"{module}.{kind.__qualname__}"


def is_ours(path: str) -> bool:
    """Whether a file is of aotpack or its loader."""
    return path.startswith(_OURS)


def is_torch(path: str) -> bool:
    """Whether a file is of torch."""
    return path.startswith(_TORCH)


@cache
def is_model(path: str) -> bool:
    """Whether a file may have code of the model.

    It is not of torch, aotpack or Python, and not generated.
    """
    if path.startswith(("<", _TORCH, *_OURS)):
        return False
    return _is_installed(path) or not path.startswith(_PYTHON)


@cache
def is_users_own(path: str) -> bool:
    """Whether a file may have code of the model, and is not of an installed package."""
    return is_model(path) and not _is_installed(path)


def current_line() -> str:
    """Return ``file:line: source`` of the innermost line of the model or of a library that runs now, or an empty string."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_model(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else line_of(frame)


def line_of(frame: FrameType) -> str:
    """Return ``file:line: source`` of a frame's current line."""
    path, line = frame.f_code.co_filename, frame.f_lineno
    return f"{path}:{line}: {linecache.getline(path, line).strip()}"


def line_of_trace(trace: str) -> str:
    """The model's innermost line in a stack trace as text, or else torch's; empty if there is none."""
    found = [
        (match.group(1), f"{where.strip()}: {code.strip()}")
        for where, code in itertools.pairwise(trace.strip().splitlines())
        if (match := re.match(r'\s*File "([^<"][^"]*)"', where)) and not is_ours(match.group(1))  # not "<…": generated
    ]
    model = [line for path, line in found if is_model(path)]
    return next(iter(model[-1:] or [line for _, line in found[-1:]]), "")


def _is_installed(path: str) -> bool:
    return path.startswith(_INSTALLED) or "/site-packages/" in path or "/dist-packages/" in path
