"""Run as a program in a folder with ``definitions.py`` and ``compiling.py``: compares eager with compiled, and prints JSON lines.

A line holds ``expected`` and ``seen`` as text, and whether they ``agree``. A crash leaves the line of ``expected`` alone.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

Observed = list[tuple[tuple[int, ...], torch.Tensor]]


def agree(expected: Sequence[tuple[tuple[int, ...], torch.Tensor]], seen: Sequence[tuple[tuple[int, ...], torch.Tensor]]) -> bool:
    """Whether types, sizes, strides and values are equal, but for the rounding of sums."""
    return len(expected) == len(seen) and all(
        (a.dtype, a.shape) == (b.dtype, b.shape) and _strides(a, of_a) == _strides(b, of_b) and _values_agree(a, b)
        for (of_a, a), (of_b, b) in zip(expected, seen, strict=True)
    )


def _strides(tensor: torch.Tensor, strides: Sequence[int]) -> list[int]:
    """Strides that matter: those of sizes above 1."""
    return [stride for size, stride in zip(tensor.shape, strides, strict=True) if size > 1]


def _values_agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_floating_point() or a.is_complex():
        return torch.allclose(a.resolve_conj(), b.resolve_conj(), rtol=1e-4, atol=1e-5, equal_nan=True)
    return torch.equal(a, b)


def attempt(observe: Callable[..., Observed], call: Any, make: Any) -> tuple[Observed | None, str]:
    """What a call shows: tensors and their text, or the text of its error."""
    try:
        observed = observe(call, make)
    except Exception as error:
        return None, message(error)
    return observed, str(observed)


def message(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def main() -> None:
    torch.set_printoptions(threshold=12, edgeitems=3)
    definitions: Any = importlib.import_module("definitions")
    makers = [make for make in (definitions.args, getattr(definitions, "other", None)) if make is not None]
    in_eager = [attempt(definitions.observe, definitions.f, make) for make in makers]
    print(json.dumps({"expected": in_eager[0][1]}), flush=True)
    compiled, failed = None, ""
    try:
        compiled = importlib.import_module("compiling").compiled
    except Exception as error:
        failed = message(error)
    for make, (expected, text) in zip(makers, in_eager, strict=True):
        print(json.dumps({"expected": text}), flush=True)
        observed, shown = (None, failed) if failed else attempt(definitions.observe, compiled, make)
        same = text == shown if expected is None or observed is None else agree(expected, observed)
        print(json.dumps({"expected": text, "seen": shown, "agree": same}), flush=True)


if __name__ == "__main__":
    main()
