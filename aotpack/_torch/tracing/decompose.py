"""Adapts torch's decompositions: core tables, traces of operators as simpler ones, and rules that
match eager.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch.fx.experimental.proxy_tensor import make_fx

from ..fixes.applying import apply_fixes
from .aot_autograd import Decompositions


def all_decompositions() -> Decompositions:
    """Torch's decompositions of operators, those of its core set included."""
    found = {operator: rule for operator, rule in decomposition_table.items() if isinstance(operator, torch._ops.OpOverload)}
    return {**found, **core_aten_decompositions()}


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
