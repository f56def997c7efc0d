"""Adapts torch's decompositions: core tables, traces of operators as simpler ones, and rules that
match eager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._library.custom_ops import _maybe_get_opdef
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ..fixes.applying import apply_fixes
from .aot_autograd import Decompositions


def all_decompositions() -> Decompositions:
    """Torch's decompositions of operators, those of its core set included."""
    found = {operator: rule for operator, rule in decomposition_table.items() if isinstance(operator, torch._ops.OpOverload)}
    return {**found, **core_aten_decompositions()}


def kernel_of(operator: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """The Python function of an operator (``torch.library.custom_op``) for all devices, to be traced in its place."""
    found = _maybe_get_opdef(operator)
    return None if found is None or None not in found._backend_fns else found._init_fn


def on_copies(operator: torch._ops.OpOverload, **arguments: Any) -> tuple[Any, ...]:
    """What ``CALL_ON_COPIES`` returns, by the operator's kernel: its results, then what it writes to, in copies.

    Raises:
        NotImplementedError: it has no kernel for all devices.
    """
    kernel = kernel_of(operator)
    if kernel is None:
        raise NotImplementedError
    names = [argument.name for argument in operator._schema.arguments if argument.alias_info and argument.alias_info.is_write]

    def compute(given: dict[str, Any]) -> tuple[Any, ...]:
        copies = {name: pytree.tree_map_only(torch.Tensor, torch.clone, given[name]) for name in names}
        result = kernel(**{**arguments, **copies})
        return (*(result if isinstance(result, tuple) else (result,)), *copies.values())

    found: tuple[Any, ...] = torch.func.functionalize(compute)({name: arguments[name] for name in names})
    return found


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
