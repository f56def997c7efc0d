"""A valid vector of methods of two functions that serve one mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import aotpack

from .case import INFER, Call, Case, t


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def shift(model: Scale, x: Tensor) -> Tensor:
    return x + model.scale


FUNCTIONS: dict[str, Case] = {
    "functions": Case(
        "a function of the original beside its own call, over the same parameter",
        ["C43", "R6"],
        Scale,
        lambda: None,  # type: ignore[arg-type,return-value]
        lambda: [
            Call([t(2)], **INFER),
            Call([t(2)], **INFER, function="shift"),
            Call([t(2)], training=True, grad=False, function="shift", refused="R6", kind="ModeError", contains="of 'shift'"),
        ],
        build={
            "methods": {
                "forward": aotpack.Method("forward", (torch.ones(2),), modes=("infer",)),
                "shift": aotpack.Method(shift, (torch.ones(2),), modes=("infer",)),
            }
        },
    ),
}
