"""Rule C18: bases of arguments that share memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import Problem
from . import schema


def problems(
    base: schema.SyntheticBasePrimal | schema.ViewBasePrimal, leaves: Sequence[schema.InputLeaf], at: str
) -> Iterator[Problem]:
    """C18: each member is a tensor argument of known sizes and strides, stored inside the base."""
    if isinstance(base, schema.ViewBasePrimal):
        size = _extent([*base.shape], [*base.stride])
    else:
        size = base.size
    if len(base.members) < 2 or len({member.leaf for member in base.members}) < len(base.members):
        yield Problem(at, "C18: a base has two members or more, each once")
    if isinstance(base, schema.ViewBasePrimal) and all(member.detached for member in base.members):
        yield Problem(at, "C18: no member is a view of the base")
    for member in base.members:
        leaf = leaves[member.leaf] if member.leaf < len(leaves) else None
        if not isinstance(leaf, schema.TensorLeaf) or leaf.stride is None or leaf.dtype != base.dtype:
            yield Problem(at, f"C18: leaf {member.leaf} is not a strided tensor argument of the base's type")
        elif not all(isinstance(n, int) for n in (*leaf.shape, *leaf.stride)):
            yield Problem(at, f"C18: the sizes or strides of leaf {member.leaf} vary")
        elif member.offset + _extent(leaf.shape, leaf.stride) > size:
            yield Problem(at, f"C18: leaf {member.leaf} reaches beyond the base")


def _extent(shape: Sequence[schema.Dim], stride: Sequence[schema.Dim]) -> int:
    """Number of elements from the first to the last, inclusive; 0 if there are none."""
    pairs = [(int(size), int(step)) for size, step in zip(shape, stride, strict=False)]
    return 0 if any(size == 0 for size, _ in pairs) else 1 + sum((size - 1) * step for size, step in pairs)
