"""What calls of an untrusted bundle do in addition: its description may be wrong wherever torch notices it late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import AotpackError, OperatorError


class Copy:
    """The elements, sizes and strides of a tensor before a call writes to it. ``whole``: of all of its storage."""

    def __init__(self, owner: torch.Tensor, whole: bool) -> None:
        self._owner, self._values = owner, owner.detach().clone()
        self._geometry = owner.shape, owner.stride(), owner.storage_offset()
        self._bytes = owner.untyped_storage().clone() if whole else None

    def restore(self) -> None:
        """Give the tensor what it had."""
        with torch.no_grad():
            if (self._owner.shape, self._owner.stride(), self._owner.storage_offset()) != self._geometry:
                self._owner.as_strided_(*self._geometry)
            if self._bytes is not None:
                self._owner.untyped_storage().resize_(self._bytes.nbytes()).copy_(self._bytes)
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


def require_gradients(
    results: Sequence[Any], gradients: Sequence[int | None], primals: Sequence[tuple[torch.Size, torch.dtype]]
) -> None:
    """Check that a backward graph has returned gradients that fit the sizes and element types of the primals.

    Raises:
        OperatorError: one is something else.
    """
    for number, (position, (shape, dtype)) in enumerate(zip(gradients, primals, strict=True)):
        value = None if position is None else results[position]
        if value is None:
            continue
        if not isinstance(value, torch.Tensor):
            found = type(value).__name__
        elif value.shape != shape or not _is_gradient_type(value.dtype, dtype):
            found = f"{str(value.dtype)[6:]}{list(value.shape)}"
        else:
            continue
        expected = f"{str(dtype)[6:]}{list(shape)}"
        raise OperatorError(f"The backward graph returns {found} as the gradient of primal {number}, expected {expected}.")


def _is_gradient_type(found: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether torch takes a gradient of this element type, which it then converts."""
    return found.is_floating_point or found.is_complex == dtype.is_complex
