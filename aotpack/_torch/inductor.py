"""Inductor's decompositions, for graphs that it will compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch._inductor.config as inductor_config
from torch._decomp import decompositions
from torch._inductor.decomposition import select_decomp_table

from . import eager_kernels
from .aot_autograd import Decompositions
from .api.random_operators import RANDOM
from .rows import KEPT


def inductor_decompositions(*, exact_random: bool) -> Decompositions:
    """Inductor's decompositions.

    With them the partitioner sees what Inductor can fuse, and saves what Inductor would save.

    ``exact_random`` leaves out decompositions of random operators that draw other numbers than
    eager.

    Decompositions into operators that exist only after Inductor is imported are also left out: a
    stored graph must run without Inductor. Inductor applies these decompositions when it compiles.

    Eager checks values that Inductor's decompositions do not check. They are left out, or get an
    assertion. Others are left out or replaced because their code is slower than eager's kernel.
    """
    own = {f"{name}{suffix}" for name in ("max_pool2d_with_indices", "max_pool3d_with_indices") for suffix in ("", "_backward")}
    with inductor_config.patch(fallback_random=exact_random):
        table = select_decomp_table()
    kept = {
        op: rule
        for op, rule in table.items()
        if op.__name__.partition(".")[0] not in own and op not in KEPT and not (exact_random and _draws_other_numbers(op))
    }
    kept |= {op: _asserting(_ASSERTED[op], rule) for op, rule in kept.items() if op in _ASSERTED}
    kept |= {**dict.fromkeys(eager_kernels.KEPT_WHOLE, eager_kernels.kept), **_OWN}
    return kept if exact_random else {**kept, torch.ops.aten.native_dropout.default: _dropout_by_vectors}


def _eye(
    rows: Any,
    columns: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Any:
    """``eye`` by comparing ``int32``. torch compares ``uint16`` from 256 rows on, for which Inductor has no vectors."""
    if layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    short = all(isinstance(count, int) and count < 2**31 for count in (rows, columns))
    numbers = torch.int32 if short else torch.int64
    row, column = (torch.arange(count, dtype=numbers, device=device) for count in (rows, columns))
    return (row[:, None] == column).to(dtype or torch.get_default_dtype())


def _affine_grid(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:
    """``affine_grid`` as a product of matrices, as in eager. torch's rule multiplies and sums two lanes of a vector."""
    batch, _, *sides = size
    grid = _BASE_GRIDS[len(sides)](theta, *sides, align_corners=align_corners).reshape(-1, len(sides) + 1)
    return torch.bmm(grid.expand(batch, *grid.shape), theta.mT).view(batch, *sides, len(sides))


def _trilinear(
    one: torch.Tensor,
    two: torch.Tensor,
    three: torch.Tensor,
    expand_one: Sequence[int],
    expand_two: Sequence[int],
    expand_three: Sequence[int],
    summed: Sequence[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """``bilinear`` and its gradients as two products of matrices; eager's kernel makes one for each output feature."""
    dims = range(one.dim() + len(expand_one))
    first, second, third = ([dim for dim in dims if dim not in own] for own in (expand_one, expand_two, expand_three))
    result = [dim for dim in dims if dim not in summed]
    pair = [dim for dim in dims if dim in (*first, *second) and dim in (*third, *result)]
    return torch.einsum(torch.einsum(one, first, two, second, pair), pair, three, third, result)


_BASE_GRIDS: Mapping[int, Callable[..., torch.Tensor]] = {
    2: decompositions._make_base_grid_4d,
    3: decompositions._make_base_grid_5d,
}
_OWN: Decompositions = {
    torch.ops.aten.eye.default: lambda rows, **how: _eye(rows, rows, **how),
    torch.ops.aten.eye.m: _eye,
    torch.ops.aten.affine_grid_generator.default: _affine_grid,
    torch.ops.aten._trilinear.default: _trilinear,
}


class _Check(NamedTuple):
    """What must hold for each element of an argument."""

    position: int
    holds: Callable[[torch.Tensor], torch.Tensor]
    message: str


_PROBABILITY = _Check(0, lambda p: (p >= 0) & (p <= 1), "all elements of input should be between 0 and 1")
_DEVIATION = _Check(1, lambda deviation: deviation >= 0, "normal expects all elements of std >= 0.0")
_ASSERTED = {
    torch.ops.aten.binary_cross_entropy.default: _PROBABILITY,
    torch.ops.aten.bernoulli.default: _PROBABILITY,
    torch.ops.aten.normal.Tensor_Tensor: _DEVIATION,
    torch.ops.aten.normal.float_Tensor: _DEVIATION,
}


def _asserting(check: _Check, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that also asserts what eager's kernel checks."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        torch.ops.aten._assert_async.msg(check.holds(args[check.position]).all(), check.message)
        return rule(*args, **kwargs)

    return decomposed


def _dropout_by_vectors(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout whose mask eager's kernel draws, many numbers at a time; the rest can be fused.

    Inductor's decomposition compares uniform numbers, which torch's generator draws one by one.
    """
    if not train or p in (0, 1) or not x.dtype.is_floating_point:
        result, mask = decompositions.native_dropout(x, p, train)
        return result, mask
    mask = torch.ops.aten.bernoulli.p(torch.empty_like(x, dtype=torch.bool), 1 - p)
    return x * mask * (1 / (1 - p)), mask


def _draws_other_numbers(op: Any) -> bool:
    """Whether Inductor's decomposition of ``op`` draws other numbers than eager; composite
    operators draw the same ones.
    """
    return RANDOM in getattr(op, "tags", ()) and not torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), "CompositeImplicitAutograd"
    )
