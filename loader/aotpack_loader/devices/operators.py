"""Names of operators and literals in a graph, to what this process has for them.

Only mathematics is reachable: ATen's and prims' operators less the few that touch files, processes or raw memory, the format's
own built-ins, and namespaces that the program declares and the caller has registered.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection
from typing import Any

import torch

from ..errors import CorruptBundleError, UnsupportedVersionError
from ..format import schema

BUILTINS: dict[str, Callable[..., Any]] = {
    "getitem": operator.getitem,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "truediv": operator.truediv,
    "mod": operator.mod,
    "neg": operator.neg,
    "pow": operator.pow,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "and": operator.and_,
    "or": operator.or_,
    "sym_max": torch.sym_max,
    "sym_min": torch.sym_min,
    "sym_not": torch.sym_not,
    "sym_int": torch.sym_int,
    "sym_float": torch.sym_float,
    "sym_ite": torch.sym_ite,
    "ceil": math.ceil,
    "floor": math.floor,
    "trunc": math.trunc,
}
"""Operations on sizes and tuples, by their name after ``builtin.``."""


def _convert(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    converted: torch.Tensor = torch.ops.aten._to_copy.default(value, dtype=dtype)
    return converted


def _iota(
    length: int, *, start: int, step: int, dtype: torch.dtype, device: torch.device, requires_grad: bool = False
) -> torch.Tensor:
    return torch.arange(start, start + length * step, step, dtype=dtype, device=device)


def _fma(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(c, a, b)


STAND_INS: dict[str, Callable[..., Any]] = {
    "prims.convert_element_type.default": _convert,
    "prims.iota.default": _iota,
    "prims.fma.default": _fma,
}
"""What stands in for operators that torch implements in Python: the first call of one of those imports Dynamo."""

MATH_NAMESPACES = frozenset({"aten", "prims"})
_FORBIDDEN = frozenset({"from_file", "save", "load", "_print", "set_data", "data_ptr", "record_stream", "to_mkldnn"})


def resolve(name: str, declared: Collection[str] = ()) -> Callable[..., Any]:
    """The operator called ``name``; ``declared`` are the extra namespaces the program requires.

    Raises:
        CorruptBundleError: a name a graph may not use.
        UnsupportedVersionError: an operator this process does not have.
    """
    space, _, rest = name.partition(".")
    if space == "builtin":
        if rest not in BUILTINS:
            raise CorruptBundleError(f"A graph uses {name}, which is no built-in of the format.")
        return BUILTINS[rest]
    packet, _, overload = rest.rpartition(".")
    if (space not in MATH_NAMESPACES and space not in declared) or packet in _FORBIDDEN or not packet:
        raise CorruptBundleError(f"A graph uses the operator {name}, which bundles may not use.")
    try:
        found = getattr(getattr(getattr(torch.ops, space), packet), overload)
    except AttributeError as error:
        raise UnsupportedVersionError(
            f"A graph uses the operator {name}, which torch {torch.__version__} does not have here.",
            hint="Import the package that registers it, or use the torch release the bundle asks for.",
        ) from error
    if not isinstance(found, torch._ops.OpOverload):
        raise CorruptBundleError(f"A graph uses {name}, which is no operator.")
    return found


def implementation(name: str, declared: Collection[str] = ()) -> Callable[..., Any]:
    """What computes the operator called ``name`` here: the operator itself, or its stand-in.

    Raises:
        CorruptBundleError, UnsupportedVersionError: as :func:`resolve`.
    """
    return STAND_INS.get(name) or resolve(name, declared)


def literal(arg: Any, device: torch.device | None = None) -> Any:
    """The Python value of a literal argument; ``device`` replaces the device a graph was traced for."""
    if isinstance(arg, schema.FloatArg):
        return float(arg.value)
    if isinstance(arg, schema.ComplexArg):
        return complex(float(arg.real), float(arg.imag))
    if isinstance(arg, (schema.DTypeArg, schema.LayoutArg, schema.MemoryFormatArg)):
        return getattr(torch, arg.value)
    if isinstance(arg, schema.DeviceArg):
        return torch.device(arg.value) if device is None else device
    return arg
