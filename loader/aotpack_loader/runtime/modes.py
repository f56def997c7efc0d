"""Global modes of the caller on which eager depends: autocast, determinism and function transforms.

Gradient mode and train/eval mode select the method (:mod:`..module.program`). The modes here must match
the selected method.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence

import torch

from .._torch_compat import in_transform
from ..errors import ModeError
from ..format import schema

_WORDS = {None: "none", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""How a build names an autocast."""


def as_built(method: schema.Method, kind: str = "cpu") -> contextlib.AbstractContextManager[object]:
    """A context with the autocast of the build, for devices of this kind."""
    dtype = None if method.autocast is None else getattr(torch, method.autocast)
    return torch.autocast(kind, dtype=dtype, enabled=dtype is not None)


class Modes:
    """Checks the modes of a call.

    Args:
        method: the method, which records the modes it was built in.
        device: where it runs.
        native: whether compiled code computes it, which reads memory and bypasses torch's
            dispatcher.
    """

    def __init__(self, method: schema.Method, device: torch.device, *, native: bool) -> None:
        self._kind = device.type
        self.autocast: torch.dtype | None = None if method.autocast is None else getattr(torch, method.autocast)
        self._undetermined = native and not method.deterministic
        self._native = native

    def check(self) -> None:
        """Compare the caller's modes with those of the build.

        Raises:
            ModeError: the method would give another result than eager.
        """
        current = self.current_autocast()
        if current is not self.autocast:
            raise self.other_autocast(current, [self.autocast])
        if self._undetermined and torch.are_deterministic_algorithms_enabled():
            _refuse_undetermined()
        if self._native and in_transform():
            raise _transformed()

    def check_gradients(self) -> None:
        """Refuse a call whose results need gradients inside a function transform.

        The transform would compute a gradient of its own.

        Raises:
            ModeError: a transform is active.
        """
        if in_transform():
            raise _transformed()

    def current_autocast(self) -> torch.dtype | None:
        """The dtype of the caller's autocast on the method's device; None if it is off."""
        return torch.get_autocast_dtype(self._kind) if torch.is_autocast_enabled(self._kind) else None

    def other_autocast(self, current: torch.dtype | None, known: Sequence[torch.dtype | None]) -> ModeError:
        """The error for a call under another autocast than those in ``known``, for which the bundle was built."""
        built = " and ".join("without autocast" if dtype is None else f"under autocast to {dtype}" for dtype in known)
        now = "off" if current is None else f"on, to {current}"
        calls = " or ".join(_entering(dtype, self._kind) for dtype in known)
        words = ",".join(word for dtype, word in _WORDS.items() if dtype is current or dtype in known)
        return ModeError(
            f"This bundle was built {built}, and autocast is {now} at this call.",
            hint=f"Call it {calls}, or build it with --autocast {words} (autocast={words!r} in Python) and call it as here.",
        )


def _transformed() -> ModeError:
    return ModeError(
        "This bundle is called inside a transform of torch.func (vmap, grad, jvp, …) or with forward-mode gradients.",
        hint="backward() and torch.autograd.grad() work. Without gradients the transforms do too: load it with "
        "backend='portable' and call it under torch.no_grad(), or with nothing that requires a gradient.",
    )


def _entering(dtype: torch.dtype | None, kind: str) -> str:
    return "outside of torch.autocast" if dtype is None else f"under torch.autocast({kind!r}, dtype={dtype})"


def _refuse_undetermined() -> None:
    message = "Deterministic algorithms are asked for, and the code of this bundle was compiled without them."
    hint = "Build it under torch.use_deterministic_algorithms(True), or load it with backend='portable'."
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise ModeError(message, hint=hint)
    warnings.warn(f"{message} {hint}", UserWarning, stacklevel=2)
