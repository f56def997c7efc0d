"""Rules for operators that torch decomposes above autograd, with the values and strides of eager's
kernels.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import decompositions
from torch._subclasses.fake_tensor import DataDependentOutputException

from ...api.dispatch_rules import ruled, unruled
from ...api.fake_tensors import is_fixed
from ...api.gradients import with_gradient
from ..applying import counted


def make_one_hot_contiguous() -> contextlib.AbstractContextManager[None]:
    """Make the result of ``one_hot`` contiguous, whatever the strides of the classes."""
    decompose: Callable[..., torch.Tensor] = getattr(decompositions, "one_hot", _one_hot)  # torch 2.11 has none

    def one_hot(classes: torch.Tensor, number: int = -1) -> torch.Tensor:
        return decompose(classes, number).contiguous()

    return _rule("decomposition-strides-of-one-hot", torch.ops.aten.one_hot.default, one_hot)


def make_rrelu_contiguous() -> contextlib.AbstractContextManager[None]:
    """Make the result of ``rrelu`` contiguous, whatever the strides of the input."""

    def rrelu(x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Any:
        if not -math.inf < lower <= upper < math.inf:  # eager's function checks it above the kernel
            raise RuntimeError(f"the bounds {lower} and {upper} of rrelu are no range")
        noise = torch.empty_like(x, memory_format=torch.contiguous_format)
        return torch.ops.aten.rrelu_with_noise(x, noise, lower, upper, training, generator).contiguous()

    return _rule("decomposition-strides-of-rrelu", torch.ops.aten.rrelu.default, rrelu)


def clone_batched_matmul() -> contextlib.AbstractContextManager[None]:
    """Return batched products as non-views: torch's rule returns a view of a product of matrices."""
    return _rule(
        "decomposition-products-as-views",
        torch.ops.aten.matmul.default,
        lambda one, other: _as_non_view(decompositions.matmul(one, other)),
    )


def clone_max_pool1d() -> contextlib.AbstractContextManager[None]:
    """Return the result of ``max_pool1d`` as a non-view if no gradient is recorded."""

    def max_pool1d(x: torch.Tensor, *window: Any, **given: Any) -> torch.Tensor:
        pooled: torch.Tensor = torch.ops.aten.max_pool1d_with_indices(x, *window, **given)[0]
        return pooled if torch.is_grad_enabled() and x.requires_grad else _as_non_view(pooled).contiguous()

    return _rule("decomposition-pools-as-views", torch.ops.aten.max_pool1d.default, max_pool1d)


def trace_inplace_polygamma() -> contextlib.AbstractContextManager[None]:
    """Express ``polygamma_`` by ``polygamma`` and a copy: torch generates no functional form of it."""

    def polygamma_in_place(x: torch.Tensor, order: int) -> torch.Tensor:
        return x.copy_(torch.polygamma(order, x.clone()))

    return _rule("decomposition-polygamma-in-place", torch.ops.aten.polygamma_.default, polygamma_in_place)


def trace_weighted_covariance() -> contextlib.AbstractContextManager[None]:
    """Trace ``torch.cov`` without reading values."""
    return _rule("decomposition-covariance", torch.ops.aten.cov.default, _covariance)


def assert_allclose_in_derivatives() -> contextlib.AbstractContextManager[None]:
    """Turn ``allclose`` in torch's own derivatives into an assertion in the graph."""
    return _rule("decomposition-allclose-in-derivatives", torch.ops.aten.allclose.default, _close)


def trace_padded_sparse_embeddings() -> contextlib.AbstractContextManager[None]:
    """Trace sparse gradients of embeddings with a ``padding_idx``, whose number of entries depends on data."""
    aten = torch.ops.aten

    def embedding_backward(
        gradient: torch.Tensor, indices: torch.Tensor, rows: Any, padding: Any, scaled: bool, sparse: bool
    ) -> torch.Tensor:
        if not sparse:
            return aten.embedding_dense_backward(gradient, indices, rows, padding, scaled)  # type: ignore[no-any-return]
        if padding == -1 or scaled:
            return aten.embedding_sparse_backward(gradient, indices, rows, padding, scaled)  # type: ignore[no-any-return]
        kept = [aten.ne.Scalar(indices, padding)]
        entries, values = aten.unsqueeze(aten.index.Tensor(indices, kept), 0), aten.index.Tensor(gradient, kept)
        options = {"dtype": values.dtype, "layout": torch.sparse_coo, "device": values.device}
        return aten._sparse_coo_tensor_with_dims_and_tensors(1, 1, (rows, values.shape[-1]), entries, values, **options)  # type: ignore[no-any-return]

    return _rule("decomposition-padded-sparse-embeddings", aten.embedding_backward.default, embedding_backward)


def trace_affine_grids() -> contextlib.AbstractContextManager[None]:
    """Differentiate ``affine_grid`` by the operators that its kernel calls. torch's derivative takes no symbolic sizes."""
    return _rule("decomposition-affine-grid-of-varying-sizes", torch.ops.aten.affine_grid_generator.default, _affine_grid)


def differentiate_products() -> contextlib.AbstractContextManager[None]:
    """Divide the product by each factor in the gradient of ``prod`` where no factor is 0, as eager does."""

    def rule_of(operator: Any) -> Callable[..., Any]:
        def product(x: torch.Tensor, *dims: Any, **given: Any) -> torch.Tensor:
            with unruled([operator]):
                return (
                    with_gradient(x, lambda x: operator(x, *dims, **given), _of_products(x, *dims))
                    if x.dim()
                    else operator(x, *dims, **given)
                )

        return counted("decomposition-gradients-of-products", product)

    return ruled({each: rule_of(each) for each in (torch.ops.aten.prod.default, torch.ops.aten.prod.dim_int)})


def _of_products(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Callable[..., torch.Tensor]:
    """The gradient of ``prod`` of all elements, or of a dimension."""

    def gradient(given: torch.Tensor, result: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        if dim is not None and not keepdim:
            given, result = given.unsqueeze(dim), result.unsqueeze(dim)
        factors = torch.where(x == 0, 1, x)  # a quotient by 0 is not used, but it would have a derivative of NaN
        quotients = (given * (result / factors.to(given.dtype)).conj()).to(x.dtype)
        zeros = (x == 0).sum()
        return torch.where(zeros == 0, quotients, found if dim is not None else torch.where(zeros > 1, 0, found))

    return gradient


def trace_distances() -> contextlib.AbstractContextManager[None]:
    """Call the kernel of ``cdist`` if numbers of rows vary. It chooses an algorithm by them; torch guards on the choice."""
    operator = torch.ops.aten.cdist.default

    def cdist(x: torch.Tensor, other: torch.Tensor, p: float = 2.0, mode: int | None = None) -> Any:
        if is_fixed(x.shape[-2], other.shape[-2]):
            return operator._op_dk(DispatchKey.CompositeImplicitAutograd, x, other, p, mode)
        return torch.ops.aten._cdist_forward(x.contiguous(), other.contiguous(), p, mode)

    return _rule("decomposition-distances-of-varying-sizes", operator, cdist)


def _rule(identifier: str, operator: Any, rule: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    return ruled({operator: counted(identifier, rule)})


def _one_hot(classes: torch.Tensor, number: int = -1) -> torch.Tensor:
    """``one_hot`` whose checks of the classes become assertions, as in torch 2.13 and later."""
    if number == -1:
        raise DataDependentOutputException(torch.ops.aten.one_hot.default)
    check = torch.ops.aten._assert_async.msg
    check((classes >= 0).all(), "one_hot: Class values must be non-negative.")
    check((classes < number).all(), "one_hot: Class values must be smaller than num_classes.")
    return (classes.unsqueeze(-1) == torch.arange(number, dtype=classes.dtype, device=classes.device)).to(torch.int64)


def _affine_grid(theta: torch.Tensor, size: Sequence[int], align_corners: bool) -> torch.Tensor:
    """Transform the positions -1 to 1 of each element of an image or a volume, as eager's kernel does."""

    def positions(count: int) -> torch.Tensor:
        if count <= 1:
            return theta.new_zeros(count)
        steps = torch.linspace(-1, 1, count, dtype=theta.dtype, device=theta.device)
        return steps if align_corners else steps * (count - 1) / count

    batch, _, *sizes = size
    axes = torch.meshgrid([positions(count) for count in sizes], indexing="ij")
    base = torch.stack([*axes[::-1], torch.ones_like(axes[0])], -1).view(1, -1, len(sizes) + 1)
    return base.expand(batch, -1, -1).bmm(theta.transpose(1, 2)).view(batch, *sizes, len(sizes))


def _covariance(
    x: torch.Tensor, *, correction: int = 1, fweights: torch.Tensor | None = None, aweights: torch.Tensor | None = None
) -> torch.Tensor:
    """``torch.cov`` without reading values.

    Its errors become assertions; its warning of too few observations is dropped.
    """
    x = x.reshape(1, -1) if x.dim() < 2 else x
    weights: torch.Tensor | None = None
    torch._check(x.dtype != torch.bool, lambda: "cov(): bool dtype is not supported for input")
    torch._check(
        aweights is None or aweights.is_floating_point(), lambda: "cov(): expected aweights to have floating point dtype"
    )
    torch._check(fweights is None or _is_integral(fweights), lambda: "cov(): expected fweights to have integral dtype")
    for given, name in ((fweights, "fweights"), (aweights, "aweights")):
        if given is not None:
            _check_weights(given, name, x.shape[1])
            torch.ops.aten._assert_async.msg(given.min() >= 0, f"cov(): {name} cannot be negative")
            weights = given if weights is None else weights * given
    if weights is None:
        centered = x - (x.sum(1) / x.shape[1]).unsqueeze(1)
        return centered.matmul(centered.t().conj()).div(torch.sym_max(x.shape[1] - correction, 0)).squeeze()
    total = weights.sum()
    torch.ops.aten._assert_async.msg(total != 0, "cov(): weights sum to zero, can't be normalized")
    mean = (x * weights).sum(1) / total  # in this order, so that gradients are summed in eager's order
    freedom = total - correction
    if aweights is not None and correction:
        freedom = total - correction * (weights * aweights).sum() / total
    centered = x - mean.unsqueeze(1)
    return centered.matmul((centered * weights).t().conj()).div(freedom.clamp(min=0)).squeeze()


def _check_weights(weights: torch.Tensor, name: str, observations: int | torch.SymInt) -> None:
    torch._check(weights.dim() <= 1, lambda: f"cov(): expected {name} to have one or fewer dimensions")
    torch._check(
        weights.numel() == observations, lambda: f"cov(): expected {name} to have the same numel as there are observations"
    )


def _is_integral(x: torch.Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _close(one: torch.Tensor, other: torch.Tensor, *how: Any, **given: Any) -> bool:
    """Assert in the graph that tensors are close.

    Torch's derivative of complex singular vectors raises if they are not.

    Raises:
        DataDependentOutputException: the call is the model's own.
    """
    if torch._C._current_graph_task_id() == -1:
        raise DataDependentOutputException(torch.ops.aten.allclose.default)
    torch.ops.aten._assert_async.msg(
        torch.isclose(one, other, *how, **given).all(),
        "svd_backward: the loss depends on the phase of complex singular vectors, which is arbitrary",
    )
    return True


def _as_non_view(result: torch.Tensor) -> torch.Tensor:
    """The same values as a non-view for autograd; the base of ``result`` is used nowhere else."""
    if result._is_view():
        result = torch.ops.aten._unsafe_view(result._base, result.shape)
    return result
