"""Treats tensors passed as ``out=`` as eager does.

A trace copies the result into such a tensor. A larger tensor then keeps its sizes: the copy
broadcasts the result, or raises. Sums and their like have the input's element type in a trace.
Eager computes them in the type of ``out=``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...api.counting import count_call
from ...api.writes import operator_of


class OutSizeError(Exception):
    """An operator resizes a view passed as ``out=``, keeps its sizes, or refuses its element type."""


class OutSizeMode(TorchFunctionMode):
    """While active, gives tensors passed as ``out=`` the sizes of the result, and reductions their type.

    Raises:
        OutSizeError: the tensor is a view, or eager keeps its sizes or refuses its element type.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        out = {name: kwargs[name] for name in _names(function) if kwargs.get(name) is not None}
        given, spec = tree_flatten(out)
        inputs = {name: value for name, value in kwargs.items() if name not in out}
        if not given or not all(isinstance(tensor, FunctionalTensor) for tensor in given):
            if given and all(isinstance(tensor, torch.Tensor) and torch._is_functional_tensor(tensor) for tensor in given):
                _require_as_eager(given, function, args, inputs, out)  # `torch.range` comes here only as an operator
            return function(*args, **kwargs)
        fresh = [torch.empty(0, dtype=tensor.dtype, device=tensor.device) for tensor in given]
        typed, positional, named = _in_type_of(given[0], function, args, kwargs)
        found = typed(*positional, **{**named, **tree_unflatten(fresh, spec)})
        same_sizes = all(_equal(tensor.shape, value.detach().shape) for tensor, value in zip(given, fresh, strict=True))
        if not same_sizes or _has_other_types(given, args, inputs):
            _require_as_eager(given, function, args, inputs, out)
        for tensor, value in zip(given, fresh, strict=True):
            # `value` itself says that it is empty; a view of it has the true sizes
            _set(tensor, value.detach())
        return type(found)(given) if isinstance(found, tuple) else given[0]


def _has_other_types(given: Sequence[torch.Tensor], args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    inputs = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    return any(tensor.dtype != value.dtype for tensor in given for value in inputs)


def _require_as_eager(
    given: Sequence[torch.Tensor], function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], out: Any
) -> None:
    """Refuse an ``out=`` of a type that eager refuses (``softmax``), or of sizes that eager keeps (``arange``).

    A trace would convert the result, and give the tensor its sizes. Eager is asked with zeros in place of the
    arguments. What it raises for results of its own type, too, tells nothing.
    """
    function = getattr(function, "overloadpacket", function)  # an overload with ``out`` cannot be called without it
    values, spec = tree_flatten((args, kwargs))
    with _disable_current_modes(), _functionalization_off(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about sizes; the model's own call warns
        positional, named = tree_unflatten([_example(value) for value in values], spec)

        def fill(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
            function(*positional, **named, **_as_out(tensors, out))
            return tensors

        filled = [_example(tensor) for tensor in given]
        sizes = [tensor.shape for tensor in filled]
        try:
            fill(_empty_like(tree_flatten(function(*positional, **named))[0]))
        except (RuntimeError, TypeError):
            return
        try:
            results = fill(_empty_like(given))
        except RuntimeError as error:
            raise OutSizeError(f"eager refuses the element type of out=: {str(error).splitlines()[0]}") from None
        try:
            fill(filled)
        except RuntimeError:
            return
    for tensor, before, result in zip(filled, sizes, results, strict=True):
        if tensor.shape == before != result.shape:
            raise OutSizeError(
                f"eager keeps the sizes {[*before]} of out=, which has as many elements as the result; "
                f"pass a tensor of the result's sizes, {[*result.shape]}"
            )


def _functionalization_off() -> AbstractContextManager[Any]:
    """Switch off the functionalization in C++ that is on while ``torch.range`` is traced."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))


def _as_out(tensors: Sequence[torch.Tensor], out: Any) -> dict[str, Any]:
    return tree_unflatten(list(tensors), tree_flatten(out)[1])  # type: ignore[no-any-return]


def _empty_like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(0, dtype=tensor.dtype) for tensor in tensors]


def _example(value: Any) -> Any:
    """A real tensor like a traced one; sizes that vary have their example's value."""
    if isinstance(value, torch.SymInt):
        return value.node.hint if value.node.hint is not None else 1
    if not isinstance(value, torch.Tensor):
        return value
    return torch.zeros([_example(size) for size in value.shape], dtype=value.dtype)


def _names(function: Callable[..., Any]) -> list[str]:
    operator = operator_of(function)
    return ["out"] if operator is None else [argument.name for argument in operator._schema.arguments if argument.is_out]


def _logsumexp(input: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype, out: torch.Tensor) -> torch.Tensor:
    """Sums in the type ``dtype``, as eager does for an ``out=`` of that type."""
    if not input.is_floating_point() or not input.numel():
        return torch.logsumexp(input, dim, keepdim, out=out)
    largest = input.amax(dim, keepdim=True)
    largest = largest.masked_fill(largest.abs() == float("inf"), 0)
    total = (input - largest).exp().sum(dim, keepdim=keepdim, dtype=dtype).log()
    return torch.add(total, largest.reshape(total.shape), out=out)


_TYPED: dict[str, Callable[..., Any] | None] = {
    **dict.fromkeys(("sum", "mean", "nansum", "nanmean", "prod", "cumsum", "cumprod")),
    "logsumexp": _logsumexp,
}
"""Functions that eager computes in the element type of ``out=``, as if that were their argument ``dtype``; in place of
those without that argument another function is called.
"""
_CAST = frozenset({"var", "std"})
"""Functions whose input eager converts to that type."""


def _in_type_of(
    out: torch.Tensor, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
    """The function and the arguments with which a reduction computes in the element type of ``out``."""
    name = str(getattr(function, "__name__", "")).partition(".")[0]
    x = args[0] if args else next((kwargs[key] for key in ("input", "self") if key in kwargs), None)
    if name not in _TYPED.keys() | _CAST or not isinstance(x, torch.Tensor) or x.dtype == out.dtype:
        return function, args, kwargs
    count_call("aot-sizes-of-out")
    if name in _TYPED:
        return _TYPED[name] or function, args, {**kwargs, "dtype": kwargs.get("dtype") or out.dtype}
    cast = x.to(out.dtype)
    return (
        function,
        [cast if value is x else value for value in args],
        {key: cast if value is x else value for key, value in kwargs.items()},
    )


def _set(tensor: torch.Tensor, value: torch.Tensor) -> None:
    if not _equal(tensor.shape, value.shape):
        count_call("aot-sizes-of-out")
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
