"""Valid vectors of the second kind: calls whose arguments are described exactly (scripts/spec_calls.py).

Each case is a model of plain torch code, a build of it, and calls. A call that must be refused says which rule it breaks.
The first vectors are in ``scripts/spec_vectors.py``. A case that has been written is never changed.
"""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "spec/vectors"))
from aotpack_vectors import TwoPart
from spec_calls import Held, Own, Seen, scalar
from spec_targets import add_targets

Json = Any


@dataclass
class Call:
    """A call: its arguments, its mode, and what is done with the results. ``refused``: the rule that it breaks."""

    leaves: list[Any]
    training: bool = True
    grad: bool = True
    more: Json = field(default_factory=dict)
    refused: str = ""
    kind: str = "InputError"
    contains: str = ""


@dataclass
class Case:
    """A valid vector: a model (a module, or a function of tensors), the example's arguments, build options and calls."""

    about: str
    covers: list[str]
    model: Callable[[], Any]
    example: Callable[[], tuple[Any, ...]]
    calls: Callable[[], list[Call]]
    kwargs: Callable[[], dict[str, Any]] = dict
    build: Json = field(default_factory=dict)
    prepare: Callable[[], Any] | None = None
    edit: Callable[[Any], None] | None = None


def t(*shape: int, grad: bool = False, computed: bool = False, dtype: torch.dtype = torch.float32) -> Own:
    """A tensor with whole numbers of both signs, all different."""
    count = 1
    for size in shape:
        count *= size
    values = torch.arange(count, dtype=torch.float64) * 1.5 - count / 2
    return Own(values.reshape(shape).to(dtype), grad, computed)


class Function(nn.Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def of(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: function


INFER = {"training": False, "grad": False}


# ---------------------------------------------------------------- results


def views(x: Tensor, y: Tensor) -> tuple[Any, ...]:
    """Views of an argument: one twice, two of one split, one as it is, one of a computed value that is a result too."""
    row = x[0]
    low, high = x.split(2, 1)
    base = y * 2
    return row, row, low, high, x.view_as(x), base, base.t(), y.sin()[1:], x.transpose(0, dim1=1), torch.view_as_complex(y.cos())


def copies(x: Tensor) -> tuple[Any, ...]:
    """What is the argument, or a view of it, where it is contiguous, and a copy where it is not."""
    return x.contiguous(), x.reshape(-1)


def only_views(x: Tensor) -> Tensor:
    return x[1:].t()


class Stored(nn.Module):
    """Parameters and a buffer in one storage, one parameter of which a view is taken, and a constant tensor."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(12.0)
        self.first, self.second = nn.Parameter(whole[:4]), nn.Parameter(whole[4:10].view(2, 3))
        self.alone, self.other = nn.Parameter(torch.full((3,), 7.0)), nn.Parameter(torch.full((3,), 9.0))
        self.register_buffer("row", whole[2:6])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scaled = x * self.first.sum() * self.second.sum() + self.alone.sum() * self.other.sum()
        return scaled @ torch.tensor([[1.0, 2.0], [3.0, 4.0]]), self.alone.as_strided((2,), (1,), 1)


# ---------------------------------------------------------------- mutations


def turned(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Sizes and strides, elements, and both, change in place; one in-place operator has nothing to do."""
    x.t_()
    y.unsqueeze_(0)
    y.mul_(2)
    z.add_(x.sum())
    return x * 2, y + 1


def shown_elsewhere(x: Tensor, y: Tensor) -> Tensor:
    x.as_strided_((3,), (1,), 2)
    y.as_strided_((2, 2), (1, 2), 1)
    y.mul_(3)
    return y * 2


def resized(x: Tensor) -> Tensor:
    x.resize_(2, 2)
    x.fill_(3)
    return x * 2


class Written(nn.Module):
    """Writes to computed arguments and to buffers: with gradients, hidden from autograd, and without moving a version."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, seen: Tensor, empty: Tensor) -> Tensor:
        x.mul_(self.weight)
        with torch.no_grad():
            seen.add_(x.sum(0))
        empty.transpose_(0, 0)
        self.steps.add_(1)
        return self.norm(x) + self.weight


def shares(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


def shares_a_view(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x.sum() + (y * y).sum()


# ---------------------------------------------------------------- sizes and numbers


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


class Normed(nn.Module):
    """Channels last, in two and three dimensions, so that tangents are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 2, 1, 1))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        flat = (x * self.weight).contiguous(memory_format=torch.channels_last)
        return flat, (y * self.weight[..., None]).contiguous(memory_format=torch.channels_last_3d)


class Dropped(nn.Module):
    """Random numbers as eager draws them, in a checkpoint that the backward computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            return torch.dropout(self.layer(x).sin(), 0.5, True).cos()

        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]


class Curved(nn.Module):
    """Has derivatives of derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.sin() * self.weight).sum(), torch.dropout(y * self.weight, 0.5, True).exp()


def parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two results of which only one depends on each argument."""
    return x.sin(), y.cos() * 2


# ---------------------------------------------------------------- tensor subclasses, operators, element types


class Typed(nn.Module):
    """A buffer of each element type."""

    def __init__(self) -> None:
        super().__init__()
        for name in TYPES:
            kind = getattr(torch, name)
            values = torch.arange(4, dtype=torch.float32)
            self.register_buffer(f"of_{name}", (values % 2 == 1) if name == "bool" else values.to(kind))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x * 2, *[getattr(self, f"of_{name}") for name in TYPES])


TYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip


X23 = [[2, 3], [3, 1]]


def _views_calls() -> list[Call]:
    return [
        Call([t(2, 4, grad=True), t(2, 2, grad=True)]),
        Call([t(2, 4, grad=True, computed=True), t(2, 2)], more={"heads": [2, 5]}),
        Call([t(2, 4), t(2, 2)], **INFER),
    ]


CASES: dict[str, Case] = {
    "views": Case(
        "views of an argument and of a computed value: one object twice, two of one call, a base that is a result",
        ["C9", "C17"],
        of(views),
        lambda: (t(2, 4, grad=True), t(2, 2, grad=True)),
        _views_calls,
    ),
    "layout_of_results": Case(
        "results that are the argument or a view of it where it is contiguous, and copies where it is not",
        ["A4", "C28"],
        of(copies),
        lambda: (t(2, 3, grad=True, computed=True),),
        lambda: [
            Call([t(2, 3, grad=True, computed=True)]),
            Call([Seen(t(3, 2, grad=True, computed=True), [2, 3], [1, 2])]),
            Call([Seen(t(3, 2), [2, 3], [1, 2])], **INFER),
        ],
    ),
    "view_from_the_graph": Case(
        "a result that is a view which the graph makes: autograd knows it as one of several views made at once",
        ["R10"],
        of(lambda x: (x * 2).chunk(2)[0]),
        lambda: (t(4, grad=True),),
        lambda: [Call([t(4, grad=True)]), Call([t(4)], **INFER)],
    ),
    "only_views": Case(
        "a method without a backward that takes an argument with a gradient: all its results are views",
        ["A6"],
        of(only_views),
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)]), Call([t(3, 2)], **INFER)],
    ),
    "frozen_argument": Case(
        "an argument that may not require a gradient, whether the other does or not",
        ["A6"],
        of(lambda x, y: x.sin() * y),
        lambda: (t(3, grad=True), t(3)),
        lambda: [
            Call([t(3), t(3)]),
            Call([t(3, grad=True), t(3)]),
            Call([t(3), t(3, grad=True)], refused="A6", contains="args[1]"),
            Call([t(3, grad=True), t(3, grad=True)], refused="A6", contains="args[1]"),
        ],
    ),
    "stored": Case(
        "parameters and a buffer in one storage; a view of a parameter that as_strided takes, inside its own storage",
        ["W3", "W4", "W7", "W8"],
        Stored,
        lambda: (t(2, grad=True),),
        lambda: [Call([t(2, grad=True)], more={"storages": True}), Call([t(2)], **INFER)],
    ),
    "stride_zero": Case(
        "an argument of stride 0: no other can be copied to such memory",
        ["A4"],
        of(lambda x: x * 2),
        lambda: (Seen(t(1, 3), [4, 3], [0, 1]),),
        lambda: [
            Call([Seen(t(1, 3), [4, 3], [0, 1])]),
            Call([t(4, 3)], refused="A4", contains="args[0]"),
        ],
    ),
    "geometry": Case(
        "sizes and strides, elements, and both, changed in place; an in-place operator with nothing to do",
        ["A12", "R1"],
        of(turned),
        lambda: (t(2, 3), t(3), t(3)),
        lambda: [
            Call([t(2, 3), t(3), t(3)]),
            Call([t(2, 3), t(3), t(3)], **INFER),
            Call([Seen(t(3, 2), [2, 3], [1, 2]), t(3), t(3)], refused="A12", contains="args[0]"),
        ],
    ),
    "geometry_absolute": Case(
        "as_strided_ counts from the first element of the storage",
        ["A12"],
        of(shown_elsewhere),
        lambda: (t(6), t(6)),
        lambda: [
            Call([t(6), t(6)]),
            Call([Seen(t(8), [6], [1], 1, detached=True), t(6)]),
            Call([t(6), Seen(t(8), [6], [1], 1, detached=True)], refused="A12", contains="args[1]"),
        ],
    ),
    "resized": Case(
        "resize_ to more elements than there are",
        ["R1"],
        of(resized),
        lambda: (t(3),),
        lambda: [Call([t(3)]), Call([t(3)], **INFER)],
    ),
    "written": Case(
        "writes to a computed argument with a gradient, under no_grad, to buffers, and one in place that does nothing",
        ["R1"],
        Written,
        lambda: (t(4, 3, grad=True, computed=True), t(3), t(2, 2)),
        lambda: [
            Call([t(4, 3, grad=True, computed=True), t(3), t(2, 2)]),
            Call([t(4, 3), t(3), t(2, 2)], **INFER),
            Call([t(4, 3, grad=True), t(3), t(2, 2)], refused="A22", contains="args[0]"),
        ],
    ),
    "base_without_gradients": Case(
        "two arguments in one storage, one written to",
        ["A10", "C18"],
        of(shares),
        lambda: _two_rows(t(2, 3)),
        lambda: [
            Call([*_two_rows(t(2, 3))]),
            Call([*_two_rows(t(2, 3))], **INFER),
            Call([t(3), t(3)], refused="A10", contains="args["),
        ],
    ),
    "base_with_gradients": Case(
        "two views of one tensor that autograd knows, one written to; one of them detached",
        ["A10", "C18"],
        of(shares_a_view),
        lambda: _graded_rows(t(3, 2, grad=True, computed=True)),
        lambda: [
            Call([*_graded_rows(t(3, 2, grad=True, computed=True))]),
            Call([t(2, grad=True, computed=True), t(2)], refused="A10", contains="args["),
        ],
    ),
}


FLOATS = Own(torch.tensor([0.5, -1.0, 2.0, 3.0]))


def _batches(*names: str, **limits: int) -> Any:
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
    """What a build is given for a constant that it takes in results only."""
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _true_constants(documents: Any) -> None:
    """Puts the true constants in the stand-ins' place."""
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


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).sin()) + self.frozen


def _tied_calls() -> list[Call]:
    def state(name: str, change: str) -> Json:
        return {"state": [{"name": name, "change": change}]}

    x = t(2, 3)
    return [
        Call([x], more={"then": "retained"}),
        Call([x], training=False, refused="R6", kind="ModeError", contains="eval"),
        Call([x], more=state("two.weight", "replace"), refused="A21", contains="was tied to"),
        Call([x], more=state("frozen", "thaw"), refused="A20", contains="frozen"),
        Call([x], more=state("frozen", "double"), refused="A20", contains="float64"),
        Call([x], more={"autocast": "bfloat16"}, refused="A9", kind="ModeError", contains="autocast"),
        Call([x], more={"written_between": ["one.weight"]}, refused="R3", kind="RuntimeError", contains="inplace"),
        Call([x], more={"then": "twice"}, refused="R4", kind="RuntimeError", contains="second time"),
        Call([x], more={"then": "second"}, refused="R5", kind="AutogradError", contains="second"),
    ]


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


class Branching(nn.Module):
    """Control flow that depends on data: branches, loops, scans and maps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0]))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        from torch._higher_order_ops import scan, while_loop
        from torch._higher_order_ops.map import map as map_rows

        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            after = carry * 0.5 + row
            return after, after.sin()

        (branch,) = torch.cond(x.sum() > 0, lambda x: (x * 2,), lambda x: (x.sin(),), (x * self.weight,))
        last, rows = scan(step, x[0] * 0, x * self.weight)
        turned = while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (torch.zeros((), dtype=torch.int64), x.detach() * 1))
        return branch, last, rows, turned[1], map_rows(lambda row, w: row * w, x, self.weight) * 2


class Operators(nn.Module):
    """Operators of a namespace that the reader brings; one of them writes to its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        torch.ops.vectors.count(self.seen, x)
        return torch.ops.vectors.twice(x) + self.seen


class Quantity(nn.Module):
    """A parameter that is a tensor subclass."""

    def __init__(self) -> None:
        super().__init__()
        parts = TwoPart(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), "unit")
        self.weight = nn.Parameter(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


TAG = {
    "none": None, "on": True, "count": 3, "word": "w", "float": 0.5, "complex": 1 + 2j, "dtype": torch.int8,
    "device": torch.device("cpu"), "layout": torch.strided, "format": torch.contiguous_format,
    "tuple": (1, 2), "list": [1.5, {"deep": 1}], "size": torch.Size([2]), "mapping": {2: "two", True: "yes"},
}  # fmt: skip


def _two(*shape: int, grad: bool = False, tag: Any = "unit") -> Held:
    return Held(TwoPart, {"a": t(*shape), "b": t(*shape)}, tag, grad)


def _of_two(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2 + x.sin(), rows.expand(3, rows.shape[0]) * 1.0


def _nested(*shape: int, grad: bool = False) -> Held:
    return Held(TwoPart, {"a": _two(*shape, tag=[1]), "b": _two(*shape, tag=[1])}, None, grad)


class Packed(nn.Module):
    """A parameter that is a tensor subclass whose parts begin inside their storages."""

    def __init__(self) -> None:
        super().__init__()
        whole, other = torch.arange(4.0), torch.ones(3)
        self.weight = nn.Parameter(TwoPart(whole[1:3], other[1:], "unit"))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin() + x, self.weight * 2


MORE_CASES: dict[str, Case] = {
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
        build={"dynamic_shapes": _batches("x", min=2, max=8)},
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
    "defaults": Case(
        "arguments by name, and defaults spelled out", ["A3"], of(defaults), lambda: (t(3), t(3)), _defaults_calls
    ),
    "ordered": Case(
        "an ordered dictionary, and a dictionary whose keys are no strings",
        ["C15"],
        of(ordered),
        lambda: (t(3),),
        lambda: [Call([t(3)])],
    ),
    "tied_and_frozen": Case(
        "a tied and a frozen parameter; what a reader refuses of state, modes and backwards",
        ["C4", "R4"],
        Tied,
        lambda: (t(2, 3),),
        _tied_calls,
    ),
    "channels_last": Case(
        "tangents in channels last", ["R2"], Normed, lambda: (t(1, 2, 2, 2), t(1, 2, 1, 2, 2)),
        lambda: [Call([t(1, 2, 2, 2), t(1, 2, 1, 2, 2)]), Call([t(1, 2, 2, 2), t(1, 2, 1, 2, 2)], more={"heads": [1]})],
    ),
    "recomputed_random": Case(
        "random numbers in a checkpoint, as eager draws them", ["G10", "R7"], Dropped, lambda: (t(3, 4, grad=True),),
        lambda: [Call([t(3, 4, grad=True)], more={"seed": 7})],
        build={"rng": "eager"},
    ),
    "second_derivatives": Case(
        "derivatives of derivatives, with random numbers drawn again",
        ["R8", "C31"],
        Curved,
        lambda: (t(3, grad=True), t(3, grad=True)),
        lambda: [
            Call([t(3, grad=True), t(3, grad=True)], more={"then": "second", "heads": [0], "seed": 3}),
            Call([t(3, grad=True), t(3, grad=True)], more={"then": "second", "seed": 3}),
        ],
        build={"second_derivatives": True, "rng": "eager"},
    ),
    "missing_tangents": Case(
        "a result that gets no gradient: what depends on it alone gets none, not zeros",
        ["R2", "C10"],
        of(parts),
        lambda: (t(2, grad=True), t(2, grad=True)),
        lambda: [Call([t(2, grad=True), t(2, grad=True)], more={"heads": [0]}), Call([t(2, grad=True), t(2)])],
    ),
    "identical": Case(
        "two arguments that must be one tensor, because the original asks",
        ["A8"],
        of(lambda x, y, z: x + y * 2 if x is y else x),
        lambda: (SAME, SAME, t(2)),
        lambda: [Call([SAME, SAME, t(2)]), Call([t(2), t(2), t(2)], refused="A8", contains="args[1]")],
    ),
    "distinct": Case(
        "two arguments that must be two tensors, because the original asks",
        ["A8"],
        of(lambda x, y: x if x is y else x + y * 2),
        lambda: (t(2), t(2)),
        lambda: [Call([t(2), t(2)]), Call([SAME, SAME], refused="A8", contains="args[1]")],
    ),
    "overlapping": Case(
        "an argument that is written to must share no memory with another",
        ["A8"],
        of(lambda x, y: x.add_(1) * y),
        lambda: (t(3), t(3)),
        lambda: [
            Call([t(3), t(3)]),
            Call([*_two_rows(t(2, 3))], refused="A4", contains="args[1]"),
            Call([*_overlapping(t(2, 3))], refused="A8", contains="args[1]"),
        ],
    ),
    "autocast": Case(
        "traced under autocast to bfloat16",
        ["A9"],
        of(lambda x, y: x @ y),
        lambda: (t(2, 2), t(2, 2)),
        lambda: [
            Call([t(2, 2), t(2, 2)], more={"autocast": "bfloat16"}),
            Call([t(2, 2), t(2, 2)], refused="A9", kind="ModeError", contains="autocast"),
        ],
        prepare=lambda: torch.autocast("cpu", torch.bfloat16),
    ),
    "deterministic": Case(
        "traced while torch used deterministic algorithms",
        ["A11"],
        of(lambda x, i: x.index_add(0, i, x)),
        lambda: (t(3), Own(torch.tensor([0, 0, 2]))),
        lambda: [Call([t(3), Own(torch.tensor([0, 0, 2]))], more={"deterministic": True})],
        prepare=_deterministic,
    ),
    "sparse": Case(
        "a sparse result",
        ["C32"],
        of(lambda x: (x.to_sparse(), x.to_sparse(1))),
        lambda: (Own(torch.tensor([[0.0, 1.0], [0.0, 0.0]])),),
        lambda: [Call([Own(torch.tensor([[0.0, 2.0], [3.0, 0.0]]))])],
    ),
    "control_flow": Case(
        "branches, loops, scans and maps",
        ["G7", "G8"],
        Branching,
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)]), Call([t(3, 2)], **INFER)],
    ),
    "operators": Case(
        "operators of another namespace, one of which writes to its argument",
        ["G9"],
        Operators,
        lambda: (t(3, grad=True),),
        lambda: [Call([t(3, grad=True)]), Call([t(3)], **INFER)],
    ),
    "element_types": Case(
        "a buffer of every element type", ["C16", "W3"], Typed, lambda: (t(2),), lambda: [Call([t(2)])],
    ),
    "subclass": Case(
        "arguments that are tensor subclasses, with metadata of every kind, one of a size that varies",
        ["K1", "K2", "K5"],
        of(_of_two),
        lambda: (_two(2, 3, grad=True, tag=TAG), t(2)),
        lambda: [
            Call([_two(2, 3, grad=True, tag=TAG), t(2)]),
            Call([_two(2, 3, grad=True, tag={**TAG, "count": 4}), t(2)], refused="K7", contains="args[0]"),
            Call([t(2, 3, grad=True), t(2)], refused="K7", contains="args[0]"),
        ],
    ),
    "subclass_nested": Case(
        "a tensor subclass that holds tensor subclasses, and a parameter whose parts begin inside their storages",
        ["K1", "K3"],
        Packed,
        lambda: (_nested(3, 2, grad=True),),
        lambda: [Call([_nested(3, 2, grad=True)])],
    ),
    "channels_of_any_size": Case(
        "tangents whose strides depend on a size; a view with a named argument",
        ["C13"],
        of(lambda x, y: ((x * 2).t().contiguous().t(), y.to(memory_format=torch.preserve_format).expand(2, -1, implicit=False))),
        lambda: (t(4, 3, grad=True), t(3, grad=True)),
        lambda: [Call([t(4, 3, grad=True), t(3, grad=True)]), Call([t(6, 3, grad=True), t(3)])],
        build={"dynamic_shapes": {"x": {0: torch.export.Dim("rows", min=2, max=8)}, "y": None}},
    ),
    "subclass_parameter": Case(
        "a parameter that is a tensor subclass", ["K3", "K4"], Quantity, lambda: (t(2),),
        lambda: [Call([t(2)]), Call([t(2)], **INFER)],
    ),
}  # fmt: skip

SAME = t(2)


# ---------------------------------------------------------------- what arguments must begin with, and be laid out as


def _from_start(x: Tensor) -> Tensor:
    return x.as_strided((2,), (1,), 1) * 2


def _fixed(x: Tensor) -> Tensor:
    y = x.contiguous()
    y.mul_(2)
    return y.sum()


class Inner(nn.Module):
    """Turns gradients on itself, also where its caller records none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x * self.weight


@dataclass
class Answer:
    value: Any
    nothing: Any = None


class Answers(transformers.utils.ModelOutput):  # type: ignore[misc]
    """A mapping with attributes."""


@dataclass
class Logits(Answers):
    loss: Any = None
    logits: Any = None
    hidden: Any = None


torch.utils._pytree.register_dataclass(Answer)


def _recorded(x: Tensor) -> Any:
    return Answer(x * 2), Logits(loss=x.sum(), logits=x + 1)


def _created(x: Tensor) -> Tensor:
    """Operators with literals of every kind."""
    made = torch.full((2,), 1 + 2j, device="cpu", layout=torch.strided, dtype=torch.complex64)
    return x * made.real + torch.full((2,), float("-inf")).clamp(min=0)


class Frozen(nn.Module):
    """Is built and loaded in eval mode, and warns while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def _odd_sizes(documents: Any) -> None:
    """Constraints that only just stay within the limits, and one that no value of ``s`` = 5 can be found for."""
    for method in documents.program["methods"].values():
        name = method["symbols"][0]["name"]
        method.setdefault("constraints", []).extend(
            [
                "(" * 100 + name + ")" * 100 + " > 0",
                "1" + " + 1" * 4_998 + " > 0",
                f"10 // ({name} - 5) < 100",
                f"min({name}, 3) == 3 and not {name} == 7 or trunc(sqrt({name} / 2)) >= 1",
            ]
        )


def _later(documents: Any) -> None:
    """Properties that no version has, which a reader ignores."""
    documents.program["later"] = {"type": "unheard of"}
    documents.program["format"]["minor"] = 99
    documents.program["state"][0]["later"] = [1]
    for method in documents.program["methods"].values():
        method["later"] = "word"
        method["results"][0]["later"] = None
    documents.target["later"] = True


def rare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.contiguous()[1], y.clone() * 2


def _rare(documents: Any) -> None:
    """What documents may hold and builds seldom write: named arguments of views, strides of tangents that vary, notes."""
    for method in documents.program["methods"].values():
        method["notes"] = ["traced by hand"]
        (step,) = method["results"][0]["view"]
        step["args"], step["kwargs"] = step["args"][:1], {"index": step["args"][1]}
        for tangent in method.get("backward", {}).get("tangents", ()):
            tangent["stride"] = [f"{method['symbols'][0]['name']} * 0 + 3", 1]
        documents.open_method(method)
        copied = next(node for node in documents.forward["nodes"] if node["op"] == "aten.clone.default")
        copied["kwargs"] = {"memory_format": {"type": "memory_format", "value": "preserve_format"}}
        documents.set_forward()


def _one_storage(documents: Any) -> None:
    """Both parts of the parameter in one stored tensor, with the padding that was between them."""

    def joined(header: Json) -> None:
        end = header.pop("weight.b")["data_offsets"][1]
        for name in [name for name in header if name.startswith("__aotpack_padding")]:
            del header[name]
        header["weight.a"] = {"dtype": "F32", "shape": [end // 4], "data_offsets": [0, end]}

    documents.set_weights(joined)
    documents.program["state"][0]["subclass"]["parts"][1].update(storage="weight.a", offset=16)


def _no_geometry(documents: Any) -> None:
    """The metadata of the first argument from its output: the output's own sizes, strides and offset."""
    for method in documents.program["methods"].values():
        for mutation in method["mutations"]:
            if mutation.get("kind") == "metadata":
                del mutation["geometry"]


class Signed(nn.Module):
    """A forward with parameters of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor, /, y: Tensor, *rest: Any, act: Any = torch.sin, shift: float = 1.0, **others: Any) -> Tensor:
        return act(self.head(self.embed(x))) + y + shift


def _pretrained(documents: Any) -> None:
    """What a writer tells of a model of transformers."""
    config = {"type": "mapping", "keys": ["model_type", "vocab_size"], "items": ["tiny", 5]}
    documents.program["pretrained"] = {
        "config": config,
        "generation_config": {"type": "mapping", "keys": ["max_length"], "items": [20]},
        "input_embeddings": "embed",
        "output_embeddings": "head",
        "attributes": {"main_input_name": "x"},
        "unsaved": ["head.weight"],
    }


class Half(nn.Module):
    """A dropout that stays off while the module around it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(2)
        self.drop.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.drop(x))


class AlwaysEval(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> AlwaysEval:
        return super().train(False)


class AlwaysTrain(nn.Identity):
    def train(self, mode: bool = True) -> AlwaysTrain:
        return super().train(True)


class Outer(nn.Module):
    """Submodules that are shared, or in a mode of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.inner = nn.Sequential(AlwaysEval(2), AlwaysTrain(), self.first)
        self.scale, self.helper = 2.0, torch.sin
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.helper(self.first(x))) * self.scale


LAST_CASES: dict[str, Case] = {
    "modules": Case(
        "modules that are shared, or in a mode of their own",
        ["N1", "N2", "N3"],
        Outer,
        lambda: (t(3, 2),),
        lambda: [Call([t(3, 2)]), Call([t(3, 2)], **INFER)],
    ),
    "flags": Case(
        "a submodule that must be in eval mode while the module trains",
        ["N4"],
        Half,
        lambda: (t(3, 2),),
        lambda: [
            Call([t(3, 2)], more={"flags": {"drop": False}}),
            Call([t(3, 2)], refused="N4", kind="ModeError", contains="drop"),
            Call([t(3, 2)], more={"flags": {"drop": False, "norm": False}}, refused="N4", kind="ModeError", contains="norm"),
        ],
    ),
    "interface": Case(
        "parameters of every kind, and what tools ask of a model of transformers",
        ["N5"],
        Signed,
        lambda: (Own(torch.tensor([1, 4])), t(2, 5)),
        lambda: [Call([Own(torch.tensor([1, 4])), t(2, 5)]), Call([Own(torch.tensor([0, 4])), t(2, 5)], **INFER)],
        edit=_pretrained,
    ),
    "from_start": Case(
        "an argument that must begin at the first element of its storage",
        ["A13"],
        of(_from_start),
        lambda: (t(4),),
        lambda: [Call([t(4)]), Call([Seen(t(6), [4], [1], 2, detached=True)], refused="A13", contains="args[0]")],
    ),
    "fixed_stride": Case(
        "an argument that must have the recorded strides",
        ["A15"],
        of(_fixed),
        lambda: (t(2, 3),),
        lambda: [Call([t(2, 3)]), Call([Seen(t(3, 2), [2, 3], [1, 2], detached=True)], refused="A15", contains="args[0]")],
    ),
    "turns_gradients_on": Case(
        "gradients recorded where the caller records none",
        ["R9"],
        Inner,
        lambda: (t(2, grad=True),),
        lambda: [Call([t(2, grad=True)]), Call([t(2, grad=True)], **INFER)],
    ),
    "records": Case(
        "records of two kinds, with fields that are always None",
        ["C15"],
        of(_recorded),
        lambda: (t(3),),
        lambda: [Call([t(3)])],
    ),
    "literals": Case(
        "operators with arguments of every kind", ["G3"], of(_created), lambda: (t(2, grad=True),),
        lambda: [Call([t(2, grad=True)])],
    ),
    "built_in_eval": Case(
        "a module that was built in eval mode, and is loaded in it",
        ["R7"],
        Frozen,
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)], training=False), Call([t(3, 2)], **INFER)],
        build={"methods": ("eval", "infer")},
    ),
    "expressions": Case(
        "constraints of the greatest depth and length, and one that has no value at some size",
        ["E1", "E2", "E3"],
        of(lambda x: x * 2),
        lambda: (t(4, 2, grad=True),),
        lambda: [
            Call([t(4, 2, grad=True)]),
            Call([t(7, 2, grad=True)]),
            Call([t(5, 2, grad=True)], refused="E3", contains="must"),
        ],
        build={"dynamic_shapes": _batches("x", min=2, max=8)},
        edit=_odd_sizes,
    ),
    "later_properties": Case(
        "properties of a later minor version, which are ignored",
        ["V1", "V3"],
        lambda: nn.Linear(2, 2),
        lambda: (t(3, 2),),
        lambda: [Call([t(3, 2)])],
        edit=_later,
    ),
    "geometry_of_the_output": Case(
        "a change of sizes and strides without geometry: those of the forward output",
        ["R1"],
        of(lambda x, y: (x.t_(), x + y)[1]),
        lambda: (t(2, 3), t(3, 2)),
        lambda: [Call([t(2, 3), t(3, 2)])],
        edit=_no_geometry,
    ),
    "rarely_written": Case(
        "what documents may hold and builds seldom write: notes, named arguments of views, strides of tangents that vary",
        ["C13"],
        of(rare),
        lambda: (t(2, 3, grad=True), t(4, 3, grad=True)),
        lambda: [
            Call([t(2, 3, grad=True), t(4, 3, grad=True)]),
            Call([Seen(t(3, 2, grad=True, computed=True), [2, 3], [1, 2]), t(5, 3, grad=True)]),
        ],
        build={"dynamic_shapes": {"x": None, "y": {0: torch.export.Dim("rows", min=2, max=8)}}},
        edit=_rare,
    ),
    "subclass_in_one_storage": Case(
        "a parameter that is a tensor subclass whose parts share a stored tensor",
        ["K3"],
        Quantity,
        lambda: (t(2),),
        lambda: [Call([t(2)])],
        edit=_one_storage,
    ),
    "targets": Case(
        "targets of every kind beside the portable one; none of them fits any machine",
        ["C25", "C26", "C27"],
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)])],
        build={"dynamic_shapes": [{0: torch.export.Dim("rows", min=2, max=8)}]},
        edit=add_targets,
    ),
}  # fmt: skip
CASES |= LAST_CASES


def _overlapping(whole: Own) -> tuple[Seen, Seen]:
    return Seen(whole, [3], [1], detached=True), Seen(whole, [3], [1], 2, detached=True)


CASES |= MORE_CASES


def _two_rows(whole: Own) -> tuple[Seen, Seen]:
    return Seen(whole, [3], [1]), Seen(whole, [4], [1], 2)


def _graded_rows(whole: Own) -> tuple[Seen, Seen]:
    return Seen(whole, [2], [1]), Seen(whole, [2], [1], 1, detached=True)
