"""The autocast that a method is traced under: its graphs then hold the casts, and only calls under the same one may take it."""

from __future__ import annotations

import contextlib

import torch

from aotpack_loader.format import schema

from ..graph.literals import dtype_name


def current_autocast() -> schema.DType | None:
    """The element type of the caller's autocast on the CPU; null: it is off."""
    return dtype_name(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else None


def under_autocast(dtype: schema.DType | None) -> contextlib.AbstractContextManager[object]:
    """Turn autocast to ``dtype`` on, or off, unless it is so already."""
    if dtype == current_autocast():
        return contextlib.nullcontext()
    if dtype is None:
        return torch.autocast("cpu", enabled=False)
    return torch.autocast("cpu", dtype=getattr(torch, dtype))
