"""Sets the autocast under which a method is traced.

The graphs then contain the casts. So only calls under the same autocast may use the method.
"""

from __future__ import annotations

import contextlib

import torch

from aotpack_loader.format import schema

from ..graph.literals import dtype_name


def current_autocast() -> schema.DType | None:
    """Return the element type of the caller's autocast on the CPU, or None if it is off."""
    return dtype_name(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else None


def under_autocast(dtype: schema.DType | None) -> contextlib.AbstractContextManager[object]:
    """Turn autocast to ``dtype`` on inside the block, or off for None.

    Does nothing if it is already so.
    """
    if dtype == current_autocast():
        return contextlib.nullcontext()
    if dtype is None:
        return torch.autocast("cpu", enabled=False)
    return torch.autocast("cpu", dtype=getattr(torch, dtype))
