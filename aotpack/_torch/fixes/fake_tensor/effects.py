"""Keeps operators that only raise errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch._higher_order_ops import effects

from ..applying import reached

_CHECK = "aten::_linalg_check_errors"


@contextlib.contextmanager
def keep_errors_of_linalg() -> Iterator[None]:
    """Register the check of ``torch.linalg`` as an operator with an effect, as torch does from 2.13 on.

    It has no result, so a trace leaves it out otherwise. ``cholesky`` of a matrix that is not
    positive-definite then returns numbers without a meaning, where eager raises an error.
    """
    register: Any = effects._register_effectful_op
    handle = register(_CHECK, effects.EffectType.ORDERED)  # type: ignore[attr-defined]
    reached("fake-errors-of-linalg")
    try:
        yield
    finally:
        handle.destroy()
