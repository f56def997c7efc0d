"""Inductor's decompositions, for graphs that it will compile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch._inductor.config as inductor_config
from torch._decomp import decompositions
from torch._inductor.decomposition import select_decomp_table

from ..api.random_operators import RANDOM
from ..tracing.aot_autograd import Decompositions
from ..tracing.eager_kernels import KEPT_WHOLE, kept
from ..tracing.pool_gradients import without_images
from .rules import adapted


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
    with inductor_config.patch(fallback_random=exact_random):
        rules = adapted(select_decomp_table())
    table = {
        op: _asserting(_ASSERTED[op], rule) if op in _ASSERTED else rule
        for op, rule in rules.items()
        if op.__name__.partition(".")[0] not in _POOLS and not (exact_random and _draws_other_numbers(op))
    }
    table |= {**dict.fromkeys(KEPT_WHOLE, kept), **without_images()}
    return table if exact_random else {**table, torch.ops.aten.native_dropout.default: _dropout_by_vectors}


_POOLS = {f"{name}{suffix}" for name in ("max_pool2d_with_indices", "max_pool3d_with_indices") for suffix in ("", "_backward")}
"""Operators whose rules are left out, because the rules make operators of Inductor's own."""


class _Check(NamedTuple):
    """What must hold for each element of an argument, given all arguments."""

    holds: Callable[..., torch.Tensor]
    message: str


def _between_0_and_1(x: torch.Tensor) -> torch.Tensor:
    return (x >= 0) & (x <= 1)


def _inside(_: torch.Tensor, indices: torch.Tensor, sizes: Sequence[Any], *rest: Any) -> torch.Tensor:
    """The rule for ``max_unpool`` writes where its indices say, without a check."""
    limit: Any = math.prod(sizes)
    return torch.logical_and(indices >= 0, indices < limit)


_PROBABILITY = _Check(lambda x, *_: _between_0_and_1(x), "all elements of input should be between 0 and 1")
_TARGET = _Check(lambda _, target, *__: _between_0_and_1(target), "all elements of target should be between 0 and 1")
_DEVIATION = _Check(lambda _, deviation, *__: deviation >= 0, "normal expects all elements of std >= 0.0")
_INDEX = _Check(_inside, "Found an invalid max index")
_ASSERTED = {
    torch.ops.aten.binary_cross_entropy.default: (_PROBABILITY, _TARGET),
    torch.ops.aten.bernoulli.default: (_PROBABILITY,),
    torch.ops.aten.max_unpool2d.default: (_INDEX,),
    torch.ops.aten.max_unpool3d.default: (_INDEX,),
    torch.ops.aten.normal.Tensor_Tensor: (_DEVIATION,),
    torch.ops.aten.normal.float_Tensor: (_DEVIATION,),
}


def _asserting(checks: Sequence[_Check], rule: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that also asserts what eager's kernel checks."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        for check in checks:
            torch.ops.aten._assert_async.msg(check.holds(*args).all(), check.message)
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
