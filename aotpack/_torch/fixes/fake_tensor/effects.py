"""Keeps operators that only raise errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._higher_order_ops import effects

from ..applying import count_call

_CHECK = torch.ops.aten._linalg_check_errors.default


@contextlib.contextmanager
def keep_errors_of_linalg() -> Iterator[None]:
    """Register the check of ``torch.linalg`` as an operator with an effect, as torch does from 2.13 on.

    It has no result, so a trace leaves it out otherwise. ``cholesky`` of a matrix that is not
    positive-definite then returns numbers without a meaning, where eager raises an error.
    """
    registered: Any = effects._register_effectful_op(_CHECK, effects._EffectType.ORDERED)
    count_call("fake-errors-of-linalg")
    try:
        yield
    finally:
        registered.destroy()
