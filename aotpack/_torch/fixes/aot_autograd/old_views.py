"""Rejects writes through a view whose base has changed its shape since: traces give them wrong
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...api.writes import written
from ..applying import count_call

_RESHAPING = frozenset(("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"))


class OldViewError(Exception):
    """The model writes through a view that was created before its base changed its shape in place."""


class OldViewMutationMode(TorchFunctionMode):
    """While active, rejects a write through such a view if gradients are recorded.

    Torch takes the view again from the changed base: ``v = y[0]; y.t_(); v.mul_(2)`` gives the
    gradient of a column.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changed: dict[int, torch.Tensor] = {}  # holds the tensors, so that ids are not reused
        self._later: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._changed and torch.is_grad_enabled():
            for tensor in written(function, args, kwargs):
                if tensor._base is not None and id(tensor._base) in self._changed and id(tensor) not in self._later:
                    count_call("aot-views-of-before")
                    raise OldViewError("writes through a view that was created before the sizes of its base changed in place")
        result = function(*args, **kwargs)
        name = getattr(function, "__name__", "").partition(".")[0]
        if name in _RESHAPING and isinstance(args[0], torch.Tensor) and args[0]._base is None:
            self._changed[id(args[0])] = args[0]
        elif self._changed:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf._base is not None and id(leaf._base) in self._changed:
                    self._later[id(leaf)] = leaf
        return result
