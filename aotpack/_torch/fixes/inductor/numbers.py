"""Fixes of numerical results of Inductor's code: types, rounding, quotients, powers, averages."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._inductor import bounds, index_propagation, ir, lowering, virtualized
from torch._inductor.codegen import common, cpp
from torch.utils._python_dispatch import _disable_current_modes

from ...api.patching import hooked, patched, with_items
from ...api.torch_types import HALVES
from ..applying import counted


@contextlib.contextmanager
def keep_bytes() -> Iterator[None]:
    """Return a byte from ``abs`` of a byte: C++ returns an ``int``, 128 where eager returns -128."""
    absolute: Callable[[Any], str] = cpp.CppOverrides.abs

    def absolute_in_type(x: Any) -> str:
        return f"static_cast<std::decay_t<decltype({x})>>({absolute(x)})"

    with patched("inductor-abs-of-bytes", cpp.CppOverrides, "abs", absolute_in_type):
        yield


@contextlib.contextmanager
def wrap_bytes() -> Iterator[None]:
    """Cast numbers to ``int8`` by way of ``int32``, as eager does: 200 gives -56. Inductor's vectors clamp."""
    convert: Callable[..., Any] = cpp.CppVecOverrides.to_dtype

    def wrapped(x: Any, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        if dtype == torch.int8 and x.dtype.is_floating_point:
            x = convert(x, torch.int32)
            x.dtype = torch.int32
        return convert(x, dtype, *args, **kwargs)

    with patched("inductor-casts-to-bytes", cpp.CppVecOverrides, "to_dtype", wrapped):
        yield


@contextlib.contextmanager
def keep_small_and_large_values() -> Iterator[None]:
    """Compute ``expm1`` and ``atanh`` of values near 0, and ``acosh`` of large ones, to the last digits.

    Inductor's vectors subtract numbers near 1, and square. ``expm1`` near 0 is its Taylor series.
    """
    cosine: Callable[[Any], str] = cpp.CppVecOverrides.acosh

    def expm1(x: Any) -> str:
        if x.dtype == torch.float64:
            return f"{x}.expm1()"
        series = _of(x, 1 / 720)
        for number in (120, 24, 6, 2, 1):
            series = f"({_of(x, 1 / number)} + {x} * {series})"
        return f"decltype({x})::blendv({x}.exp() - {_of(x, 1)}, {x} * {series}, {x}.abs() < {_of(x, 0.25)})"

    def atanh(x: Any) -> str:
        return f"{_of(x, 0.5)} * (({x} + {x}) / ({_of(x, 1)} - {x})).log1p()"

    def acosh(x: Any) -> str:
        return f"decltype({x})::blendv({cosine(x)}, {x}.log() + {_of(x, math.log(2))}, {x} > {_of(x, 1e18)})"

    fix, vectors = "inductor-small-values", cpp.CppVecOverrides
    with (
        patched(fix, vectors, "expm1", expm1),
        patched(fix, vectors, "atanh", atanh),
        patched(fix, vectors, "acosh", acosh),
    ):
        yield


def _of(x: Any, number: float) -> str:
    """The C++ text of a vector of the type of ``x``."""
    return f"decltype({x})({number!r})"


@contextlib.contextmanager
def round_casts() -> Iterator[None]:
    """Round a value that a graph casts to half precision, also for readers in the same loop."""
    fix = "inductor-casts-round"
    operator = torch.ops.prims.convert_element_type.default
    convert: Callable[..., Any] = lowering.lowerings[operator]

    def rounded(x: Any, dtype: torch.dtype) -> Any:
        if dtype in HALVES and x.get_dtype() in (torch.float32, torch.float64):
            return lowering.to_dtype(x, dtype, copy=True, use_compute_types=False)
        return convert(x, dtype)

    with (
        with_items(fix, lowering, "lowerings", {operator: counted(fix, rounded)}),
        hooked(fix, cpp.CppKernel, "cache_dtype_convert", lambda *given: None),
    ):
        yield


@contextlib.contextmanager
def round_constants() -> Iterator[None]:
    """Round constants to their types, and cast indices to smaller types in the compiled loop.

    Inductor computes with both as expressions of sizes, which keep all digits and are the same number after a cast.
    Such expressions do not take infinity and NaN: the compiled loop computes with these.
    """
    fix = "inductor-constants-as-expressions"
    analysis = bounds.ValueRangeAnalysis
    bounded: Callable[..., Any] = analysis.constant
    propagate: Callable[..., Any] = index_propagation.IndexPropagation.propagate_sympy
    made: Callable[..., None] = index_propagation.TypedExpr.__post_init__
    convert: Callable[..., Any] = index_propagation.SymPyOps.to_dtype

    def rounded(number: Any) -> None:
        made(number)
        if number.dtype.is_floating_point and number.is_constant():
            with _disable_current_modes():
                number.expr = torch.tensor(float(number.expr), dtype=torch.float64).to(number.dtype).item()

    def widened(number: Any, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
        wide = {number.dtype, dtype} <= _INTEGERS and dtype.itemsize >= number.dtype.itemsize
        return convert(number, dtype, *args, **kwargs) if wide or number.is_constant() else NotImplemented

    def finite(self: Any, name: str, args: Any, given: Any) -> Any:
        found = propagate(self, name, args, given)
        number = found.value if getattr(found, "is_symbolic", False) else None
        if number is None or not number.is_constant() or math.isfinite(number.expr):
            return found
        return self.fallback(name, (float(number.expr), *args[1:]) if name == "constant" else args, given)

    def bounded_if_finite(value: Any, dtype: torch.dtype) -> Any:
        return bounded(math.nan if isinstance(value, float) and math.isinf(value) else value, dtype)

    with (
        patched(fix, analysis, "constant", bounded_if_finite),
        patched(fix, index_propagation.IndexPropagation, "propagate_sympy", finite),
        patched(fix, index_propagation.TypedExpr, "__post_init__", rounded),
        patched(fix, index_propagation.SymPyOps, "to_dtype", widened),
    ):
        yield


_INTEGERS = {torch.int8, torch.int16, torch.int32, torch.int64}


@contextlib.contextmanager
def pass_doubles() -> Iterator[None]:
    """Pass real numbers that are read from tensors (``x.sum().item()``) as ``double``; Inductor
    passes ``float``.
    """
    defined: Callable[..., Any] = common.KernelArgs.cpp_argdefs

    def in_double(arguments: common.KernelArgs, *given: Any) -> Any:
        names, calls, types = defined(arguments, *given)
        names = [name.replace("const float ", "const double ") for name in names]
        return names, calls, ["const double" if kind == "const float" else kind for kind in types]

    with patched("inductor-numbers-as-float", common.KernelArgs, "cpp_argdefs", in_double):
        yield


@contextlib.contextmanager
def round_quotients_down() -> Iterator[None]:
    """Round quotients of real numbers down by their remainders, as eager does: ``0.5 // 0.1`` is 4,
    for 0.1 is a little more.

    Inductor rounds the quotient itself, whose nearest number is 5.
    """
    ops = virtualized.ops

    def quotient(a: Any, b: Any) -> Any:
        dtype = next(value.get_dtype() for value in (a, b) if isinstance(value, ir.IRNode))

        def rounded(a: Any, b: Any) -> Any:
            zero, half, one = (ops.constant(number, dtype) for number in (0, 0.5, 1))
            rest = ops.fmod(a, b)
            whole, plain = ops.truediv(ops.sub(a, rest), b), ops.div_rn(a, b)
            whole = ops.where(ops.lt(ops.mul(rest, ops.copysign(one, b)), zero), ops.sub(whole, one), whole)
            below = ops.floor(whole)
            nearest = ops.where(ops.gt(ops.sub(whole, below), half), ops.add(below, one), below)
            nearest = ops.where(ops.ne(whole, zero), nearest, ops.mul(plain, zero))
            nearest = ops.where(ops.eq(ops.sub(a, a), zero), ops.where(ops.isinf(plain), plain, nearest), nearest)
            return ops.where(ops.eq(b, zero), plain, nearest)

        return lowering.make_pointwise(rounded)(a, b)

    def floored(a: Any, b: Any) -> Any:
        return lowering.floor(quotient(a, b))

    # From torch 2.14 on, one function computes all of it, and ``_div_rn`` is not called any more.
    whole = hasattr(lowering, _FLOORS)
    name, function = (_FLOORS, floored) if whole else ("_div_rn", quotient)
    with patched("inductor-floor-division", lowering, name, function):
        yield


_FLOORS = "_floor_div_floating"


@contextlib.contextmanager
def keep_type_of_powers() -> Iterator[None]:
    """Compute powers of a whole number (``2 ** k``) with the number as a tensor.

    AOTInductor passes numbers as ``double``. The result is then ``float32``, which has too few
    digits.
    """

    def power(number: Any, exponent: Any) -> Any:
        base = lowering.full([], number, dtype=exponent.get_dtype(), device=exponent.get_device())
        return lowering.fallback_pow_tensor_tensor(base, exponent)

    with patched("inductor-powers-of-a-number", lowering, "fallback_pow_scalar", power):
        yield
