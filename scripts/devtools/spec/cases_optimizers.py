"""Valid vectors of optimizers, and edits of them that break C42."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .case import Call, Case, t
from .documents import Documents


class Counted(torch.optim.Optimizer):
    """An update of whole tensors, whose state has an integer and starts at the learning rate."""

    def __init__(self, params: Any, lr: float = 0.5, decay: float = 0.75, gain: float = 0.25, times: Any = (2, None)) -> None:
        super().__init__(params, {"lr": lr, "decay": decay, "gain": gain, "times": times})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["count"], state["scale"] = 0, torch.full((1,), group["lr"])
                state["count"] += 1
                state["scale"].mul_(group["decay"] if group["decay"] > 0.5 else 0.5)
                gain = group["gain"] if group["gain"] < 0.5 else 0.5
                parameter.sub_(parameter.grad * gain * state["scale"] / state["count"] / parameter.grad.norm())


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 1)
        for i, parameter in enumerate(self.parameters()):
            parameter.data.copy_(torch.arange(parameter.numel()).reshape(parameter.shape) / 4 - i / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


def _optimizers() -> dict[str, Callable[[TwoLayers], torch.optim.Optimizer]]:
    return {
        "of_first": lambda model: torch.optim.SGD(
            [{"params": [model.first.weight], "momentum": 0.5, "dampening": 0.25}, {"params": [model.first.bias]}], lr=0.5
        ),
        "of_second": lambda model: Counted(model.second.parameters()),
    }


OPTIMIZERS: dict[str, Case] = {
    "optimizers": Case(
        "two optimizers: one whose first step has other numbers, and one whose state has an integer",
        ["C42"],
        TwoLayers,
        lambda: (t(3, 2),),
        lambda: [Call([t(3, 2)])],
        build={"methods": ["train"], "optimizer": _optimizers()},
    ),
}


def broken() -> Iterator[tuple[str, str, Callable[[Documents], object]]]:
    """Names, errors and edits of ``optimizers``, each of which breaks C42."""

    def optimizer(edit: Callable[[Any], object], name: str = "of_first") -> Callable[[Documents], object]:
        return lambda documents: edit(documents.program["optimizers"][name])

    def method(edit: Callable[[Any], object], name: str = "of_first.0") -> Callable[[Documents], object]:
        return lambda documents: edit(documents.program["methods"][name])

    yield "update_missing", "has one update", optimizer(lambda o: o["updates"].pop())
    yield "update_number_unknown", "those of the group", optimizer(lambda o: o["groups"][0]["numbers"].pop("lr"))
    yield "update_writes_gradient", "to the parameter and to the state", method(lambda m: m["mutations"][0].update(primal=1))
