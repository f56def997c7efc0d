"""Valid vectors of sizes, numbers, constants, containers and defaults."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch import Tensor

from .arguments import Own, scalar
from .case import INFER, Call, Case, of, t


def sizes_and_numbers(x: Tensor, count: int) -> tuple[Any, ...]:
    rows = x.shape[0]
    return x.new_ones(count) * x.sum() / (rows + count), x.shape, rows * 2, (x * count).view(-1), [rows // 2]


def data_dependent(x: Tensor) -> tuple[Any, ...]:
    found = (x > 0).nonzero()
    return found, x[x > 0] * 2, found.shape[0] + 1


def numbers(x: Tensor) -> tuple[Any, ...]:
    return x.sum().item(), x.long().sum().item(), (x.sum() > 0).item(), x * 2


# ---------------------------------------------------------------- constants, containers


def constants(x: Tensor, on: bool, **given: Any) -> dict[str, Any]:
    return {**given, "x": x * 2 if on else x}


def defaults(
    x: Tensor, y: Tensor, scale: float = 2.0, shift: int = 1, word: str = "w", on: bool = True, none: Any = None
) -> Tensor:
    return x * scale + y + shift


def ordered(x: Tensor) -> Any:
    return collections.OrderedDict([("b", x * 2), ("a", [x.sum()])]), {True: x + 1, 3: x + 2}


# ---------------------------------------------------------------- autograd


FLOATS = Own(torch.tensor([0.5, -1.0, 2.0, 3.0]))


def batches(*names: str, **limits: int) -> Any:
    return {name: {0: torch.export.Dim("rows", **limits)} for name in names}


CONSTANTS: dict[str, Any] = {
    "kind": torch.float64,
    "device": torch.device("cpu"),
    "layout": torch.strided,
    "format": torch.channels_last,
    "word": "mean",
    "on": True,
    "complex": 1 - 2j,
    "none": None,
    "infinite": float("inf"),
    "lowest": float("-inf"),
    "undefined": float("nan"),
}


def _stand_in(value: Any) -> Any:
    """The value passed to a build for a constant that it accepts in results only."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _true_constants(documents: Any) -> None:
    """Replace the placeholders by the real constants."""
    true = {_stand_in(value): scalar(value) for value in CONSTANTS.values() if _stand_in(value) is not value}
    for method in documents.program["methods"].values():
        for item in (*method["leaves"], *method["results"]):
            if item["type"] == "constant" and isinstance(item["value"], str) and item["value"] in true:
                item["value"] = true[item["value"]]


def _constants_calls() -> list[Call]:
    given = list(CONSTANTS.values())
    wrong = [torch.float32 if value is torch.float64 else value for value in given]
    wrong_flag = [1 if value is True else value for value in given]
    return [
        Call([t(2), *given]),
        Call([t(2), *wrong_flag], refused="A7", contains="kwargs['on']"),
        Call([t(2), *wrong], refused="A7", contains="kwargs['kind']"),
    ]


def _defaults_calls() -> list[Call]:
    x, y = t(3), t(3)
    passed = {"args": [0, 1, 2], "kwargs": {"on": 4, "shift": 3}}
    return [
        Call([x, y]),
        Call([x, y], more={"passed": {"args": [], "kwargs": {"y": 1, "x": 0}}}),
        Call([x, y, 2.0, 1, True], more={"passed": passed}),
        Call([x, y, 2.5, 1, True], more={"passed": passed}, refused="A3", contains="2.5"),
        Call([x, y], more={"passed": {"args": [0], "kwargs": {}}}, refused="A3", contains="args"),
        Call([x, y], more={"passed": {"args": [0, 1], "kwargs": {"z": 0}}}, refused="A3", contains="z"),
    ]


def _number_calls() -> list[Call]:
    return [
        Call([t(3, 2, grad=True), 4]),
        Call([t(5, 2, grad=True), 7]),
        Call([t(3, 2), 7], **INFER),
        Call([t(3, 2, grad=True), True], refused="A14", contains="args[1]"),
        Call([t(3, 2, grad=True), -1], refused="A14", contains="args[1]"),
        Call([t(9, 2, grad=True), 4], refused="A5", contains="args[0]"),
        Call([t(3, 2, grad=True, dtype=torch.float64), 4], refused="A4", contains="float64"),
        Call([[1.0], 4], refused="A4", contains="args[0]"),
    ]


def _even(x: Tensor) -> Tensor:
    return x.view(x.shape[0] // 2, 2, -1).sum(1) if x.shape[0] % 2 == 0 else x


VALUES: dict[str, Case] = {
    "sizes_and_integers": Case(
        "an integer argument that varies, sizes as results, a torch.Size, constraints between sizes",
        ["A2", "A5", "A14", "C14"],
        of(sizes_and_numbers),
        lambda: (t(3, 2, grad=True), 4),
        _number_calls,
        build={"dynamic_shapes": {"x": {0: torch.export.Dim("rows", min=2, max=8)}, "count": torch.export.Dim.DYNAMIC}},
    ),
    "divisible": Case(
        "a number of rows that must be even",
        ["A5"],
        of(_even),
        lambda: (t(4, 3, grad=True),),
        lambda: [Call([t(4, 3, grad=True)]), Call([t(6, 3, grad=True)]), Call([t(5, 3)], refused="A5", contains="must")],
        build={"dynamic_shapes": batches("x", min=2, max=8)},
    ),
    "sizes_of_data": Case(
        "sizes that the forward graph finds out",
        ["C24"],
        of(data_dependent),
        lambda: (t(4, grad=True),),
        lambda: [Call([t(4, grad=True)]), Call([t(4)], **INFER)],
        build={"front_ends": ("dynamo",)},
    ),
    "numbers": Case(
        "numbers and a truth value that depend on data",
        ["C9"],
        of(numbers),
        lambda: (FLOATS,),
        lambda: [Call([FLOATS]), Call([FLOATS], **INFER)],
    ),
    "constants": Case(
        "constants of every kind, as arguments and as results",
        ["A7"],
        of(constants),
        lambda: (t(2),),
        _constants_calls,
        kwargs=lambda: {name: _stand_in(value) for name, value in CONSTANTS.items()},
        edit=_true_constants,
    ),
    "returned_constants": Case(
        "truth values and numbers among the arguments that are returned as they are",
        ["A7"],
        of(lambda x, on, off, one: (on, off, one, not on, x * 2)),
        lambda: (t(2), True, False, 1),
        lambda: [Call([t(2), True, False, 1]), Call([t(2), True, False, 1], **INFER)],
    ),
    "defaults": Case("arguments by name, and defaults spelled out", ["A3"], of(defaults), lambda: (t(3), t(3)), _defaults_calls),
    "ordered": Case(
        "an ordered dictionary, and a dictionary whose keys are no strings",
        ["C15"],
        of(ordered),
        lambda: (t(3),),
        lambda: [Call([t(3)])],
    ),
}
