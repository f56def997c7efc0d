"""Converts constant Python values to arguments in the format."""

from __future__ import annotations

import math
from typing import Any, get_args

import torch

from aotpack_loader.format import schema

NOT_A_LITERAL = object()


def dtype_name(dtype: torch.dtype) -> schema.DType:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")  # type: ignore[return-value]


def is_held(dtype: torch.dtype) -> bool:
    """Whether the format has this element type. It has no quantized ones."""
    return dtype_name(dtype) in get_args(schema.DType)


def literal_argument(arg: Any) -> Any:
    """A Python value as an argument of the format, or ``NOT_A_LITERAL``."""
    if arg is None or isinstance(arg, (bool, int, str)):
        return arg
    if isinstance(arg, float):
        return schema.FloatArg(float_literal(arg))
    if isinstance(arg, complex):
        return schema.ComplexArg(float_literal(arg.real), float_literal(arg.imag))
    if isinstance(arg, torch.dtype):
        return schema.DTypeArg(dtype_name(arg)) if is_held(arg) else NOT_A_LITERAL
    if isinstance(arg, torch.device):
        return schema.DeviceArg(arg.type)
    if isinstance(arg, torch.memory_format):
        return schema.MemoryFormatArg(str(arg).removeprefix("torch."))  # type: ignore[arg-type]
    if isinstance(arg, torch.layout) and arg is torch.strided:
        return schema.LayoutArg("strided")
    return NOT_A_LITERAL


def float_literal(value: float) -> Any:
    """JSON has no infinities and no NaN, so they are written as strings."""
    return value if math.isfinite(value) else "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
