"""The format's higher-order operators, in plain Python over executable subgraphs (spec/control-flow.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ..errors import AotpackError

Subgraph = Callable[[list[Any]], list[Any]]
"""Takes the subgraph's inputs (the list is emptied), returns its outputs."""


def _cond(predicate: Any, if_true: Subgraph, if_false: Subgraph, operands: Sequence[Any]) -> list[Any]:
    """The results of one branch. The other branch does not run."""
    return (if_true if predicate else if_false)([*operands])


def _while_loop(condition: Subgraph, body: Subgraph, carried: Sequence[Any], additional: Sequence[Any]) -> list[Any]:
    """The carried values after the last iteration."""
    values = [*carried]
    if not condition([*values, *additional])[0]:
        return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
    while True:
        values = body([*values, *additional])
        if not condition([*values, *additional])[0]:
            return values


def _while_loop_stack_output(
    condition: Subgraph, body: Subgraph, carried: Sequence[Any], additional: Sequence[Any]
) -> list[torch.Tensor]:
    """The carried values after each iteration, stacked. Without an iteration, the initial values are the only row."""
    values, turns = [*carried], []
    while condition([*values, *additional])[0]:
        values = body([*values, *additional])
        turns.append(values)
    return [torch.stack(rows) for rows in zip(*(turns or [values]), strict=True)]


def _scan(combine: Subgraph, initial: Sequence[Any], xs: Sequence[torch.Tensor], additional: Sequence[Any]) -> list[Any]:
    """The carry after the last row, and the other results of each row, stacked."""
    carry, rows = [*initial], []
    for row in _rows("scan", xs):
        results = combine([*carry, *row, *additional])
        carry = results[: len(initial)]
        rows.append(results[len(initial) :])
    return [*carry, *_stacked(rows)]


def _map(body: Subgraph, xs: Sequence[torch.Tensor], additional: Sequence[Any]) -> list[Any]:
    """The results of each row, stacked."""
    return _stacked([body([*row, *additional]) for row in _rows("map", xs)])


def _rows(name: str, xs: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
    rows = list(zip(*(x.unbind() for x in xs), strict=True))
    if not rows:
        raise AotpackError(f"The model calls {name} over a dimension of size 0, which torch refuses as well.")
    return rows


def _stacked(rows: Sequence[Sequence[Any]]) -> list[Any]:
    """The stacked columns of ``rows``. A column of None stays None."""
    return [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]


def _invoke_subgraph(subgraph: Subgraph, _identifier: str | None, *operands: Any) -> list[Any]:
    return subgraph([*operands])


def _flex_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Subgraph,
    block_mask: Sequence[Any],
    scale: float,
    _options: Sequence[Any] = (),
    score_buffers: Sequence[Any] = (),
    mask_buffers: Sequence[Any] = (),
) -> list[torch.Tensor]:
    """Output, logarithm (to base 2) of the sums, largest scores (times log2 e). Fully masked rows give zeros."""
    groups = query.size(1) // key.size(1)
    key, value = (x.repeat_interleave(groups, 1).expand(query.size(0), -1, -1, -1) for x in (key, value))
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(working) @ key.to(working).transpose(-2, -1)) * scale
    positions = [torch.arange(size, device=query.device) for size in scores.shape]
    modified = _over_positions(score_mod, 1, len(score_buffers))(scores, *positions, *score_buffers)
    visible = _over_positions(block_mask[-1], 0, len(mask_buffers))(*positions, *mask_buffers)
    scores = torch.where(visible, modified, torch.tensor(-math.inf, dtype=working, device=query.device))
    log_sums = torch.where((scores == -math.inf).all(-1), -math.inf, scores.logsumexp(-1))
    out = torch._safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
    return [_with_layout_of(out, query), log_sums / math.log(2), scores.amax(-1) / math.log(2)]


def _over_positions(subgraph: Subgraph, leading: int, buffers: int) -> Callable[..., torch.Tensor]:
    """A subgraph vectorised over all positions.

    It takes ``leading`` scores (one or none), four positions and buffers.
    """

    def run(*operands: Any) -> Any:
        return subgraph([*operands])[0]

    for dimension in (3, 2, 1, 0):
        at = tuple(0 if i == dimension else None for i in range(4))
        run = torch.vmap(run, in_dims=(0,) * leading + at + (None,) * buffers)
    return run


def _with_layout_of(out: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """``out`` with the memory order of ``query``'s dimensions, except that the last dimension has stride 1."""
    innermost_first = sorted(range(4), key=lambda dimension: (query.stride(dimension), -dimension))
    strides = _dense_strides(out.shape, innermost_first)
    if strides[-1] != 1:
        strides = _dense_strides(out.shape, [3, *(dimension for dimension in innermost_first if dimension != 3)])
    return torch.empty_strided(out.shape, strides, dtype=out.dtype, device=out.device).copy_(out)


def _dense_strides(sizes: Sequence[int], innermost_first: Sequence[int]) -> list[int]:
    strides, step = [0] * len(sizes), 1
    for dimension in innermost_first:
        strides[dimension] = step
        step *= sizes[dimension]
    return strides


OPERATORS: Final[dict[str, Callable[..., list[Any]]]] = {
    "higher_order.cond": _cond,
    "higher_order.while_loop": _while_loop,
    "higher_order.while_loop_stack_output": _while_loop_stack_output,
    "higher_order.scan": _scan,
    "higher_order.map_impl": _map,
    "higher_order.invoke_subgraph": _invoke_subgraph,
    "higher_order.flex_attention": _flex_attention,
}
"""By the names that graphs use. Rule G7 has checked the arity of what they are given."""
