"""Gives traced tensors the element types of real kernels where torch's fake kernels have others.

Arguments of two element types show the difference: statistics of a norm, whose input is half
precision and whose weight is not, and losses of targets of another type.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ...api.patching import replaced
from ..applying import count_call, is_applied
from .kernel_strides import operator_named
from .strides import in_order

_FIX = "fake-types-of-kernels"

Types = Callable[[Sequence[Any], Sequence[torch.Tensor]], Sequence[torch.dtype]]
"""Computes the element types of a kernel's results from its arguments and what the fake kernel returns."""


def _type_of_statistics(args: Sequence[Any], parameters: Sequence[int]) -> torch.dtype:
    """The type of the first of these parameters that is given, else of the input."""
    given: torch.Tensor = next(args[index] for index in (*parameters, 0) if args[index] is not None)
    return given.dtype


_BATCH_NORMS = (
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "native_batch_norm",
)
_NORMS = {
    **dict.fromkeys(_BATCH_NORMS, (1, 2, 3, 4)),
    "_native_batch_norm_legit.no_stats": (1, 2),
    "native_group_norm": (1, 2),
    "native_layer_norm": (2, 3),
}
"""Operators and their parameters: the statistics, which are the second and the third result, have the type of one."""
_LOSSES = {
    "binary_cross_entropy": 0,
    "huber_loss": 0,
    "mse_loss_backward": 1,
    "smooth_l1_loss_backward": 1,
    "soft_margin_loss": 0,
    "soft_margin_loss_backward": 1,
}
"""Operators and the argument whose type the result has."""


def _norm(parameters: Sequence[int]) -> Types:
    def types(args: Sequence[Any], results: Sequence[torch.Tensor]) -> Sequence[torch.dtype]:
        statistics = _type_of_statistics(args, parameters)
        return [results[0].dtype, statistics, statistics, *(result.dtype for result in results[3:])]

    return types


_STATISTICS = {operator_named(name): parameters for name, parameters in _NORMS.items()}
_TYPED_AS = {operator_named(name): index for name, index in _LOSSES.items()}
_KERNELS: dict[Any, Types] = {operator: _norm(parameters) for operator, parameters in _STATISTICS.items()} | {
    operator: lambda args, results, index=index: [args[index].dtype] for operator, index in _TYPED_AS.items()
}


@contextlib.contextmanager
def fix_fake_types() -> Iterator[None]:
    """Give fake tensors the element types that real kernels return."""
    dispatch = FakeTensorMode.dispatch

    def dispatch_with_types(mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = dispatch(mode, func, types, args, kwargs or {})
        if func not in _KERNELS or found is NotImplemented:
            return found
        count_call(_FIX)
        results = found if isinstance(found, tuple) else (found,)
        dtypes = _KERNELS[func](in_order(func, args, kwargs or {}), results)
        with mode:
            typed = tuple(map(_of_type, results, dtypes))
        return typed if isinstance(found, tuple) else typed[0]

    with replaced(_FIX, FakeTensorMode, "dispatch", dispatch_with_types):
        yield


def _of_type(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype == dtype:
        return tensor
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)


def decomposed_in_types(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Decompositions of norms and losses whose results have the types of kernels."""
    if not is_applied(_FIX):
        return dict(table)
    losses = {op: _typed(op, table[op], index) for op, index in _TYPED_AS.items() if op in table}
    norms = {op: _with_statistics(op, table[op], parameters) for op, parameters in _STATISTICS.items() if op in table}
    return {**table, **losses, **norms}


def _typed(op: Any, rule: Callable[..., Any], index: int) -> Callable[..., Any]:
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        found = rule(*args, **kwargs)
        return found.to(in_order(op, args, kwargs)[index].dtype) if isinstance(found, torch.Tensor) else found

    return decomposed


def _with_statistics(op: Any, rule: Callable[..., Any], parameters: Sequence[int]) -> Callable[..., Any]:
    """A norm's decomposition. torch's rounds the statistics to the type of the input, before a backward uses them."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        x, *others = in_order(op, args, kwargs)
        statistics = _type_of_statistics([x, *others], parameters)
        if statistics == x.dtype:
            return rule(x, *others)
        found = rule(x.to(statistics), *others)
        return found if found is NotImplemented else (found[0].to(x.dtype), *found[1:])

    return decomposed
