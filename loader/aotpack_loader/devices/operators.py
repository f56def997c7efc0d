"""Finds the operators that a graph names, and restricts which ones a bundle may use.

A bundle may use only mathematical operators:

* functional operators of ATen and prims, except those that check no bounds or reach past their
  arguments;
* built-ins of the format;
* other namespaces that the program declares and the caller has allowed.

This limits what an unknown bundle can do. It is not a sandbox (spec/security.md).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from typing import Any, Final

import torch

from .._torch_compat import is_dispatched, register_lazy_operators
from ..errors import CorruptBundleError, Problem, TrustError, UnsupportedVersionError
from ..format import schema
from . import control_flow, operator_arguments
from .generator import exchange_random_state, random_state

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
    "round": round,
    "sqrt": math.sqrt,
    "random_state": random_state,
    "exchange_random_state": exchange_random_state,
}
"""Operations on sizes, tuples and the random state, by their name after ``builtin.``; :func:`implementation` bounds them."""

_LIMIT: Final = 2**63
_NUMBERS: Final = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)
_MAX_EXPONENT: Final = 64
_MAX_DIGITS: Final = 400
"""The least and the largest float have fewer."""


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` restricted to numbers, with 64-bit integers as input and output.

    Python's own operators would also format strings, repeat lists, and compute powers that exhaust
    the memory.
    """

    def run(*operands: Any) -> Any:
        for operand in operands:
            if not isinstance(operand, _NUMBERS) or (isinstance(operand, int) and not -_LIMIT <= operand < _LIMIT):
                raise _bad_builtin(name, operands, "an operand is no 64-bit number")
        if function is operator.pow and operands[1] > _MAX_EXPONENT and isinstance(operands[0], int):
            raise _bad_builtin(name, operands, f"the exponent is larger than {_MAX_EXPONENT}")
        if function is round and len(operands) > 1 and abs(operands[1]) > _MAX_DIGITS:  # of 10**-digits
            raise _bad_builtin(name, operands, f"it has more than {_MAX_DIGITS} digits")
        try:
            result = function(*operands)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise _bad_builtin(name, operands, str(error)) from error
        if isinstance(result, int) and not -_LIMIT <= result < _LIMIT:
            raise _bad_builtin(name, operands, "the result is no 64-bit number")
        return result

    return run


def _getitem(values: Any, position: Any) -> Any:
    """Element ``position`` of the results of an operator with several results."""
    if not isinstance(values, (tuple, list)) or type(position) is not int or not 0 <= position < len(values):
        raise _bad_builtin("getitem", (values, position), "there is no such element")
    return values[position]


def _bad_builtin(name: str, operands: tuple[Any, ...], message: str) -> CorruptBundleError:
    kinds = ", ".join(type(operand).__name__ for operand in operands)
    return CorruptBundleError(f"A graph cannot compute builtin.{name}({kinds}): {message}.")


_BOUNDED: Final[dict[str, Callable[..., Any]]] = {
    **{name: _bounded(name, function) for name, function in BUILTINS.items()},
    "getitem": _getitem,
    "random_state": random_state,
    "exchange_random_state": exchange_random_state,
}


def _convert(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    converted: torch.Tensor = torch.ops.aten._to_copy.default(value, dtype=dtype)
    return converted


def _iota(
    length: int, *, start: int, step: int, dtype: torch.dtype, device: torch.device, requires_grad: bool = False
) -> torch.Tensor:
    return torch.arange(start, start + length * step, step, dtype=dtype, device=device)


def _fma(a: torch.Tensor, b: torch.Tensor | float, c: torch.Tensor) -> torch.Tensor:
    return torch.addcmul(c, a, b) if isinstance(b, torch.Tensor) else torch.add(c, a, alpha=b)


STAND_INS: dict[str, Callable[..., Any]] = {
    "prims.convert_element_type.default": _convert,
    "prims.iota.default": _iota,
    "prims.fma.default": _fma,
    "aten.view.default": torch.reshape,
}
"""What stands in for operators that torch implements in Python, as the first call of one of those imports Dynamo; and for
``view``, because some operators return other strides than they were traced with."""

MATH_NAMESPACES: Final = frozenset({"aten", "prims"})
TORCH_NAMESPACES: Final = frozenset({
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test", "_native", "_native_aot", "_quantized",
    "_test", "c10d", "c10d_functional", "coor", "cuda", "debug_mode_ops", "debugprims", "export", "flex_gemm", "fsdp",
    "higher_order", "inductor", "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx", "prepacked", "prim",
    "profiler", "quantization", "quantized", "rngprims", "sparse", "static_runtime", "streams", "symm_mem", "tensorexpr",
    "user", "xnnpack",
})  # fmt: skip
"""Namespaces of torch's own operators that are not mathematics.

Many rely on valid arguments, so they are always refused.
"""

_UNSAFE: Final = frozenset({
    "_convert_indices_from_coo_to_csr", "_convert_indices_from_csr_to_coo", "_copy_from",
    "_copy_from_and_resize", "_index_put_impl", "_pin_memory", "_print", "_reshape_alias", "_reshape_alias_copy",
    "_resize_output", "_unpack_dual", "_version", "backward", "data_ptr", "dist_backward", "from_file", "load", "pin_memory",
    "record_stream", "resize", "resize_as", "retain_grad", "save", "set", "set_data", "warn",
})  # fmt: skip
"""Operators that are functional by their schema, but check no bounds or reach past their arguments."""
_UNSAFE_PARTS: Final = ("sparse", "nested", "jagged", "to_mkldnn", "fbgemm", "_plan_cache", "_test_", "_foobar")
"""Parts of the names of further refused operators.

They use other layouts than strided ones, packed weights or global state, or belong to torch's own
tests.
"""


def require_consent(declared: Collection[str], agreed: Collection[str], untrusted: str) -> None:
    """Refuse namespaces beyond torch's own that the caller did not allow.

    Args:
        declared: what the program requires. It is the claim of an unknown author, never a
            permission.
        agreed: what the caller allowed.
        untrusted: why the bundle as a whole is not trusted; empty if it is.

    Raises:
        CorruptBundleError: it requires a namespace that no bundle may use.
        TrustError: the caller has not allowed it; explains how.
    """
    refused = sorted(TORCH_NAMESPACES.intersection(declared))
    if refused:
        raise CorruptBundleError(f"The bundle requires operators of {', '.join(refused)}, which bundles may not use.")
    missing = sorted(set(declared) - MATH_NAMESPACES - set(agreed))
    if missing and untrusted:
        spelled = ", ".join(repr(name) for name in sorted({*missing, *agreed}))
        raise TrustError(
            "The graphs of this bundle call operators that torch itself does not have, and nothing says that they may.",
            [Problem(name, f"not agreed to, and the bundle is not trusted: {untrusted}") for name in missing],
            hint=f"If you know these packages, pass load(…, operators=({spelled},)), or trust the bundle: trust=….",
        )


def require(names: Iterable[str]) -> None:
    """Check that this process has the operators called ``names`` (``namespace.name.overload``).

    Raises:
        UnsupportedVersionError: lists the missing operators.
    """
    missing = sorted({name for name in names if _find(name) is None})
    for space in {name.partition(".")[0] for name in missing}:
        register_lazy_operators(space)
    if missing := [name for name in missing if _find(name) is None]:
        spaces = ", ".join(sorted({name.partition(".")[0] for name in missing}))
        raise UnsupportedVersionError(
            "This bundle calls operators that this process does not have.",
            [Problem(name, "not registered") for name in missing],
            hint=f"Import the package that registers {spaces} before load(), or use the torch release the bundle asks for.",
        )


def _find(name: str) -> object | None:
    """What torch has under the name of an operator; None if nothing."""
    space, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    return getattr(getattr(getattr(torch.ops, space), packet, None), overload, None)


def is_registered(name: str) -> bool:
    """Whether torch has an operator of that name in this process."""
    return _find(name) is not None


def resolve(name: str, declared: Collection[str] = ()) -> Callable[..., Any]:
    """The operator called ``name``. ``declared`` are further namespaces that are allowed.

    These operators may write to their arguments; :func:`implementation` then passes copies.

    Raises:
        CorruptBundleError: a graph may not use this name.
        UnsupportedVersionError: this process does not have the operator.
    """
    space, _, rest = name.partition(".")
    if space == "builtin":
        if rest not in BUILTINS:
            raise CorruptBundleError(f"A graph uses {name}, which is no built-in of the format.")
        return BUILTINS[rest]
    if space in MATH_NAMESPACES:
        return _math_operator(name)
    if space not in declared or space in TORCH_NAMESPACES:
        raise CorruptBundleError(f"A graph uses the operator {name}, which bundles may not use.")
    return _operator(name)


@lru_cache(maxsize=4096)
def _math_operator(name: str) -> torch._ops.OpOverload:
    """An operator of ``aten`` or ``prims``: these stay what they are, and most graphs call few of them often."""
    return _operator(name)


def _operator(name: str) -> torch._ops.OpOverload:
    space, _, rest = name.partition(".")
    packet = rest.rpartition(".")[0]
    refusal = CorruptBundleError(f"A graph uses the operator {name}, which bundles may not use.")
    if not packet or (space in MATH_NAMESPACES and (packet in _UNSAFE or any(part in packet for part in _UNSAFE_PARTS))):
        raise refusal
    found = _find(name)
    if found is None:
        raise UnsupportedVersionError(
            f"A graph uses the operator {name}, which torch {torch.__version__} does not have here.",
            hint="Import the package that registers it, or use the torch release the bundle asks for.",
        )
    # torch.ops also has TorchScript's operators (on strings, lists, dictionaries, files), outside
    # the dispatcher.
    if not isinstance(found, torch._ops.OpOverload) or not is_dispatched(found):
        raise refusal
    if found._schema.is_mutable and (space in MATH_NAMESPACES or any(r.alias_info is not None for r in found._schema.returns)):
        raise refusal
    return found


def resolve_view(name: str) -> torch._ops.OpOverload:
    """The operator called ``name``, whose result is a view of its first argument.

    Raises:
        CorruptBundleError: it is another kind of operator, or a name a graph may not use.
        UnsupportedVersionError: this process does not have the operator.
    """
    function = resolve(name)
    if not isinstance(function, torch._ops.OpOverload) or not function._schema.arguments or function._schema.is_mutable:
        raise CorruptBundleError(f"{name} is no view operation.")
    if function._schema.arguments[0].alias_info is None:
        raise CorruptBundleError(f"{name} is no view operation.")
    return function


def view_step(step: schema.ViewStep) -> torch._ops.OpOverload:
    """The operator of a step of view replay, whose arguments fit it.

    Raises:
        CorruptBundleError, UnsupportedVersionError: as :func:`resolve_view`; or arguments do not fit.
    """
    operator = resolve_view(step.op)
    operator_arguments.check_view(step, operator)
    return operator


def implementation(name: str, declared: Collection[str] = ()) -> Callable[..., Any]:
    """The function that computes ``name`` here: the operator, its replacement, a built-in or control flow.

    Raises:
        CorruptBundleError, UnsupportedVersionError: as :func:`resolve`.
    """
    if name.startswith("builtin."):
        return _BOUNDED.get(name.removeprefix("builtin.")) or resolve(name)
    if name.startswith("higher_order."):
        return _higher_order(name)
    return STAND_INS.get(name) or _functional(resolve(name, declared))


def check_arguments(node: schema.Node, declared: Collection[str] = ()) -> None:
    """Compare the arguments of a node with the schema of its operator (G11).

    Built-ins check their operands when they run, and control flow is checked by rule G7.

    Raises:
        CorruptBundleError, UnsupportedVersionError: as :func:`resolve`, or lists the arguments that do not fit.
    """
    if node.op.partition(".")[0] in ("builtin", "higher_order"):
        if node.kwargs:
            raise CorruptBundleError(f"G11: the node {node.name!r} names arguments of {node.op}, which takes none by name.")
        return
    if node.op in STAND_INS and _find(node.op) is None:
        return  # the compiler registers it (prims.fma); what stands in for it takes its arguments by name
    operator = resolve(node.op, declared)
    if isinstance(operator, torch._ops.OpOverload):
        operator_arguments.check(node.name, operator, node.args, node.kwargs)


def _functional(operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator as a function of values.

    If it writes to arguments, it gets copies, which are returned after its results.
    """
    if not isinstance(operator, torch._ops.OpOverload) or not operator._schema.is_mutable:
        return operator
    names = [argument.name for argument in operator._schema.arguments]
    written = [a.name for a in operator._schema.arguments if a.alias_info is not None and a.alias_info.is_write]

    def call(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        given |= {name: _copied(given[name]) for name in written if name in given}
        results = operator(**given)
        return (*(results if isinstance(results, tuple) else (results,)), *(given.get(name) for name in written))

    return call


def _copied(value: Any) -> Any:
    """A tensor or a list of tensors, copied to new memory with the same strides."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)
    return [_copied(item) for item in value] if isinstance(value, (list, tuple)) else value


def _higher_order(name: str) -> Callable[..., Any]:
    if name not in control_flow.OPERATORS:
        raise UnsupportedVersionError(
            f"A graph uses the operator {name}, which this loader does not have.",
            hint="Use a newer aotpack-loader, or another target of the bundle.",
        )
    return control_flow.OPERATORS[name]
