"""``as_strided`` views of results on XLA devices, of which torch_xla takes some wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import structs

from ..format import schema

_AS_STRIDED = "aten.as_strided.default"


def unsupported_view(steps: Sequence[schema.ViewStep], *, of_argument: bool = False) -> str:
    """What ``as_strided`` among these steps reads that torch_xla's does not, or an empty string.

    From a row of elements, torch_xla takes and writes elements at even steps, and blocks without gaps.
    """
    if all(step.op != _AS_STRIDED for step in steps):
        return ""
    if of_argument:
        return "an as_strided view of an argument, with an offset from the start of its storage"
    if any(step.op == _AS_STRIDED for step in steps[1:]):
        return "an as_strided view of a view"
    sizes, strides = steps[0].args[:2]
    return "" if _is_row_or_block(sizes, strides) else "an as_strided view with gaps or overlaps"


def _is_row_or_block(sizes: Any, strides: Any) -> bool:
    if len(sizes) < 2:
        return 0 not in strides
    if not all(isinstance(number, int) for number in [*sizes, *strides]):
        return False
    length = 1
    for stride, size in sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size != 1):
        if stride != length:
            return False
        length *= size
    return True


def alias_of_elements(result: schema.AliasResult) -> schema.AliasResult:
    """As :func:`of_elements`."""
    view, shared = of_elements(result.view), result.shared
    if shared is not None and shared.steps:  # the earlier alias has one step more, too
        shared = structs.replace(shared, steps=shared.steps + len(view) - len(result.view))
    return structs.replace(result, view=view, shared=shared)


def of_elements(steps: list[schema.ViewStep]) -> list[schema.ViewStep]:
    """The same view. ``as_strided`` is taken of the elements in one row: of other tensors, torch_xla's
    reads other elements.
    """
    if not steps or steps[0].op != _AS_STRIDED:
        return steps
    return [schema.ViewStep("aten.view.default", [[-1]]), *steps]
