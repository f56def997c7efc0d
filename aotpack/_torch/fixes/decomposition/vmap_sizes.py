"""Rules of ``vmap`` for operators whose rules in torch fix the size of the batch.

Torch's rules of these operators compute with plain integers. A size that varies becomes that of the
example.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch._decomp import decomposition_table

from ...api.dispatch_rules import batched
from ..applying import counted
from .vmap_images import IMAGES

_ID = "decomposition-vmap-of-varying-batches"
_aten = torch.ops.aten
_functorch = torch._C._functorch


def keep_batches_of_vmap() -> contextlib.AbstractContextManager[None]:
    """Trace these operators inside ``vmap`` without fixing its batch."""
    rules = {operator: _with_batch_first(rule) for operator, rule in _BATCHED.items()}
    rules |= {operator: decomposition_table[operator] for operator in _DECOMPOSED}
    return batched({operator: counted(_ID, rule) for operator, rule in rules.items()})


def _with_batch_first(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that gets its tensors unwrapped, each with the batch as its first dimension.

    ``rule(shared, *args)``: tensors at the positions ``shared`` have no batch of their own, and were expanded. All
    results have a batch.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        level: Any = _functorch.maybe_current_level()
        found = [_functorch._unwrap_batched(arg, level) if isinstance(arg, Tensor) else None for arg in args]
        batch = next(value.shape[dim] for value, dim in filter(None, found) if dim is not None)
        shared = {i for i, item in enumerate(found) if item is not None and item[1] is None}

        def first(arg: Any, item: Any) -> Any:
            if item is None:
                return arg
            value, dim = item
            return value.expand(batch, *value.shape) if dim is None else value.movedim(dim, 0)

        with torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(DispatchKey.FuncTorchBatched)):
            results = rule(shared, *map(first, args, found), **kwargs)

        def wrapped(result: Any) -> Any:
            return _functorch._add_batch_dim(result, 0, level) if isinstance(result, Tensor) else result

        return wrapped(results) if isinstance(results, Tensor) else tuple(map(wrapped, results))

    return call


def _along(operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``operator(x, dim, index, …)`` with tensors of one number of dimensions: the same, one dimension further."""

    def rule(shared: object, x: Tensor, dim: int, *rest: Any, **how: Any) -> Tensor:
        like = rest[0] if operator is _aten.gather.default else x
        single = like.dim() == 1
        x, *given = (value.unsqueeze(-1) if isinstance(value, Tensor) and value.dim() == 1 else value for value in (x, *rest))
        found = operator(x, _further(dim, x), *given, **how)
        return found.squeeze(-1) if single else found

    return rule


def _over(operator: Callable[..., Any]) -> Callable[..., Any]:
    """``operator(x, dim, …)`` whose results have as many dimensions as ``x``, or one less."""

    def rule(shared: object, x: Tensor, dim: int, *rest: Any, **how: Any) -> Any:
        if x.dim() > 1:
            return operator(x, _further(dim, x), *rest, **how)
        found = operator(x.unsqueeze(-1), 1, *rest, **how)
        return found.reshape(x.shape) if isinstance(found, Tensor) else tuple(value.reshape(x.shape) for value in found)

    return rule


def _into(operator: Callable[..., Tensor], first: int, count: int) -> Callable[..., Tensor]:
    """The gradient of a view: ``operator(gradient, sizes, …)``, whose arguments from ``first`` on are ``count`` dimensions."""

    def rule(shared: object, gradient: Tensor, sizes: Sequence[Any], *rest: Any) -> Tensor:
        dims = [dim % len(sizes) + 1 for dim in rest[first : first + count]]
        return operator(gradient, [gradient.shape[0], *sizes], *rest[:first], *dims, *rest[first + count :])

    return rule


def _further(dim: int, x: Tensor) -> int:
    """A dimension of the tensor without its batch, as one of the tensor with it."""
    return dim % (x.dim() - 1) + 1


def _by_row(index: Tensor, dim: int, like: Tensor) -> Tensor:
    """``[batch, rows]`` of indices along ``dim``, for each element of ``like``."""
    shape = [1] * like.dim()
    shape[0], shape[dim] = index.shape
    return index.reshape(shape).expand(like.shape)


def _index_add(shared: object, x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    single = x.dim() == 1
    x, index, source = (value.unsqueeze(-1) if value.dim() == 1 else value for value in (x, index, source))
    dim = _further(dim, x)
    found = x.scatter_add(dim, _by_row(index, dim, source), source if alpha == 1 else source * alpha)
    return found.squeeze(-1) if single else found


def _layer_norm(
    shared: set[int], x: Tensor, shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows, mean, scale = _aten.native_layer_norm(x, shape, None, None, eps)
    for operator, value in ((torch.mul, weight), (torch.add, bias)):
        if value is not None:
            rows = operator(rows, _beside_rows(value, rows))
    return rows, mean, scale


def _beside_rows(value: Tensor, rows: Tensor) -> Tensor:
    """``[batch, …]`` with as many dimensions as ``rows``, the further ones after the batch."""
    return value.reshape(value.shape[0], *[1] * (rows.dim() - value.dim()), *value.shape[1:])


def _layer_norm_backward(
    shared: set[int], gradient: Tensor, x: Tensor, shape: Sequence[Any], *rest: Any
) -> tuple[Tensor | None, ...]:
    mean, scale, weight, _, mask = rest
    through = gradient if weight is None else gradient * _beside_rows(weight, gradient)
    of_x = _aten.native_layer_norm_backward(through, x, shape, mean, scale, None, None, [True, False, False])[0]
    outer = list(range(1, x.dim() - len(shape)))

    def summed(value: Tensor) -> Tensor:
        return value.sum(outer) if outer else value

    of_weight = summed(gradient * (x - mean) * scale) if mask[1] else None
    return of_x if mask[0] else None, of_weight, summed(gradient) if mask[2] else None


def _group_norm(shared: set[int], x: Tensor, weight: Tensor | None, bias: Tensor | None, *how: Any) -> tuple[Tensor, ...]:
    n, c, hw, groups, eps = how
    batch = x.shape[0]
    rows, mean, scale = _aten.native_group_norm(x.flatten(0, 1), None, None, batch * n, c, hw, groups, eps)
    rows, mean, scale = (value.unflatten(0, (batch, n)) for value in (rows, mean, scale))
    for operator, value in ((torch.mul, weight), (torch.add, bias)):
        if value is not None:
            rows = operator(rows, value.reshape(batch, 1, c, *[1] * (x.dim() - 3)))
    return rows, mean, scale


def _convolution(shared: set[int], x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Any:
    *window, groups = how
    batch, count = x.shape[:2]
    if 1 in shared and (bias is None or 2 in shared):  # one kernel: the batch is more images
        own = (weight[0], None if bias is None else bias[0])
        return _aten.convolution(x.flatten(0, 1), *own, *window, groups).unflatten(0, (batch, count))
    kernels = (weight.flatten(0, 1), None if bias is None else bias.flatten(0, 1))
    return _from_channels(_aten.convolution(_as_channels(x), *kernels, *window, batch * groups), batch)


def _as_channels(x: Tensor) -> Tensor:
    return x.transpose(0, 1).flatten(1, 2)


def _from_channels(x: Tensor, batch: Any) -> Any:
    return x.unflatten(1, (batch, x.shape[1] // batch)).transpose(0, 1)


def _convolution_backward(
    shared: set[int], gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, *how: Any
) -> tuple[Tensor | None, ...]:
    *window, groups, mask = how
    batch, count = weight.shape[:2]
    sizes = None if bias_sizes is None else [batch * bias_sizes[0]]
    given = (_as_channels(gradient), _as_channels(x), weight.flatten(0, 1), sizes)
    of_x, of_weight, of_bias = _aten.convolution_backward(*given, *window, batch * groups, mask)
    return (
        _from_channels(of_x, batch) if mask[0] else None,
        of_weight.unflatten(0, (batch, count)) if mask[1] else None,
        of_bias.unflatten(0, (batch, bias_sizes[0])) if mask[2] else None,
    )


def _solve(shared: set[int], matrix: Tensor, right: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    one, other = matrix.dim() - 1, right.dim() - 1
    if other == 1 or (one - 1 == other and matrix.shape[1:-1] == right.shape[1:]):  # vectors, as eager's kernel sees them
        right = _beside_rows(right, matrix[..., 0]).expand(matrix.shape[:-1])
    else:
        matrix, right = _beside_rows(matrix, right), _beside_rows(right, matrix)
    return _aten._linalg_solve_ex(matrix, right, left=left, check_errors=check_errors)


def _aligned(operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator of two tensors that are broadcast, element by element."""

    def rule(shared: object, one: Tensor, other: Tensor) -> Tensor:
        return operator(_beside_rows(one, other), _beside_rows(other, one))

    return rule


def _cross(shared: object, one: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    found: Tensor = torch.linalg.cross(one, other, dim=dim if dim < 0 else dim + 1)
    return found


def _kl_div(shared: object, x: Tensor, target: Tensor, reduction: int = 1, *, log_target: bool = False) -> Tensor:
    x, target = _beside_rows(x, target), _beside_rows(target, x)
    loss = target.exp() * (target - x) if log_target else torch.xlogy(target, target) - target * x
    if reduction == 0 or loss.dim() == 1:
        return loss
    return loss.flatten(1).mean(1) if reduction == 1 else loss.flatten(1).sum(1)


def _bilinear(shared: object, one: Tensor, other: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found = torch.einsum("b...i,boij,b...j->b...o", one, weight, other)
    return found if bias is None else found + _beside_rows(bias, found)


_BATCHED: dict[Any, Callable[..., Any]] = {
    **{
        operator: _along(operator)
        for operator in (
            _aten.gather.default,
            _aten.scatter.src,
            _aten.scatter.value,
            _aten.scatter_add.default,
            _aten.scatter_reduce.two,
        )
    },
    **{
        operator: _over(operator)
        for operator in (_aten.cummax.default, _aten.cummin.default, _aten.cumprod.default, _aten.max.dim, _aten.min.dim)
    },
    _aten.slice_backward.default: _into(_aten.slice_backward.default, 0, 1),
    _aten.select_backward.default: _into(_aten.select_backward.default, 0, 1),
    _aten.diagonal_backward.default: _into(_aten.diagonal_backward.default, 1, 2),
    _aten.index_add.default: _index_add,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
    _aten.native_group_norm.default: _group_norm,
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten._linalg_solve_ex.default: _solve,
    _aten.bilinear.default: _bilinear,
    _aten.kl_div.default: _kl_div,
    _aten.linalg_cross.default: _cross,
    _aten.xlogy.Tensor: _aligned(_aten.xlogy.Tensor),
    **IMAGES,
}
_DECOMPOSED = (
    _aten.nll_loss_forward.default,
    _aten.nll_loss_backward.default,
    _aten.nll_loss2d_forward.default,
    _aten.nll_loss2d_backward.default,
    _aten.native_group_norm_backward.default,
    _aten.embedding_dense_backward.default,
)
