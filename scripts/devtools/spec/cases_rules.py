"""Valid vectors for rules that say what a reader does: a reader without one of them fails its vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from aotpack_loader.format import expressions

from .arguments import Held, Own
from .brought import TwoPart
from .case import INFER, Call, Case, of, t
from .cases_autograd import Operators
from .cases_values import sizes_and_numbers

# ---------------------------------------------------------------- arguments and containers


def slope(x: Tensor, y: Tensor) -> Tensor:
    """A gradient with respect to an argument, which requires one from here on."""
    x.requires_grad_(True)
    (found,) = torch.autograd.grad((x * y).sin().sum(), x, create_graph=True)
    return found


def exchange(d: dict[str, Any], items: list[Any]) -> Tensor:
    """Exchanges objects of the caller's, and puts a key at another place."""
    a, b = d.pop("a"), d["b"]
    d["new"] = d["b"]["x"] * 2
    d["a"], d["b"] = b, a
    items[:] = [a, b["x"] + 1, items[0]]
    return d["new"] + 1


def _exchange_calls() -> list[Call]:
    given = [t(2), t(3), t(3)]
    return [
        Call(given),
        Call(given, **INFER),
        Call([t(2, dtype=torch.float64), t(3), t(3)], refused="A4", contains="float64"),
        Call(given, more={"fixed_containers": [0]}, refused="A17", contains="expected a dict"),
        Call(given, more={"fixed_containers": [1]}, refused="A17", contains="list"),
    ]


def grow(first: list[Tensor], second: list[Tensor]) -> Tensor:
    first.append(second[0] * 2)
    return first[0] + second[0]


# ---------------------------------------------------------------- modes


def twice_as_much(x: Tensor) -> Tensor:
    return x.sin() * 2


class Shifted(nn.Module):
    """Its backward needs nothing of the weight, but its second derivatives start from the weight of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() + self.weight


# ---------------------------------------------------------------- graphs


def drawn(x: Tensor) -> Tensor:
    """Draws random numbers that nothing reads, and then others."""
    torch.rand(3)
    return torch.dropout(x, 0.5, True)


NONE = {"type": "other", "kind": "none"}


class Counting(nn.Module):
    """Lets an operator write to a copy of a value that is read afterwards."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value = x.exp()
        copied = value.clone()
        torch.ops.vectors.count(copied, x)
        return value * 2, copied


def _give_the_value_itself(documents: Any) -> None:
    """Give the operator the value instead of the copy, since a reader copies what it writes to."""
    for method in documents.program["methods"].values():
        documents.open_method(method)
        nodes = {node["name"]: node for node in documents.forward["nodes"]}
        counter = next(node for node in nodes.values() if node["op"] == "vectors.count.default")["kwargs"]["counter"]
        if nodes[counter["name"]]["op"] == "aten.clone.default":
            counter["name"] = nodes[counter["name"]]["args"][0]["name"]
            documents.set_forward()


def _add_check(documents: Any) -> None:
    """Put a check of the argument before the first node. Nothing reads its result."""
    for method in documents.program["methods"].values():
        documents.open_method(method)
        nodes = documents.forward["nodes"]
        if nodes[0]["name"] != "checked":
            doubled = next(node for node in nodes if node["op"] == "vectors.twice.default")
            nodes.insert(0, {"name": "checked", "op": "vectors.positive.default", "args": doubled["args"], "value": NONE})
            documents.set_forward()


class Parts(nn.Module):
    """Has two stored parameters, and reads part of the first by as_strided."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.arange(4.0)), nn.Parameter(torch.arange(4.0) + 10)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.first.as_strided((2,), (1,), 1) + self.second.sum()


def _beyond(documents: Any) -> None:
    """Let the view of the first parameter begin at its last element, so that it ends beyond it."""
    for method in documents.program["methods"].values():
        documents.open_method(method)
        node = next(node for node in documents.forward["nodes"] if node["op"] == "aten.as_strided.default")
        if node["args"][3] == 1:
            node["args"][3] = 3
            documents.set_forward()


# ---------------------------------------------------------------- sizes


def turned(x: Tensor, y: Tensor) -> Tensor:
    """Sizes, strides and the first element depend on a size."""
    x.t_()
    y.as_strided_((2,), (1,), y.shape[0] - 2)
    return x * 2


def _columns(count: int) -> Held:
    return Held(TwoPart, {"a": t(2, count), "b": t(2, count)}, None, True)


def _numbers_for_sizes(documents: Any) -> None:
    """Write the sizes of the example as integers, where an expression or an integer may stand."""
    for method in documents.program["methods"].values():
        hints = {symbol["name"]: symbol["hint"] for symbol in method["symbols"]}

        def number(expression: Any, hints: dict[str, int] = hints) -> int:
            return expression if isinstance(expression, int) else expressions.evaluate(expression, hints)

        method["sizes"] = [number(size) for size in method["sizes"]]
        described = [*method["results"], *method.get("backward", {}).get("saved", ())]
        documents.open_method(method)
        values = [node["value"] for node in documents.forward["nodes"]] + documents.forward["input_values"]
        for item in (*described, *values):
            if "expr" in item:
                item["expr"] = number(item["expr"])
        documents.set_forward()


PUT = [t(4), Own(torch.tensor([0, 2])), t(2)]

RULES: dict[str, Case] = {
    "requires_grad_set_last": Case(
        "an argument that the model makes require a gradient: a refused call leaves it alone",
        ["A16"],
        of(slope),
        lambda: (t(3), t(3)),
        lambda: [Call([t(3), t(3)]), Call([t(3), t(3, dtype=torch.float64)], refused="A4", contains="float64")],
        build={"methods": ("train",)},
    ),
    "exchanged_containers": Case(
        "containers of the caller's that exchange what they hold, a key that moves; a container that cannot be changed",
        ["A17", "A18"],
        of(exchange),
        lambda: ({"a": t(2), "b": {"x": t(3)}}, [t(3)]),
        _exchange_calls,
    ),
    "one_container_twice": Case(
        "a list that is changed must be no other list among the arguments",
        ["A17"],
        of(grow),
        lambda: ([t(2)], [t(2)]),
        lambda: [
            Call([t(2), t(2)]),
            Call([t(2), t(2)], more={"same_containers": [[1, 0]]}, refused="A17", contains="same object"),
        ],
    ),
    "asked_for_determinism": Case(
        "a call with deterministic algorithms, of an operator that has none",
        ["A11"],
        of(lambda x, i, y: torch.put(x, i, y) * 2),
        lambda: tuple(PUT),
        lambda: [
            Call(PUT, **INFER),
            Call(PUT, **INFER, more={"deterministic": True}, refused="A11", kind="OperatorError", contains="deterministic"),
        ],
    ),
    "several_modes": Case(
        "one method that serves three modes, and acts in each as eager does",
        ["R7"],
        of(twice_as_much),
        lambda: (t(3, grad=True),),
        lambda: [
            Call([t(3, grad=True)]),
            Call([t(3, grad=True)], training=False),
            Call([t(3, grad=True)], grad=False),
            Call([t(3)], training=False),
        ],
    ),
    "second_derivatives_of_changed": Case(
        "derivatives of derivatives, refused where a parameter was changed since the call",
        ["R8"],
        Shifted,
        lambda: (t(3, grad=True),),
        lambda: [
            Call([t(3, grad=True)], more={"then": "second"}),
            Call(
                [t(3, grad=True)],
                more={"then": "second", "written_between": ["weight"]},
                refused="R8",
                kind="AutogradError",
                contains="weight",
            ),
        ],
        build={"second_derivatives": True},
    ),
    "unused_draw": Case(
        "random numbers that nothing reads: they are drawn all the same",
        ["G10"],
        of(drawn),
        lambda: (t(8, grad=True),),
        lambda: [Call([t(8, grad=True)], more={"seed": 5}), Call([t(8)], **INFER, more={"seed": 6})],
        build={"rng": "eager"},
    ),
    "unused_check": Case(
        "an operator of another namespace that may fail, and whose result nothing reads: it runs all the same",
        ["G10"],
        Operators,
        lambda: (t(3, grad=True),),
        lambda: [
            Call([Own(torch.tensor([1.0, 2.0, 3.0]), True)]),
            Call([t(3)], **INFER, refused="G10", kind="OperatorError", contains="positive"),
        ],
        edit=_add_check,
    ),
    "written_by_an_operator": Case(
        "an operator of another namespace that writes to a value which is read afterwards: it gets a copy",
        ["G9"],
        Counting,
        lambda: (t(3, grad=True),),
        lambda: [Call([t(3, grad=True)]), Call([t(3)], **INFER)],
        edit=_give_the_value_itself,
    ),
    "geometry_of_any_size": Case(
        "sizes, strides and a first element that change in place and depend on a size",
        ["A12", "R1"],
        of(turned),
        lambda: (t(3, 2), t(5)),
        lambda: [Call([t(3, 2), t(5)]), Call([t(4, 2), t(7)]), Call([t(4, 2), t(7)], **INFER)],
        build={"dynamic_shapes": {"x": {0: torch.export.Dim("rows", min=3, max=8)}, "y": {0: torch.export.Dim("n", min=3)}}},
    ),
    "geometry_strides_of_any_size": Case(
        "strides that change in place and depend on a size",
        ["R1"],
        of(lambda x: (x.t_(), x * 2)[1]),
        lambda: (t(2, 4),),
        lambda: [Call([t(2, 4)]), Call([t(2, 5)], **INFER)],
        build={"dynamic_shapes": {"x": {1: torch.export.Dim("columns", min=3, max=8)}}},
    ),
    "subclass_of_any_size": Case(
        "a tensor subclass whose sizes and strides depend on a size, beside a plain tensor of which that is true",
        ["A2", "K5", "K7"],
        of(lambda x, y: (x * 2 + y.sin(), y * y)),
        lambda: (_columns(3), t(2, 3, grad=True)),
        lambda: [
            Call([_columns(3), t(2, 3, grad=True)]),
            Call([_columns(5), t(2, 5, grad=True)]),
            Call([_columns(5), t(2, 4, grad=True)], refused="A5", contains="columns=5"),
        ],
        build={"dynamic_shapes": {"x": {1: (columns := torch.export.Dim("columns", min=2, max=8))}, "y": {1: columns}}},
    ),
    "numbers_for_sizes": Case(
        "integers where expressions may stand: sizes of a graph, saved sizes, results",
        ["C14"],
        of(sizes_and_numbers),
        lambda: (t(3, 2, grad=True), 4),
        lambda: [Call([t(3, 2, grad=True), 4])],
        build={"dynamic_shapes": {"x": {0: torch.export.Dim("rows", min=2, max=8)}, "count": torch.export.Dim.DYNAMIC}},
        edit=_numbers_for_sizes,
    ),
    "beyond_its_storage": Case(
        "a view of a parameter by as_strided that ends beyond it: another stored tensor is never reached",
        ["W7"],
        Parts,
        lambda: (t(2, grad=True),),
        lambda: [Call([t(2)], **INFER, refused="W7", kind="OperatorError", contains="out of bounds")],
        edit=_beyond,
    ),
}  # fmt: skip
