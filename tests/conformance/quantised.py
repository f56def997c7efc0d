"""A tensor subclass as weight-only quantisation has them: int8 elements and one float scale a row, trained as if dense."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten


class Quantised(torch.Tensor):
    """Acts as ``data * scale`` in ``dtype``, ``scale`` along dimension ``axis``; operations on it give dense tensors.

    Shape ``[out, in]`` (``data``, int8) and ``[out]`` (``scale``). A change in place rounds to int8 again.
    """

    data_: Tensor
    scale: Tensor
    axis: int

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor, axis: int, dtype: torch.dtype) -> Self:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls, data.shape, strides=data.stride(), storage_offset=data.storage_offset(), dtype=dtype, device=data.device
        )

    def __init__(self, data: Tensor, scale: Tensor, axis: int, dtype: torch.dtype) -> None:
        self.data_, self.scale, self.axis = data, scale, axis

    @classmethod
    def of(cls, dense: Tensor) -> Self:
        """``dense`` rounded to 255 steps a row."""
        scale = dense.detach().abs().amax(1) / 127
        return cls((dense.detach() / scale[:, None]).round().to(torch.int8), scale, 0, dense.dtype)

    def dense(self) -> Tensor:
        """The elements in ``dtype``."""
        return self.data_.to(self.scale.dtype) * (self.scale[:, None] if self.axis == 0 else self.scale)

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        return ["data_", "scale"], {"axis": self.axis, "kind": ("int8", 255), "dtype": self.dtype}

    @classmethod
    def __tensor_unflatten__(cls, inner: dict[str, Tensor], metadata: dict[str, Any], size: Any, stride: Any) -> Self:
        return cls(inner["data_"], inner["scale"], metadata["axis"], metadata["dtype"])

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Quantised(shape={list(self.shape)}, axis={self.axis})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _WHOLE:
            first = args[0]
            parts = [func(part, *args[1:], **kwargs) for part in (first.data_, first.scale)]
            return return_and_correct_aliasing(func, args, kwargs, cls(*parts, first.axis, first.dtype))
        if func is aten.t.default:
            first = args[0]
            turned = cls(first.data_.t(), first.scale, 1 - first.axis, first.dtype)
            return return_and_correct_aliasing(func, args, kwargs, turned)
        if func._schema.is_mutable:
            return _written(func, args, kwargs)
        args, kwargs = pytree.tree_map_only(cls, cls.dense, (args, kwargs))
        return func(*args, **kwargs)


_WHOLE = (aten.detach.default, aten.clone.default, aten.alias.default, aten._to_copy.default)


def _written(func: Any, args: Any, kwargs: Any) -> Any:
    """An operation in place on the first argument, computed dense and rounded back."""
    target = args[0]
    if func is aten.copy_.default and isinstance(args[1], Quantised):
        target.data_.copy_(args[1].data_)
        target.scale.copy_(args[1].scale)
        return target
    dense, rest, named = pytree.tree_map_only(Quantised, Quantised.dense, (target, args[1:], kwargs))
    func(dense, *rest, **named)
    rounded = Quantised.of(dense)
    target.data_.copy_(rounded.data_)
    target.scale.copy_(rounded.scale)
    return target
