"""Compares the model's calls at several sizes, to find out whether they are one program.

A model that tests whether a size is 1 may do something else there. Or it may do the same with
other calls, for example with an ``expand`` only where one is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

_SILENT = ("__get__", "_set_grad_enabled", "set_grad_enabled", "size", "dim", "is_contiguous", "stride", "numel")
_SAME_ELEMENTS = (
    *("view", "view_as", "reshape", "reshape_as", "flatten"),
    *("expand", "expand_as", "squeeze", "unsqueeze", "contiguous"),
)
"""Functions whose result has the same elements as their first argument, in the same order.

A model may omit such calls.
"""

Call = tuple[str, tuple[Any, ...]]


class Calls(TorchFunctionMode):
    """Records the torch functions that a run calls, with their arguments.

    Tensors are named by the call that made them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Call] = []
        self._names: dict[int, tuple[str, torch.Tensor]] = {}

    def begin(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Name the model's inputs: its arguments, parameters and buffers."""
        self._names = {id(tensor): (name, tensor) for name, tensor in inputs.items()}

    def returned(self, result: Any) -> None:
        """Record what the run returns."""
        self.made.append(("return", tuple(map(self._record_of, pytree.tree_leaves(result)))))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        leaves = [part for leaf in pytree.tree_leaves((args, kwargs)) for part in _parts(leaf)]
        results = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if name in _SAME_ELEMENTS and leaves and isinstance(leaves[0], torch.Tensor):
            for tensor in results:
                self._names.setdefault(id(tensor), (self._record_of(leaves[0]), tensor))
        elif name not in _SILENT or any(isinstance(leaf, torch.Tensor) for leaf in results):
            self.made.append((name, tuple(map(self._record_of, leaves))))
        for i, tensor in enumerate(results):
            self._names.setdefault(id(tensor), (f"{name} {len(self.made)}.{i}", tensor))
        return result

    def _record_of(self, value: Any) -> Any:
        """Return the record of an argument: a number itself, or a tensor's name."""
        if isinstance(value, torch.Tensor):
            return self._names.setdefault(id(value), (f"tensor {len(self._names)}", value))[0]
        return value if isinstance(value, (int, float)) else str(value)


def _parts(leaf: Any) -> Sequence[Any]:
    return (leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else (leaf,)


def is_one_program(runs: Sequence[tuple[int, Sequence[Call]]]) -> bool:
    """Whether runs at three sizes make the same calls.

    Numbers must be equal, or linear functions of the size.
    """
    (a, first), (b, second), (c, third) = runs
    if not len(first) == len(second) == len(third):
        return False
    for one, two, three in zip(first, second, third, strict=True):
        if one[0] != two[0] or two[0] != three[0] or not len(one[1]) == len(two[1]) == len(three[1]):
            return False
        for x, y, z in zip(one[1], two[1], three[1], strict=True):
            numbers = all(isinstance(value, (int, float)) for value in (x, y, z))
            if not (x == y == z or (numbers and (z - y) * (b - a) == (y - x) * (c - b))):
                return False
    return True
