"""Resolves the dotted names that fixes patch, and hashes their sources to detect changes in torch.

``sources.json`` holds the hashes of each minor release (``scripts/torch-fixes record``). Null: the
release lacks the name.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import json
import linecache
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

RECORD = Path(__file__).with_name("sources.json")

Recorded = Mapping[str, Mapping[str, str | None]]
"""Maps a dotted name to hashes by minor release."""


@functools.cache
def recorded() -> Recorded:
    """The recorded hashes."""
    found: Recorded = json.loads(RECORD.read_text())
    return found


@functools.cache
def fingerprint(name: str) -> str | None:
    """A hash of the object that a dotted name denotes in this torch; null if there is no such name.

    ``table[aten.add.Tensor]`` is an entry of a table. Functions are hashed by their source,
    operators by their schema, and everything else by type.
    """
    try:
        return _hashed(resolve(name))
    except LookupError:
        return None


def resolve(name: str) -> Any:
    """The object that a dotted name denotes.

    Raises:
        LookupError: there is no such name.
    """
    dotted, _, key = name.partition("[")
    parts = dotted.split(".")
    value: Any = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 1):
        if inspect.isclass(value):
            value = _attribute(inspect.getattr_static, value, part, name)
            continue
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(parts[: i + 1]))
            except ImportError as error:
                raise LookupError(name) from error
        if i + 1 < len(parts):  # a package may have a function with the name of a module
            value = sys.modules.get(".".join(parts[: i + 1]), value)
    if key:
        operator = resolve(f"torch.ops.{key.removesuffix(']')}")
        if operator not in value:
            raise LookupError(name)
        value = value[operator]
    return value


def _attribute(get: Any, owner: Any, part: str, name: str) -> Any:
    try:
        return get(owner, part)
    except AttributeError as error:
        raise LookupError(name) from error


def _hashed(value: Any) -> str:
    """The first sixteen digits of a hash."""
    for holder in ("__func__", "fget", "func"):  # static and class methods, properties, cached properties, partial functions
        if isinstance(value, (staticmethod, classmethod, property, functools.cached_property, functools.partial)):
            value = getattr(value, holder, value)
    value = inspect.unwrap(value) if callable(value) else value
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        text = _source(code)
    elif hasattr(value, "_schema"):
        text = str(value._schema)
    else:
        text = re.sub(r" at 0x[0-9a-f]+", "", type(value).__qualname__)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _source(code: CodeType) -> str:
    """A function's source, delimited by indentation; ``inspect.getsource`` takes twenty times as
    long.
    """
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    base = _indent(lines[0])
    header = next((i for i, line in enumerate(lines) if line.lstrip().startswith(("def ", "async def "))), 0)
    body = next((i for i in range(header, len(lines)) if lines[i].partition("#")[0].rstrip().endswith(":")), header) + 1
    end = next((i for i in range(body, len(lines)) if lines[i].strip() and _indent(lines[i]) <= base), len(lines))
    return "".join(lines[:end]).rstrip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
