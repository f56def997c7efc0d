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
_IOTA, _RANGE = torch.ops.prims.iota.default, torch.ops.aten.arange.start_step


def in_bundles(node: Node) -> Call:
    """The call of a node as a bundle has it."""
    if node.target is _CONVERT:
        tensor, dtype = (*node.args, *node.kwargs.values())
        return _COPY, (tensor,), {"dtype": dtype}
    if node.target is _IOTA:
        (length,), start, step = node.args, node.kwargs["start"], node.kwargs["step"]
        kinds = {name: node.kwargs[name] for name in ("dtype", "device")}
        if (start, step) == (0, 1):
            return _RANGE, (0, length, 1), kinds
        if isinstance(length, int) and isinstance(start, int) and isinstance(step, int):
            return _RANGE, (start, start + length * step, step), kinds
    return _FLIP if node.target is _REVERSE else node.target, node.args, node.kwargs


def in_compilers(target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call of a bundle as the compiler has it."""
    if target is _COPY and kwargs.keys() == {"dtype"}:
        return _CONVERT, (*args, kwargs["dtype"]), {}
    if target is _RANGE and kwargs.keys() == {"dtype", "device"}:
        start, end, step = args
        if (start, step) == (0, 1) and isinstance(end, int | Node):
            return _IOTA, (end,), {"start": 0, "step": 1, **kwargs, "requires_grad": False}
        if all(isinstance(one, int) for one in args):
            return _IOTA, (len(range(start, end, step)),), {"start": start, "step": step, **kwargs, "requires_grad": False}
    return _REVERSE if target is _FLIP else target, args, kwargs
