"""Runs a model in float64 that was written for other types, with the random numbers of these types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_WIDE = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
_NARROWING = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of real or complex numbers in double precision; others as they are."""
    return tensor.to(_WIDE[tensor.dtype]) if tensor.dtype in _WIDE else tensor


@contextlib.contextmanager
def in_double(draws_in: torch.dtype) -> Iterator[None]:
    """Let torch compute in float64 inside the block, and draw random numbers in the type ``draws_in``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _SameDraws(draws_in), _Widening():
            yield
    finally:
        torch.set_default_dtype(before)


class _Widening(TorchFunctionMode):
    """Replaces narrower types, and tensors of them, in the arguments of torch's functions."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _NARROWING:
            return args[0].double()
        args, kwargs = tree_map_only(torch.dtype, lambda dtype: _WIDE.get(dtype, dtype), (args, kwargs or {}))
        name = getattr(func, "__name__", "")
        if not (name.endswith("_") or name in ("__get__", "__set__", "__setitem__")):
            args, kwargs = tree_map_only(torch.Tensor, _widened_argument, (args, kwargs))
        return func(*args, **kwargs)


def _widened_argument(tensor: torch.Tensor) -> torch.Tensor:
    return widened(tensor) if type(tensor) in (torch.Tensor, torch.nn.Parameter) else tensor


class _SameDraws(TorchDispatchMode):
    """Draws random numbers in another type than that of the tensor which gets them."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if name in ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_") and args[0].dtype == torch.float64:
            drawn = torch.empty_like(args[0], dtype=self._dtype)
            func(drawn, *args[1:], **kwargs)
            return args[0].copy_(drawn)
        if name in ("rand", "randn", "rand_like", "randn_like", "normal"):
            made = func(*args, **kwargs | {"dtype": self._dtype})
            wanted = kwargs.get("dtype") or (args[0].dtype if isinstance(args[0], torch.Tensor) else torch.float64)
            return made.to(wanted)
        return func(*args, **kwargs)
