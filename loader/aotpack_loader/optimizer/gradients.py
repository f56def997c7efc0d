"""What an optimizer does with gradients before a step: it looks for values that are not finite, and clips."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import torch

from ..errors import InputError, Problem

Nonfinite = Literal["raise", "skip"]

_MOST: Final = 50
_EPSILON: Final = 1e-6
"""What ``torch.nn.utils.clip_grad_norm_`` adds to a norm."""


class Gradients:
    """Looks at gradients and clips them in place, as ``torch.nn.utils`` does.

    Args:
        clip_grad_norm: the largest norm of all gradients taken as one vector; None: they are not scaled.
        clip_grad_value: the largest magnitude of an element; None: elements are not limited. It comes before the norm.
        nonfinite: what to do with a step if an element is infinite or NaN; None: nobody looks.

    Raises:
        InputError: a limit is negative or no number, or ``nonfinite`` is unknown.
    """

    def __init__(self, clip_grad_norm: float | None, clip_grad_value: float | None, nonfinite: Nonfinite | None) -> None:
        self.clip_grad_norm, self.clip_grad_value, self.nonfinite = clip_grad_norm, clip_grad_value, nonfinite
        self._check()

    def _check(self) -> None:
        """Check the limits, which can change between steps."""
        limits: dict[str, Any] = {"clip_grad_norm": self.clip_grad_norm, "clip_grad_value": self.clip_grad_value}
        problems = [
            Problem(name, f"is {limit!r}, and no number of at least 0")
            for name, limit in limits.items()
            if limit is not None and not (isinstance(limit, (int, float)) and limit >= 0)
        ]
        if self.nonfinite not in (None, *get_args(Nonfinite)):
            problems.append(Problem("nonfinite", f"is {self.nonfinite!r}, and not 'raise', 'skip' or None"))
        if problems:
            raise InputError("The optimizer cannot treat gradients in this way.", problems)

    @property
    def asked(self) -> bool:
        """Whether there is anything to do."""
        return any(limit is not None for limit in (self.clip_grad_norm, self.clip_grad_value, self.nonfinite))

    def ready(self, gradients: Mapping[str, torch.Tensor]) -> bool:
        """Clip gradients, by the names of their parameters. False: the step is to be skipped.

        Raises:
            InputError: lists the gradients that are not finite, if ``nonfinite`` is ``raise``, or that cannot be clipped.
        """
        self._check()
        if problems := [Problem(f"{name}.grad", text) for name, one in gradients.items() if (text := self._obstacle(one))]:
            raise InputError("Gradients cannot be clipped, so nothing was updated.", problems[:_MOST])
        tensors = [gradient for gradient in gradients.values() if gradient.numel()]
        if self.nonfinite is not None and not torch.nn.utils.get_total_norm(tensors, math.inf).isfinite():
            if self.nonfinite == "raise":
                wrong = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
                problems = [Problem(f"{name}.grad", "has elements that are infinite or NaN") for name in wrong[:_MOST]]
                raise InputError("Gradients are not finite, so nothing was updated.", problems)
            return False
        if self.clip_grad_value is not None:
            for tensor in tensors:
                tensor.clamp_(-self.clip_grad_value, self.clip_grad_value)
        if self.clip_grad_norm is not None:
            scale = self.clip_grad_norm / (torch.nn.utils.get_total_norm(tensors) + _EPSILON)
            if not scale >= 1:
                for tensor in tensors:
                    tensor.mul_(scale)
        return True

    def _obstacle(self, gradient: torch.Tensor) -> str:
        """Why a gradient cannot be clipped in place, or an empty string."""
        if self.clip_grad_norm is None and self.clip_grad_value is None:
            return ""
        if any(size > 1 and step == 0 for size, step in zip(gradient.shape, gradient.stride(), strict=True)):
            return "is expanded: its elements share memory, so that it cannot be scaled in place. Set a clone() of it"
        if gradient.is_inference() and not torch.is_inference_mode_enabled():
            return "is an inference tensor, which cannot be written to. Set a clone() of it"
        if self.clip_grad_value is not None and gradient.is_complex():
            return "is complex, and has no order for clip_grad_value. Use clip_grad_norm"
        return ""
