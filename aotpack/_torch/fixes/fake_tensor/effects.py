"""Keeps operators that only raise errors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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
    take_back = _registered()
    count_call("fake-errors-of-linalg")
    try:
        yield
    finally:
        take_back()


def _registered() -> Callable[[], None]:
    """Register the check, and return what takes that back; torch 2.9 has a table of operators."""
    register: Any = effects
    handle = register._register_effectful_op(_CHECK, register._EffectType.ORDERED)
    return handle.destroy if handle is not None else lambda: register._deregister_effectful_op(_CHECK)
