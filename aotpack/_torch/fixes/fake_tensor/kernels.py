"""Fake kernels for operators that torch has none for, or whose sizes need guards.

Without them torch cannot trace these operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import _constrain_range_for_size, statically_known_true

from ...api.patching import with_items
from ..applying import counted
from ..symbolic_shapes.zero_sizes import exclude_zero

_aten = torch.ops.aten
_Tensors = tuple[torch.Tensor, torch.Tensor]


def _unknown(mode: FakeTensorMode, func: Any) -> torch.SymInt:
    """A size that depends on data."""
    if mode.shape_env is None or not mode.shape_env.allow_dynamic_output_shape_ops:
        raise DynamicOutputShapeException(func)
    size = mode.shape_env.create_unbacked_symint()
    _constrain_range_for_size(size)
    return size


def _ctc_loss(mode: FakeTensorMode, func: Any, x: torch.Tensor, targets: Any, sizes: Any, lengths: Any, *rest: Any) -> _Tensors:
    """A loss for each sequence in the batch; per step, the probabilities of all positions of the
    longest target.
    """
    steps, batch, _ = x.shape
    states = _unknown(mode, func) if isinstance(lengths, torch.Tensor) else 2 * max(lengths, default=0) + 1
    return x.new_empty(batch), x.new_empty(batch, steps, states)


def _ctc_loss_backward(mode: FakeTensorMode, func: Any, gradient: torch.Tensor, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _geqrf(mode: FakeTensorMode, func: Any, x: torch.Tensor) -> _Tensors:
    *batch, rows, columns = x.shape
    return x.new_empty(*batch, columns, rows).mT, x.new_empty(*batch, min(rows, columns))


def _lstsq(
    mode: FakeTensorMode, func: Any, x: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[torch.Tensor, ...]:
    """The solution, in the memory of LAPACK's result; residuals, ranks and singular values, as far
    as the driver computes them.

    ``gelsd`` and ``gelss`` return no residuals for a matrix without full rank.
    """
    *batch, rows, columns = x.shape
    several = b.dim() == x.dim()
    sides = b.shape[-1] if several else 1
    solution = x.new_empty(*batch, sides, torch.sym_max(rows, columns)).mT[..., :columns, :]
    residuals, ranks, values = x.new_empty(0), x.new_empty(0, dtype=torch.int64), x.new_empty(0, dtype=x.dtype.to_real())
    if driver in ("gelsd", "gelss"):
        values = values.new_empty(*batch, torch.sym_min(rows, columns))
    if driver != "gels":
        ranks = ranks.new_empty(batch)
    if driver == "gels" and rows > columns:
        residuals = x.new_empty(*batch, sides)
    elif driver in ("gelsd", "gelss") and rows > columns:
        if batch:
            raise DynamicOutputShapeException(func)
        residuals = x.new_empty(_unknown(mode, func))
    return (solution if several else solution.squeeze(-1)), residuals, ranks, values


def _histogram(mode: FakeTensorMode, func: Any, x: torch.Tensor, bins: int | torch.Tensor = 100, **options: Any) -> _Tensors:
    count = bins.shape[0] - 1 if isinstance(bins, torch.Tensor) else bins
    return x.new_empty(count), x.new_empty(count + 1)


def _edges(mode: FakeTensorMode, func: Any, x: torch.Tensor, bins: Sequence[int], **options: Any) -> list[torch.Tensor]:
    return [x.new_empty(count + 1) for count in bins]


def _counts(mode: FakeTensorMode, func: Any, x: torch.Tensor, bins: Sequence[int | torch.Tensor], **options: Any) -> torch.Tensor:
    return x.new_empty([one.shape[0] - 1 if isinstance(one, torch.Tensor) else one for one in bins])


def _sum_with_sparse(mode: FakeTensorMode, func: Any, x: torch.Tensor, other: Any, **options: Any) -> Any:
    """A sum is sparse if both terms are. torch's own fake kernel fails if the number of entries is symbolic."""
    terms = [term for term in (x, other) if isinstance(term, torch.Tensor)]
    dense = [term for term in terms if term.layout == torch.strided]
    if len(dense) == len(terms):
        return NotImplemented
    dtype = torch.result_type(x, other)
    with mode:
        if dense:
            return torch.empty_like(dense[0], dtype=dtype)
        return torch.empty(x.shape, dtype=dtype, layout=x.layout, device=x.device)


def _attention(
    mode: FakeTensorMode, func: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any, **options: Any
) -> Any:
    """Guard the sizes: the kernel is for sizes other than 0, since it divides by them, and for as
    many values as keys.
    """
    bool(key.shape[2] == value.shape[2])  # a guard, if the sizes are dynamic
    for size in (*query.shape[1:3], key.shape[2]):
        if isinstance(size, torch.SymInt):
            for symbol in size.node.expr.free_symbols:
                exclude_zero(size.node.shape_env, symbol)
    return NotImplemented  # torch's own fake kernel computes the result


def _nearest(mode: FakeTensorMode, func: Any, x: torch.Tensor, size: Sequence[int], *scales: Any) -> Any:
    """Images of an empty batch. torch's own fake kernel then checks a product of sizes, which is no ``bool``."""
    if not statically_known_true(x.shape[0] == 0) or 0 in (*x.shape[1:], *size) or len(size) != x.dim() - 2:
        return NotImplemented
    return x.new_empty((*x.shape[:2], *size))


def _bags(mode: FakeTensorMode, func: Any, weight: torch.Tensor, *rest: Any, **options: Any) -> Any:
    """Bags of ``bfloat16`` take the fast path, as those of ``float16``. torch's own fake kernel does not know it."""
    if weight.dtype != torch.bfloat16:
        return NotImplemented
    given = [weight, *rest, *options.values()]
    halves = [x.half() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in given]
    first = len(given) - len(options)
    bags, *others = func(*halves[:first], **dict(zip(options, halves[first:], strict=True)))
    return bags.bfloat16(), *others


def _like(index: int) -> Callable[..., torch.Tensor]:
    """A new tensor of the sizes and the type of an argument."""
    return lambda mode, func, *args, **options: args[index].new_empty(args[index].shape)


def _quantized_backward(
    mode: FakeTensorMode, func: Any, gradient: torch.Tensor, x: torch.Tensor, scale: torch.Tensor, *rest: Any
) -> Any:
    """Gradients of the input, of the scales and of the zero points."""
    return torch.empty_like(x), scale.new_empty(scale.shape), scale.new_empty(scale.shape)


_FAKES: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: _sum_with_sparse,
    _aten._embedding_bag.default: _bags,
    _aten._embedding_bag_forward_only.default: _bags,
    _aten._ctc_loss.default: _ctc_loss,
    _aten._ctc_loss.Tensor: _ctc_loss,
    _aten._ctc_loss_backward.default: _ctc_loss_backward,
    _aten._ctc_loss_backward.Tensor: _ctc_loss_backward,
    _aten._dirichlet_grad.default: _like(0),
    _aten._fake_quantize_learnable_per_channel_affine.default: _like(0),
    _aten._fake_quantize_learnable_per_channel_affine_backward.default: _quantized_backward,
    _aten._fake_quantize_learnable_per_tensor_affine.default: _like(0),
    _aten._fake_quantize_learnable_per_tensor_affine_backward.default: _quantized_backward,
    _aten._sample_dirichlet.default: _like(0),
    _aten._standard_gamma_grad.default: _like(0),
    _aten.binomial.default: _like(0),
    _aten.geqrf.default: _geqrf,
    **{
        getattr(_aten, f"{name}{dims}d").default: _nearest
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for dims in (1, 2, 3)
    },
    _aten.linalg_lstsq.default: _lstsq,
    _aten.histogram.bin_ct: _histogram,
    _aten.histogram.bins_tensor: _histogram,
    _aten._histogramdd_bin_edges.default: _edges,
    _aten._histogramdd_from_bin_cts.default: _counts,
    _aten._histogramdd_from_bin_tensors.default: _counts,
}


@contextlib.contextmanager
def register_fake_kernels() -> Iterator[None]:
    """Let operators without a fake kernel in torch run on fake tensors."""
    rules = {operator: counted("fake-kernels-without-sizes", rule) for operator, rule in _FAKES.items()}
    with with_items("fake-kernels-without-sizes", fake_impls, "op_implementations_dict", rules):
        yield


@contextlib.contextmanager
def guard_attention_sizes() -> Iterator[None]:
    """Guard the sizes of the attention kernel: it divides by them, and needs as many values as
    keys.
    """
    operator = _aten._scaled_dot_product_flash_attention_for_cpu.default
    rule = {operator: counted("fake-sizes-of-attention", _attention)}
    with with_items("fake-sizes-of-attention", fake_impls, "op_implementations_dict", rule):
        yield
