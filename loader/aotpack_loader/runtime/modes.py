"""The caller's global modes, as far as eager depends on them: autocast, determinism, transforms of functions.

Gradient mode and train/eval choose the method (:mod:`..program`); these must fit the method that was chosen.
"""

from __future__ import annotations

import warnings

import torch

from .._torch_compat import in_transform
from ..errors import ModeError
from ..format import schema


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
        current = torch.get_autocast_dtype(self._kind) if torch.is_autocast_enabled(self._kind) else None
        if current is not self.autocast:
            raise self._other_autocast(current)
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

    def _other_autocast(self, current: torch.dtype | None) -> ModeError:
        built = "without autocast" if self.autocast is None else f"under autocast to {self.autocast}"
        now = "off" if current is None else f"on, to {current}"
        return ModeError(
            f"This bundle was built {built}, and autocast is {now} at this call.",
            hint="Call it in the state it was built in, or build it in the state it is called in.",
        )


def _transformed() -> ModeError:
    return ModeError(
        "This bundle is called inside a transform of torch.func (vmap, grad, jvp, …) or with forward-mode gradients.",
        hint="backward() and torch.autograd.grad() work. Without gradients the transforms do too: load it with "
        "backend='portable' and call it under torch.no_grad(), or with nothing that requires a gradient.",
    )


def _refuse_undetermined() -> None:
    message = "Deterministic algorithms are asked for, and the code of this bundle was compiled without them."
    hint = "Build it under torch.use_deterministic_algorithms(True), or load it with backend='portable'."
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise ModeError(message, hint=hint)
    warnings.warn(f"{message} {hint}", UserWarning, stacklevel=2)
