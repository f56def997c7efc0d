"""Adapts torch's decompositions: core tables, traces of operators as simpler ones, and rules that
match eager.

Tried on: torch 2.13.0, 2.9.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decompositions, get_decompositions
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx

from .aot_autograd import Decompositions
from .api.rules import ruled
from .fixes.applying import apply_fixes, counted, patched


def core_decompositions(also: Iterable[Any] = ()) -> Decompositions:
    """Torch's decompositions of operators outside its core set, and of the operators ``also``."""
    return {**core_aten_decompositions(), **get_decompositions(list(also))}


def trace(function: Callable[..., Any], examples: Sequence[Any], table: Decompositions) -> torch.fx.Graph:
    """The graph of ``function`` on fake tensors; their fake mode must be active.

    Nodes have ``meta["val"]``.

    Two of ``examples`` may be the same fake tensor. ``make_fx`` distinguishes arguments by
    identity, so it gets detached ones.
    """
    distinct = [value.detach() if isinstance(value, torch.Tensor) else value for value in examples]
    with decomposed_as_eager():
        return make_fx(function, decomposition_table=dict(table))(*distinct).graph


def decomposed_as_eager() -> contextlib.AbstractContextManager[None]:
    """Trace operators that torch decomposes above autograd with the values and strides of eager's
    kernels.
    """
    return apply_fixes("decomposition")


@contextlib.contextmanager
def interpolated_by_sizes() -> Iterator[None]:
    """Let ``interpolate`` compute by sizes, not by the factor, if an output size is one or two
    times the input size.

    A size that the factor does not change is copied. A size that nearest interpolation doubles is
    repeated. Torch's rules use the factor there too.
    """
    nearest, linear = decompositions._upsample_nearest, decompositions._upsample_linear

    def plain(
        x: torch.Tensor, sizes: Sequence[int], factors: Sequence[float | None], multiples: Sequence[int]
    ) -> list[float | None]:
        """The factors, with None for each size that changes by exactly one of the ``multiples``."""
        given = x.shape[-len(sizes) :]
        return [
            None if _is_fraction(factor) and any(new == multiple * old for multiple in multiples) else factor
            for old, new, factor in zip(given, sizes, factors, strict=True)
        ]

    def resize_nearest(x: torch.Tensor, sizes: Sequence[int], factors: Sequence[float | None], exact: bool = False) -> Any:
        by_sizes = list(factors) if exact else plain(x, sizes, factors, (1, 2))
        if len(sizes) != 2 and by_sizes != list(factors):  # 1-d and 3-d kernels use the factor, except for gradients
            if torch.is_grad_enabled() and x.requires_grad:
                raise NotImplementedError("interpolate by a factor: eager's gradient is not that of its values; pass size=")
            by_sizes = list(factors)
        resized = nearest(x, sizes, by_sizes, exact=exact)
        return resized.contiguous() if len(sizes) == 1 else resized

    def resize_linear(x: torch.Tensor, sizes: Sequence[int], align_corners: bool, factors: Sequence[float | None]) -> Any:
        return linear(x, sizes, align_corners, factors if align_corners else plain(x, sizes, factors, (1,)))

    with (
        patched("decomposition-interpolate-by-a-factor", decompositions, "_upsample_nearest", resize_nearest),
        patched("decomposition-interpolate-by-a-factor", decompositions, "_upsample_linear", resize_linear),
    ):
        yield


def contiguous_one_hot() -> contextlib.AbstractContextManager[None]:
    """Make the result of ``one_hot`` contiguous, whatever the strides of the classes."""
    if not hasattr(decompositions, "one_hot"):  # torch 2.9 has no such decomposition
        return contextlib.nullcontext()

    def one_hot(classes: torch.Tensor, number: int = -1) -> torch.Tensor:
        encoded: torch.Tensor = decompositions.one_hot(classes, number)
        return encoded.contiguous()

    return _rule("decomposition-strides-of-one-hot", torch.ops.aten.one_hot.default, one_hot)


def contiguous_rrelu() -> contextlib.AbstractContextManager[None]:
    """Make the result of ``rrelu`` contiguous, whatever the strides of the input."""

    def rrelu(x: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None) -> Any:
        noise = torch.empty_like(x, memory_format=torch.contiguous_format)
        return torch.ops.aten.rrelu_with_noise(x, noise, lower, upper, training, generator).contiguous()

    return _rule("decomposition-strides-of-rrelu", torch.ops.aten.rrelu.default, rrelu)


def products_are_no_views() -> contextlib.AbstractContextManager[None]:
    """Return batched products as non-views: torch's rule returns a view of a product of matrices."""
    return _rule(
        "decomposition-products-as-views",
        torch.ops.aten.matmul.default,
        lambda one, other: _no_view(decompositions.matmul(one, other)),
    )


def pools_are_no_views() -> contextlib.AbstractContextManager[None]:
    """Return the result of ``max_pool1d`` as a non-view if no gradient is recorded."""

    def max_pool1d(x: torch.Tensor, *window: Any, **given: Any) -> torch.Tensor:
        pooled: torch.Tensor = torch.ops.aten.max_pool1d_with_indices(x, *window, **given)[0]
        return pooled if torch.is_grad_enabled() and x.requires_grad else _no_view(pooled).contiguous()

    return _rule("decomposition-pools-as-views", torch.ops.aten.max_pool1d.default, max_pool1d)


def functional_polygamma() -> contextlib.AbstractContextManager[None]:
    """Express ``polygamma_`` by ``polygamma`` and a copy: torch generates no functional form of it."""

    def polygamma_in_place(x: torch.Tensor, order: int) -> torch.Tensor:
        return x.copy_(torch.polygamma(order, x.clone()))

    return _rule("decomposition-polygamma-in-place", torch.ops.aten.polygamma_.default, polygamma_in_place)


def covariance_without_values() -> contextlib.AbstractContextManager[None]:
    """Trace ``torch.cov`` without reading values."""
    return _rule("decomposition-covariance", torch.ops.aten.cov.default, _covariance)


def close_in_derivatives() -> contextlib.AbstractContextManager[None]:
    """Turn ``allclose`` in torch's own derivatives into an assertion in the graph."""
    return _rule("decomposition-allclose-in-derivatives", torch.ops.aten.allclose.default, _close)


def _rule(identifier: str, operator: Any, rule: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    return ruled({operator: counted(identifier, rule)})


def _covariance(
    x: torch.Tensor, *, correction: int = 1, fweights: torch.Tensor | None = None, aweights: torch.Tensor | None = None
) -> torch.Tensor:
    """``torch.cov`` without reading values.

    Its errors become assertions; its warning of too few observations is dropped.
    """
    x = x.reshape(1, -1) if x.dim() < 2 else x
    weights: torch.Tensor | None = None
    for given, name in ((fweights, "fweights"), (aweights, "aweights")):
        if given is not None:
            torch.ops.aten._assert_async.msg(given.min() >= 0, f"cov(): {name} cannot be negative")
            weights = given if weights is None else weights * given
    if weights is None:
        apart = x - (x.sum(1) / x.shape[1]).unsqueeze(1)
        return apart.matmul(apart.t().conj()).div(torch.sym_max(x.shape[1] - correction, 0)).squeeze()
    total = weights.sum()
    torch.ops.aten._assert_async.msg(total != 0, "cov(): weights sum to zero, can't be normalized")
    mean = (x * weights).sum(1) / total  # in this order, so that gradients are summed in eager's order
    freedom = total - correction
    if aweights is not None and correction:
        freedom = total - correction * (weights * aweights).sum() / total
    apart = x - mean.unsqueeze(1)
    return apart.matmul((apart * weights).t().conj()).div(freedom.clamp(min=0)).squeeze()


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


def _no_view(result: torch.Tensor) -> torch.Tensor:
    """The same values as a non-view for autograd; the base of ``result`` is used nowhere else."""
    if result._is_view():
        result = torch.ops.aten._unsafe_view(result._base, result.shape)
    return result


def _is_fraction(factor: float | None) -> bool:
    """Whether a factor is fractional, so that sizes must be compared; a whole factor needs no
    comparison of dynamic sizes.
    """
    return isinstance(factor, float) and not factor.is_integer()
