"""The private torch APIs of decompositions: torch's own tables, and one operator as a graph of simpler ones.

Tried on: torch 2.13.0, 2.9.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from .autograd import Decompositions


def core_decompositions(also: Iterable[Any] = ()) -> Decompositions:
    """Torch's rules for what is not in its core set of operators, and for the operators ``also``."""
    return {**core_aten_decompositions(), **get_decompositions(list(also))}


def trace(function: Callable[..., Any], examples: Sequence[torch.Tensor], table: Decompositions) -> torch.fx.Graph:
    """The graph of ``function`` on fake tensors, whose fake mode must be on; its nodes carry ``meta["val"]``."""
    return make_fx(function, decomposition_table=dict(table))(*examples).graph
