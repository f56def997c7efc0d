"""Converts literal arguments and values in documents to Python's and torch's own.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import CorruptBundleError
from ..format import schema


def literal(arg: Any, device: torch.device | None = None) -> Any:
    """The Python value of a literal argument. ``device`` replaces the device a graph was traced for."""
    if isinstance(arg, schema.FloatArg):
        return float(arg.value)
    if isinstance(arg, schema.ComplexArg):
        return complex(float(arg.real), float(arg.imag))
    if isinstance(arg, (schema.DTypeArg, schema.LayoutArg, schema.MemoryFormatArg)):
        return getattr(torch, arg.value)
    if isinstance(arg, schema.DeviceArg):
        return _device(arg.value) if device is None else device
    return arg


def _device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise CorruptBundleError(f"{name!r} is not a device.") from error


def literals(arg: Any) -> Any:
    """The Python value of literal arguments in lists and dictionaries."""
    if isinstance(arg, list):
        return [literals(item) for item in arg]
    return {key: literals(item) for key, item in arg.items()} if isinstance(arg, dict) else literal(arg)


def plain_data(data: schema.Data) -> Any:
    """The Python value of plain data."""
    if isinstance(data, schema.DataMapping):
        return dict(zip(data.keys, map(plain_data, data.items), strict=True))
    if isinstance(data, schema.DataSequence):
        items = map(plain_data, data.items)
        return list(items) if data.kind == "list" else torch.Size(items) if data.kind == "size" else tuple(items)
    return literal(data)
