"""A gated recurrent unit over rows, by ``scan`` or by a loop in Python, with the same arithmetic."""

import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan

BATCH, WIDTH = 16, 64


class Recurrent(nn.Module):
    def __init__(self, *, by_scan: bool) -> None:
        super().__init__()
        self.cell, self.by_scan = nn.GRUCell(WIDTH, WIDTH), by_scan

    def forward(self, state: Tensor, x: Tensor) -> dict[str, Tensor]:
        def step(state: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            state = self.cell(row, state)
            return state, state.square().mean()

        if self.by_scan:
            _, losses = scan(step, state, x)
            return {"loss": losses.mean()}
        losses = []
        for row in x:
            state, loss = step(state, row)
            losses.append(loss)
        return {"loss": torch.stack(losses).mean()}


def model(by_scan: bool = True) -> nn.Module:
    return Recurrent(by_scan=by_scan)


def example_inputs(rows: int = 16) -> tuple[Tensor, Tensor]:
    return torch.zeros(BATCH, WIDTH), torch.randn(rows, BATCH, WIDTH)
