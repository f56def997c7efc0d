"""What calls of an untrusted bundle do in addition: its description may be wrong wherever torch notices it late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import AotpackError, OperatorError


class Copy:
    """The elements, sizes and strides of a tensor before a call writes to it."""

    def __init__(self, owner: torch.Tensor) -> None:
        self._owner, self._values = owner, owner.detach().clone()
        self._geometry = owner.shape, owner.stride(), owner.storage_offset()

    def restore(self) -> None:
        """Give the tensor what it had."""
        with torch.no_grad():
            if (self._owner.shape, self._owner.stride(), self._owner.storage_offset()) != self._geometry:
                self._owner.as_strided_(*self._geometry)
            self._owner.detach().copy_(self._values)


class _RefusedWriteError(OperatorError, RuntimeError):
    """Torch refuses a write or a result. It is a RuntimeError too, as in eager."""

    __str__ = AotpackError.__str__


def refused(error: Exception) -> Exception:
    """The error for a write or a result that torch refuses, because the bundle describes it wrongly."""
    if isinstance(error, AotpackError):
        return error
    reason = str(error).partition("\n")[0]
    return _RefusedWriteError(
        f"The model's results or writes to arguments cannot be made as the bundle says: {reason}",
        hint="The arguments are as they were. The bundle may be damaged: build it again.",
    )


def require_gradients(results: Sequence[Any], gradients: Sequence[int | None], shapes: Sequence[torch.Size]) -> None:
    """Check that a backward graph has returned gradients of the shapes of the primals.

    Raises:
        OperatorError: one is something else.
    """
    for number, (position, shape) in enumerate(zip(gradients, shapes, strict=True)):
        value = None if position is None else results[position]
        if value is not None and (not isinstance(value, torch.Tensor) or value.shape != shape):
            found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise OperatorError(f"The backward graph returns {found} as the gradient of primal {number}, expected {list(shape)}.")
