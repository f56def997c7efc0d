"""Traces ``resize_as_`` and memory formats of ``resize_``. Rejects ``set_`` and ``resize_`` of a computed
tensor where a graph loses how results are related.

After ``d.set_(b)`` eager returns two tensors with one storage, and a graph returns one tensor
twice. After ``y.resize_()`` to fewer elements, views taken before are still views of ``y`` in
eager. In a graph ``y`` itself is a view of the old tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx.traceback
from torch._prims_common import suggest_memory_format
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...api.counting import count_call
from .overlaps import is_plain, memory_of


class StorageChangeError(Exception):
    """A model returns a tensor whose storage or size it has changed, and another one that shares memory with it.

    ``stack`` has the source lines of the change, as torch prints them.
    """

    def __init__(self, change: _Change) -> None:
        super().__init__(f"{change.name} changes a tensor that is returned beside another one with the same memory")
        self.stack = change.stack


class _Change(NamedTuple):
    name: str
    tensor: torch.Tensor
    shrinks: bool
    stack: str

    def is_lost(self, results: Sequence[torch.Tensor]) -> bool:
        """Whether a graph would lose how the results are related."""
        if self.name == "set_":
            return len([result for result in results if memory_of(result) == memory_of(self.tensor)]) > 1
        is_returned = any(result is self.tensor for result in results)
        return self.shrinks and is_returned and any(result._base is self.tensor for result in results)


class ResizeMode(TorchFunctionMode):
    """While active, expresses ``resize_as_``, and ``resize_`` with a memory format, by ``resize_`` and ``as_strided_``.

    Functionalization takes ``resize_as_`` for a write of values, and leaves out the format of both.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(function, "__name__", "").partition(".")[0], kwargs or {}
        format = kwargs.get("memory_format")
        if name == "resize_as_" and len(args) == 2:
            x, template = args
            sizes = template.shape
            format = suggest_memory_format(template) if format is torch.preserve_format else format
        elif name == "resize_" and format is not None and len(args) > 1:
            x, sizes = args[0], torch.Size(tree_leaves(args[1:]))
        else:
            return function(*args, **kwargs)
        count_call("aot-resize-as")
        x.resize_(sizes)
        if format in (None, torch.contiguous_format):
            return x
        return x.as_strided_(sizes, torch.empty(sizes, device="meta", memory_format=format).stride())


class StorageChangeMode(TorchFunctionMode):
    """While active, records changes of storages. :meth:`returned` checks them."""

    def __init__(self) -> None:
        super().__init__()
        self._changes: list[_Change] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(function, "__name__", "").partition(".")[0]
        if name not in ("set_", "resize_", "resize_as_") or len(args) < 2 or not is_plain(args[0]):
            return function(*args, **(kwargs or {}))
        sizes = args[1].shape if isinstance(args[1], torch.Tensor) else args[1:]
        shrinks = bool(math.prod(tree_leaves(sizes)) < args[0].numel())
        result = function(*args, **(kwargs or {}))
        self._changes.append(_Change(name, args[0], shrinks, "".join(torch.fx.traceback.format_stack())))
        return result

    def returned(self, results: Any) -> None:
        """Check the model's results, and forget the recorded changes.

        Raises:
            StorageChangeError: has the line of the change.
        """
        changes, self._changes = self._changes, []
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor) and is_plain(leaf)]
        for change in changes:
            if change.is_lost(tensors):
                raise StorageChangeError(change)
