"""Watching a model run as Python: does it ask which tensors are the same, does it change values that it has read?

For the front ends that run the model's Python instead of reading it: what they see is one run, and these are the two ways
in which another call could go another way without the graphs noticing.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

_LIBRARIES = (f"{Path(torch.__file__).parent}/", f"{Path(__file__).parent}/")
_PYTHON = f"{sysconfig.get_path('stdlib')}/"
_PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, frozenset)


@dataclass
class Watched:
    """``compares``: code that ran holds ``a is b`` or ``id(a)``. ``changed``: attributes that were read, then changed."""

    compares: bool = False
    changed: set[str] = field(default_factory=set)


@contextlib.contextmanager
def watched(model: torch.nn.Module) -> Iterator[Watched]:
    """Watch the model while the block runs it; attributes of its modules are afterwards what they were."""
    seen, codes = Watched(), set[CodeType]()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    before = sys.getprofile()
    with _watched_attributes(model, seen):
        sys.setprofile(profile)
        try:
            yield seen
        finally:
            sys.setprofile(before)
    seen.compares = any(_compares(code) for code in codes if not _is_library(code.co_filename))


@contextlib.contextmanager
def _watched_attributes(model: torch.nn.Module, seen: Watched) -> Iterator[None]:
    names = {id(module): name for name, module in model.named_modules()}
    originals = [(module, dict(module.__dict__)) for module in model.modules()]
    read: set[tuple[int, str]] = set()
    written: set[tuple[int, str]] = set()
    set_attribute = torch.nn.Module.__setattr__

    def reading(module: torch.nn.Module, name: str) -> Any:
        key = id(module), name
        if key not in written:
            read.add(key)
        return object.__getattribute__(module, name)

    def writing(module: torch.nn.Module, name: str, value: Any) -> None:
        key = id(module), name
        old = module.__dict__.get(name, value)
        set_attribute(module, name, value)
        if key in read and key[0] in names and isinstance(value, _PLAIN) and isinstance(old, _PLAIN) and value != old:
            seen.changed.add(f"{names[key[0]]}.{name}".removeprefix("."))
        written.add(key)

    torch.nn.Module.__getattribute__ = reading  # type: ignore[method-assign, assignment]
    torch.nn.Module.__setattr__ = writing  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del torch.nn.Module.__getattribute__
        torch.nn.Module.__setattr__ = set_attribute  # type: ignore[method-assign]
        for module, attributes in originals:
            plain = {name: value for name, value in attributes.items() if isinstance(value, _PLAIN)}
            module.__dict__.update(plain)


def _is_library(path: str) -> bool:
    """Code of torch, of Python and of aotpack; other installed packages may hold the user's model."""
    return path.startswith(("<", *_LIBRARIES)) or (path.startswith(_PYTHON) and "/site-packages/" not in path)


def _compares(code: CodeType) -> bool:
    """Whether ``code`` holds an ``is`` between values that may be tensors; constants and globals are none."""
    instructions = [item for item in dis.get_instructions(code) if item.opname != "CACHE"]
    for i, item in enumerate(instructions):
        if item.opname == "LOAD_GLOBAL" and item.argval == "id":
            return True
        if item.opname == "IS_OP":
            names = [before.opname for before in instructions[max(i - 2, 0) : i]][::-1]
            attribute_of_global = names[:2] == ["LOAD_ATTR", "LOAD_GLOBAL"]
            if names[:1] not in (["LOAD_CONST"], ["LOAD_GLOBAL"]) and not attribute_of_global:
                return True
    return False
