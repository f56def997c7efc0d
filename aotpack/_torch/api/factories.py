"""Traces functions of torch that make sizes which vary constant: ranges, windows, frequencies, triangles, tensors of sizes,
``pad_sequence``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch.fx.experimental.symbolic_shapes import has_static_value, statically_known_true
from torch.overrides import TorchFunctionMode

from .torch_types import HALVES

_padded: Any = torch._C._nn.pad_sequence


class VaryingFactories(TorchFunctionMode):
    """While active, computes by other operators what such a function makes of sizes that vary.

    Ranges are computed for floating-point numbers, as eager's kernels do. That of ``linspace`` starts anew for each vector,
    so a number may be one rounding off. Windows are computed by eager's operators. In half precision a rounding is too far:
    sizes stay constant.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if (rule := _rule(function, args, named)) is not None:
            made = rule(*args, **{name: option for name, option in named.items() if name != "requires_grad"})
            return made.requires_grad_() if named.get("requires_grad") else made
        if function in (torch.tensor, torch.as_tensor) and _are_sizes(*args):
            numbers = torch.stack([torch.scalar_tensor(size, dtype=torch.int64) for size in args[0]])
            return numbers.to(device=named.get("device"), dtype=named.get("dtype"))
        if function is _padded and not has_static_value(sum(sequence.shape[0] for sequence in args[0])):
            return _pad_sequence(*args, **named)
        return function(*args, **named)


def _are_sizes(values: Any = None, *rest: Any) -> bool:
    """Whether ``torch.tensor`` is given a list of whole numbers of which one varies."""
    if rest or not isinstance(values, (list, tuple)) or not all(isinstance(each, (int, torch.SymInt)) for each in values):
        return False
    return any(isinstance(each, torch.SymInt) for each in values)


def _pad_sequence(
    sequences: list[torch.Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> torch.Tensor:
    longest: Any = 0
    for sequence in sequences:
        longest = torch.sym_max(longest, sequence.shape[0])
    rows = []
    for sequence in sequences:
        missing = longest - sequence.shape[0]
        sides = (0, missing) if padding_side == "right" else (missing, 0)
        rows.append(torch.nn.functional.pad(sequence, (0, 0) * (sequence.dim() - 1) + sides, value=padding_value))
    return torch.stack(rows, 0 if batch_first else 1)


def _rule(function: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Callable[..., torch.Tensor] | None:
    """What computes a range, a window or frequencies of a length that varies; None: the call is none."""
    if function in _RANGES and _varies(function, *args, **named):
        return _RANGES[function]
    if function in _TRIANGLES and _is_square(*args, **named):
        return _TRIANGLES[function]
    if function in _WINDOWS and _has_varying_length(args, named, "window_length"):
        return partial(_window, _WINDOWS[function])
    if function in _FREQUENCIES and _has_varying_length(args, named, "n"):
        return _FREQUENCIES[function]
    return None


def _has_varying_length(args: Sequence[Any], named: Mapping[str, Any], name: str) -> bool:
    """Whether a call asks for exact numbers, and for a length (its first argument, or ``name``) that varies."""
    return _is_exact(named) and not has_static_value(args[0] if args else named[name])


def _is_square(row: Any, col: Any, offset: int = 0, **options: Any) -> bool:
    """Whether a matrix has as many columns as rows, of a number that varies."""
    return not has_static_value(row) and statically_known_true(row == col)


def _tril_indices(
    row: Any, col: Any, offset: int = 0, *, dtype: Any = None, device: Any = None, layout: Any = None
) -> torch.Tensor:
    """Indices of a lower triangle, without the diagonals above ``offset``, which is at most 0."""
    if offset > 0:
        raise ValueError("tril_indices of a size that varies takes no positive offset: use triu_indices, or torch.tril of a mask")
    rows = torch.sym_max(row + offset, 0)
    return torch.stack(_triangle(rows, device), 0).add(torch.tensor([[-offset], [0]], device=device)).to(dtype or torch.int64)


def _triu_indices(
    row: Any, col: Any, offset: int = 0, *, dtype: Any = None, device: Any = None, layout: Any = None
) -> torch.Tensor:
    """Indices of an upper triangle, without the diagonals below ``offset``, which is at least 0."""
    if offset < 0:
        raise ValueError("triu_indices of a size that varies takes no negative offset: use tril_indices, or torch.triu of a mask")
    rows = torch.sym_max(row - offset, 0)
    i, j = _triangle(rows, device)  # an upper triangle is a lower one that is read backwards
    return torch.stack([rows - 1 - i.flip(0), row - 1 - j.flip(0)]).to(dtype or torch.int64)


def _triangle(rows: Any, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of the elements of a lower triangle, row by row. The square root is exact enough for 2**25 rows."""
    k = torch.arange(rows * (rows + 1) // 2, device=device)
    i = (((8 * k + 1).double().sqrt() - 1) / 2).floor().long()
    return i, k - i * (i + 1) // 2


_TRIANGLES: Final[Mapping[Any, Callable[..., torch.Tensor]]] = {
    torch.tril_indices: _tril_indices,
    torch.triu_indices: _triu_indices,
}


def _varies(function: Any, start: Any, end: Any, steps: Any, base: float = 10.0, *, out: Any = None, **options: Any) -> bool:
    plain = all(isinstance(number, (int, float, torch.SymInt, torch.SymFloat)) for number in (start, end))
    halves = function is torch.logspace and options.get("dtype") in HALVES
    return plain and out is None and (halves or _is_exact(options)) and not has_static_value(steps)


def _is_exact(options: Mapping[str, Any]) -> bool:
    """Whether a range is computed as precisely as eager's."""
    return (options.get("dtype") or torch.get_default_dtype()) in (torch.float32, torch.float64)


def _linspace(
    start: float,
    end: float,
    steps: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **layout: Any,
) -> torch.Tensor:
    options = {"dtype": dtype or torch.get_default_dtype(), "device": device}
    index = torch.arange(steps, device=device)
    step = torch.full((), end - start, **options) / torch.sym_max(steps - 1, 1)
    rising, falling = start + step * index, end - step * (steps - 1 - index)
    return torch.where(index < torch.sym_max(steps // 2, 1), rising, falling)


def _logspace(
    start: float,
    end: float,
    steps: Any,
    base: float = 10.0,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    **layout: Any,
) -> torch.Tensor:
    exponents = _linspace(start, end, steps, dtype=torch.float64, device=device)
    return torch.pow(base, exponents).to(dtype or torch.get_default_dtype())


_RANGES: Final[Mapping[Any, Callable[..., torch.Tensor]]] = {torch.linspace: _linspace, torch.logspace: _logspace}


def _fftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None, **layout: Any) -> torch.Tensor:
    index = torch.arange(n, dtype=dtype or torch.get_default_dtype(), device=device)
    step: float = 1.0 / (n * d)
    return torch.where(index < (n + 1) // 2, index, index - n) * step


def _rfftfreq(n: Any, d: float = 1.0, *, dtype: Any = None, device: Any = None, **layout: Any) -> torch.Tensor:
    step: float = 1.0 / (n * d)
    return torch.arange(n // 2 + 1, dtype=dtype or torch.get_default_dtype(), device=device) * step


_FREQUENCIES: Final[Mapping[Any, Callable[..., torch.Tensor]]] = {
    torch.fft.fftfreq: _fftfreq,
    torch.fft.rfftfreq: _rfftfreq,
}


def _window(
    rule: Callable[..., torch.Tensor],
    window_length: Any,
    periodic: bool = True,
    *parameters: float,
    dtype: torch.dtype | None = None,
    device: Any = None,
    layout: Any = None,
    pin_memory: Any = None,
    **named: float,
) -> torch.Tensor:
    """A window of a length that varies. A window of one number is 1."""
    length = window_length + 1 if periodic else window_length
    index = torch.arange(length, dtype=dtype or torch.get_default_dtype(), device=device)
    made = rule(index, torch.sym_max(length - 1, 1), *parameters, **named)[:window_length]
    is_one = torch.full((), window_length, dtype=torch.int64, device=device) == 1
    return torch.where(is_one, 1.0, made)


def _hamming(index: torch.Tensor, last: Any, alpha: float = 0.54, beta: float = 0.46) -> torch.Tensor:
    return torch.cos(index * (2 * math.pi / last)) * -beta + alpha


def _blackman(index: torch.Tensor, last: Any) -> torch.Tensor:
    angle = index * (math.pi / last)
    return torch.cos(angle * 4) * 0.08 - torch.cos(angle * 2) * 0.5 + 0.42


def _bartlett(index: torch.Tensor, last: Any) -> torch.Tensor:
    rising = index * (2.0 / last)
    return torch.where(torch.arange(index.shape[0], device=index.device) <= last // 2, rising, rising * -1 + 2)


def _kaiser(index: torch.Tensor, last: Any, beta: float = 12.0) -> torch.Tensor:
    middle = (torch.full((), last, dtype=torch.float64, device=index.device) / 2).to(index.dtype)
    most = torch.full((), beta, dtype=index.dtype, device=index.device)
    return (most * (1 - ((index - middle) / middle).square()).sqrt()).i0() / most.i0()


_WINDOWS: Final[Mapping[Any, Callable[..., torch.Tensor]]] = {
    torch.bartlett_window: _bartlett,
    torch.blackman_window: _blackman,
    torch.hamming_window: _hamming,
    torch.hann_window: lambda index, last: _hamming(index, last, 0.5, 0.5),
    torch.kaiser_window: _kaiser,
}
