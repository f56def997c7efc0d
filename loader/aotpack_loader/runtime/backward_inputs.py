"""What a backward graph takes: values saved by the forward, and incoming gradients (tangents).

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..format import expressions, schema

Environment = Mapping[str, int]


class SavedValues:
    """What the backward needs of a call, by how it is kept.

    Autograd saves the primals and the ``checked`` outputs. Other outputs are kept on the call.
    Sizes are computed again.
    """

    def __init__(self, saved: list[schema.Saved]) -> None:
        kinds: tuple[list[int], ...] = ([], [], [], [])
        for i, item in enumerate(saved):
            if isinstance(item, schema.SavedOutput):
                kinds[1 if item.check_version else 2].append(i)
            else:
                kinds[0 if isinstance(item, schema.SavedPrimal) else 3].append(i)
        self.primals = [item.primal for item in saved if isinstance(item, schema.SavedPrimal)]
        outputs = [item for item in saved if isinstance(item, schema.SavedOutput)]
        self.checked = [item.output for item in outputs if item.check_version]
        self.unchecked = [item.output for item in outputs if not item.check_version]
        self.sizes = [item.expr for item in saved if isinstance(item, schema.SavedSize)]
        positions = {i: index for index, i in enumerate(i for kind in kinds for i in kind)}
        order = [positions[i] for i in range(len(saved))]
        self.order = None if order == list(range(len(order))) else order


class Tangent:
    """Converts an incoming gradient to the layout the backward graph was compiled for. A missing one becomes zeros."""

    def __init__(self, position: int, tangent: schema.Tangent) -> None:
        self.position = position
        self.dtype: torch.dtype = getattr(torch, tangent.dtype)
        self.memory_format: torch.memory_format = getattr(torch, tangent.memory_format)
        stride = tangent.stride
        static = stride is not None and all(isinstance(step, int) for step in stride)
        self.static = tuple(stride) if stride is not None and static else None
        self.symbolic = stride if not static else None

    def __call__(
        self, gradient: torch.Tensor | None, shape: torch.Size, environment: Environment, device: torch.device
    ) -> torch.Tensor:
        stride: Any = self.static
        if self.symbolic is not None:
            stride = tuple([expressions.evaluate(step, environment) for step in self.symbolic])
        if gradient is not None and (gradient.is_neg() or gradient.is_conj()):
            gradient = gradient.resolve_conj().resolve_neg()  # compiled code reads memory, not flags
        if gradient is None:
            if stride is not None:
                return torch.empty_strided(shape, stride, dtype=self.dtype, device=device).zero_()
            return torch.zeros(shape, dtype=self.dtype, device=device).contiguous(memory_format=self.memory_format)
        if stride is None:
            return gradient.contiguous(memory_format=self.memory_format)
        if gradient.stride() == stride:
            return gradient
        return torch.empty_strided(gradient.shape, stride, dtype=self.dtype, device=device).copy_(gradient)
