"""Valid vectors of state, modes, autograd, identity, control flow, operators, element types and tensor subclasses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .arguments import Held, Own, Seen
from .brought import TwoPart
from .case import INFER, Call, Case, Json, of, t, two_rows


class Normed(nn.Module):
    """Computes channels last, in two and three dimensions, so that tangents have that layout too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 2, 1, 1))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        flat = (x * self.weight).contiguous(memory_format=torch.channels_last)
        return flat, (y * self.weight[..., None]).contiguous(memory_format=torch.channels_last_3d)


class Dropped(nn.Module):
    """Draws eager's random numbers, in a checkpoint that the backward computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        def block(x: Tensor) -> Tensor:
            return torch.dropout(self.layer(x).sin(), 0.5, True).cos()

        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]


class Looked(nn.Module):
    """Reads rows of a table, and elements of an argument, both with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)

    def forward(self, i: Tensor, x: Tensor) -> Tensor:
        return self.table(i).sin() * torch.gather(x, 0, i[:, None] % 3, sparse_grad=True)


class Curved(nn.Module):
    """Supports derivatives of derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.sin() * self.weight).sum(), torch.dropout(y * self.weight, 0.5, True).exp()


def parts(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each argument affects only one of the two results."""
    return x.sin(), y.cos() * 2


# ---------------------------------------------------------------- tensor subclasses, operators, element types


class Typed(nn.Module):
    """Has a buffer of each element type."""

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
    """Has control flow that depends on data: branches, loops, scans and maps."""

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
    """Uses operators of a namespace that the reader provides. One of them writes to its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        torch.ops.vectors.count(self.seen, x)
        return torch.ops.vectors.twice(x) + self.seen


class Quantity(nn.Module):
    """Has a parameter that is a tensor subclass."""

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
    """Has a parameter that is a tensor subclass, with parts that begin inside their storages."""

    def __init__(self) -> None:
        super().__init__()
        whole, other = torch.arange(4.0), torch.ones(3)
        self.weight = nn.Parameter(TwoPart(whole[1:3], other[1:], "unit"))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin() + x, self.weight * 2


SAME = t(2)


def _overlapping(whole: Own) -> tuple[Seen, Seen]:
    return Seen(whole, [3], [1], detached=True), Seen(whole, [3], [1], 2, detached=True)


AUTOGRAD: dict[str, Case] = {
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
            Call([*two_rows(t(2, 3))], refused="A4", contains="args[1]"),
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
    "sparse_gradients": Case(
        "sparse gradients: of a table, and of gathered elements of an argument",
        ["C38"],
        Looked,
        lambda: (Own(torch.tensor([2, 0, 2])), t(3, 2, grad=True)),
        lambda: [Call([Own(torch.tensor([1, 1, 2])), t(3, 2, grad=True)]), Call([Own(torch.tensor([0, 3, 0])), t(3, 2)])],
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
