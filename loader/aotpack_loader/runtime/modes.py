"""The caller's global modes, as far as eager depends on them: autocast, determinism, transforms of functions.

Gradient mode and train/eval choose the method (:mod:`..program`); these must fit the method that was chosen.
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
    """Be in the autocast that a method was built for, on devices of this kind."""
    dtype = None if method.autocast is None else getattr(torch, method.autocast)
    return torch.autocast(kind, dtype=dtype, enabled=dtype is not None)


class Modes:
    """Checks the modes of a call.

    Args:
        method: the method, which records the modes it was built in.
        device: where it runs.
        native: whether compiled code computes it, which reads memory and does not obey torch's dispatcher.
    """

    def __init__(self, method: schema.Method, device: torch.device, *, native: bool) -> None:
        self._kind = device.type
        self.autocast: torch.dtype | None = None if method.autocast is None else getattr(torch, method.autocast)
        self._undetermined = native and not method.deterministic
        self._native = native

    def check(self) -> None:
        """Compare with the caller's modes.

        Raises:
            ModeError: the method would give something else than eager does.
        """
        current = self.current_autocast()
        if current is not self.autocast:
            raise self.other_autocast(current, [self.autocast])
        if self._undetermined and torch.are_deterministic_algorithms_enabled():
            _refuse_undetermined()
        if self._native and in_transform():
            raise _transformed()

    def check_gradients(self) -> None:
        """Refuse a call whose results are to have gradients, inside a transform: that asks for a gradient of its own.

        Raises:
            ModeError: one is running.
        """
        if in_transform():
            raise _transformed()

    def current_autocast(self) -> torch.dtype | None:
        """The element type of the caller's autocast where the method runs; null: it is off."""
        return torch.get_autocast_dtype(self._kind) if torch.is_autocast_enabled(self._kind) else None

    def other_autocast(self, current: torch.dtype | None, known: Sequence[torch.dtype | None]) -> ModeError:
        """The error for a call under an autocast that the bundle was not built for, but for those ``known``."""
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
