"""Rejects uses of ``reshape`` with dynamic sizes for which a graph copies and eager may return a
view.

In a graph ``reshape`` copies unless it is a view for all sizes. In eager it copies only if it
cannot be a view. The difference matters if the copy or its source is written to later, or if both
are visible outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_impls import _compute_stride
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...api.fake_tensors import hint_of
from ...api.writes import written
from .overlaps import is_plain, memory_of

_RESHAPES = {"reshape", "reshape_as", "flatten", "ravel"}


class ReshapedError(Exception):
    """Eager returns a view, and the graph a copy."""

    def __init__(self, why: str) -> None:
        super().__init__(f"reshape returns a view at these sizes and a copy at others, and {why}; use view(), or clone() first")


class _Copy(NamedTuple):
    source: torch.Tensor
    result: torch.Tensor

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor shares memory with the source or the result."""
        return memory_of(tensor) in (memory_of(self.source), memory_of(self.result))

    def settle(self, why: str) -> None:
        """Require that eager copies too: guards exclude sizes at which ``reshape`` is a view.

        Raises:
            ReshapedError: the example has such sizes.
        """
        shape, stride, target = self.source.shape, self.source.stride(), self.result.shape
        at_the_example = [list(map(hint_of, sizes)) for sizes in (shape, stride, target)]
        if _compute_stride(at_the_example[0], at_the_example[1], at_the_example[2]) is not None:
            raise ReshapedError(why)
        _compute_stride(shape, stride, target)


class ReshapeAliasMode(TorchFunctionMode):
    """While active, records the copies that ``reshape`` makes, and guards or rejects them if
    eager's view would differ.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: list[_Copy] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in written(function, args, kwargs) if self._copies else ():
            if is_plain(tensor):
                self._settle([copy for copy in self._copies if copy.is_of(tensor)], "the model writes to one of them")
        result = function(*args, **kwargs)
        if getattr(function, "__name__", "").partition(".")[0] in _RESHAPES and isinstance(result, torch.Tensor):
            source = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
            copied = is_plain(source) and is_plain(result) and memory_of(source) != memory_of(result)
            if copied and any(map(is_symbolic, (*source.shape, *source.stride(), *result.shape))):
                self._copies.append(_Copy(source, result))
        return result

    def returned(self, results: Any, inputs: Iterable[Any]) -> None:
        """Check the model's results and inputs, and forget the recorded copies."""
        seen = [leaf for leaf in tree_leaves((results, inputs)) if isinstance(leaf, torch.Tensor) and is_plain(leaf)]
        storages = set(map(memory_of, seen))
        self._settle(
            [copy for copy in self._copies if {*map(memory_of, copy)} <= storages],
            "the model returns both, or one is an argument and the other a result",
        )
        self._copies.clear()

    def _settle(self, copies: Sequence[_Copy], why: str) -> None:
        self._copies = [copy for copy in self._copies if all(copy is not one for one in copies)]
        for copy in copies:
            copy.settle(why)
