"""Operators that torch has in C++ instead of some of ``prims``, which are functions of its Python.

A bundle has the former, so that a reader without Python finds them (spec/graph.md). The compiler has
the latter: its tables have no entry for the former.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

Call = tuple[Callable[..., Any] | str, tuple[Any, ...], dict[str, Any]]
"""An operator with its positional and named arguments."""

_CONVERT, _COPY = torch.ops.prims.convert_element_type.default, torch.ops.aten._to_copy.default
_REVERSE, _FLIP = torch.ops.prims.rev.default, torch.ops.aten.flip.default


def in_bundles(node: Node) -> Call:
    """The call of a node as a bundle has it."""
    if node.target is _CONVERT:
        tensor, dtype = (*node.args, *node.kwargs.values())
        return _COPY, (tensor,), {"dtype": dtype}
    return _FLIP if node.target is _REVERSE else node.target, node.args, node.kwargs


def in_compilers(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call of a bundle as the compiler has it."""
    if target is _COPY and kwargs.keys() == {"dtype"}:
        return _CONVERT, (*args, kwargs["dtype"]), {}
    return _REVERSE if target is _FLIP else target, args, kwargs
