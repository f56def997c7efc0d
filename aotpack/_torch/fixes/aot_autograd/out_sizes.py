"""Treats tensors passed as ``out=`` as eager does.

A trace copies the result into such a tensor. A larger tensor then keeps its sizes: the copy
broadcasts the result, or raises. Sums and their like have the input's element type in a trace.
Eager computes them in the type of ``out=``.

Tried on: torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...api.counting import reached
from ...api.writes import operator_of


class OutSizeError(Exception):
    """An operator resizes a view passed as ``out=``."""


class OutSizeMode(TorchFunctionMode):
    """While active, gives tensors passed as ``out=`` the sizes of the result, and reductions their type.

    Raises:
        OutSizeError: the tensor is a view.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = {name: kwargs[name] for name in _names(function) if kwargs.get(name) is not None}
        given, spec = tree_flatten(out)
        if not given or not all(isinstance(tensor, FunctionalTensor) for tensor in given):
            return function(*args, **kwargs)
        fresh = [torch.empty(0, dtype=tensor.dtype, device=tensor.device) for tensor in given]
        args, kwargs = _in_type_of(given[0], function, args, kwargs)
        found = function(*args, **{**kwargs, **tree_unflatten(fresh, spec)})
        for tensor, value in zip(given, fresh, strict=True):
            _set(tensor, value.detach())  # `value` itself says that it is empty; a view of it has the true sizes
        return type(found)(given) if isinstance(found, tuple) else given[0]


def _names(function: Callable[..., Any]) -> list[str]:
    operator = operator_of(function)
    return ["out"] if operator is None else [argument.name for argument in operator._schema.arguments if argument.is_out]


_TYPED = frozenset({"sum", "mean", "nansum", "nanmean", "prod", "cumsum", "cumprod"})
_CAST = frozenset({"var", "std"})
"""Functions that eager computes in the element type of ``out=``: with an argument ``dtype``, and without."""


def _in_type_of(
    out: torch.Tensor, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments with which a reduction computes in the element type of ``out``."""
    name = getattr(function, "__name__", "").partition(".")[0]
    x = args[0] if args else next((kwargs[key] for key in ("input", "self") if key in kwargs), None)
    if name not in _TYPED | _CAST or not isinstance(x, torch.Tensor) or x.dtype == out.dtype:
        return args, kwargs
    reached("aot-sizes-of-out")
    if name in _TYPED:
        return args, {**kwargs, "dtype": kwargs.get("dtype") or out.dtype}
    cast = x.to(out.dtype)
    return [cast if value is x else value for value in args], {
        key: cast if value is x else value for key, value in kwargs.items()
    }


def _set(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if not _equal(tensor.shape, value.shape):
        reached("aot-sizes-of-out")
        if tensor._is_view():
            raise OutSizeError("resizes a view passed as out=; pass a tensor of the result's sizes")
        if not statically_known_true(value.numel() <= tensor.numel()):
            torch.ops.aten.clone.out(value, out=tensor)  # torch itself enlarges it
            return
        tensor.resize_(value.shape)
        if not value.is_contiguous():
            tensor.as_strided_(value.shape, value.stride())
    tensor.copy_(value)


def _equal(one: Sequence[int], other: Sequence[int]) -> bool:
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in zip(one, other, strict=True))
