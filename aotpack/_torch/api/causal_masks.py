"""Traces ``nn.TransformerEncoder`` and ``nn.TransformerDecoder`` with masks whose values are not known.

They compare a mask with a causal one, and branch on the result. It is a hint: with it, attention makes
the same mask itself. So masks of unknown values are no causal ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import transformer
from torch.overrides import _get_current_function_mode_stack

from .constants import KnownConstants
from .patching import replaced


@contextlib.contextmanager
def unknown_masks_kept() -> Iterator[None]:
    """Compare only masks that are made of Python numbers, as :class:`.KnownConstants` knows them."""
    original = transformer._detect_is_causal_mask

    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        # Dynamo knows no values at all, so it leaves the comparison to the other front ends. A gradient of
        # the mask depends on the hint.
        if is_causal is None and mask is not None and not mask.requires_grad and not torch.compiler.is_dynamo_compiling():
            modes = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, KnownConstants)]
            if not any(mode.knows(mask) for mode in modes) or not all(isinstance(length, int) for length in mask.shape):
                return False
        return original(mask, is_causal, size)

    with replaced("fake-causal-masks", transformer, "_detect_is_causal_mask", detect):
        yield
