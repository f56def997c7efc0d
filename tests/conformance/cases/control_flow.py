"""Control flow: cond, while_loop, scan, map, associative_scan, nested compile regions, flex attention."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops import InvokeQuant, associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_rows
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from aotpack._torch.api.recurrent import UNROLLED
from devtools.harness import Call, Case, Given, Model, case, const, g, inputs, module_case, t

BATCH = {"x": {0: torch.export.Dim.DYNAMIC}}
TURNS = (*(Call(seed) for seed in range(1, 7)), *(Call(seed, training=False, grad=False) for seed in (7, 8)))
"""Seeds enough for either branch."""
TRAINED = (Call(1), Call(2))
_BATCHES = tuple(Call(size, inputs=Given(lambda gen, size=size: ((torch.randn(size, 4, generator=gen),), {}))) for size in (2, 6))
_KINDS = (nn.Tanh, nn.Tanh, nn.Sigmoid, nn.ReLU, nn.Tanh, nn.ReLU)
INFERRED = (Call(1, training=False, grad=False), Call(2, training=False, grad=False))


class Branches(nn.Module):
    """A branch for each of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.left(x).sin(), lambda x: self.right(x).cos(), (x,))


class Nest(nn.Module):
    """A branch within a branch, results in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        def first(x: Tensor) -> dict[str, Tensor]:
            inner = torch.cond(x[0, 0] > 0, lambda x: self.left(x), lambda x: self.right(x).exp(), (x,))
            return {"a": inner, "b": x * 2}

        def second(x: Tensor) -> dict[str, Tensor]:
            return {"a": x.sin(), "b": self.left(x)}

        return torch.cond(x.sum() > 0, first, second, (x,))


class Normalised(nn.Module):
    """A branch that writes to buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.norm(x), lambda x: x.cos(), (x,))


class DroppedBranch(nn.Module):
    """A branch that draws random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: F.dropout(x * 2, 0.5, True), lambda x: x.cos(), (x,))


class Constants(nn.Module):
    """Branches that close over tensors, one of them made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(3.0)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * self.table, lambda x: x + torch.tensor([1.0, 2.0, 3.0]), (x,))


class Loop(nn.Module):
    """Turns of a layer, as many as a tensor says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
        return while_loop(lambda i, x: i > 0, lambda i, x: (i - 1, self.layer(x).tanh()), (turns, x))


def loop(x: Tensor) -> tuple[Tensor, Tensor]:
    """Doubles until the sum is large."""
    return while_loop(lambda n, x: x.abs().sum() < 100, lambda n, x: (n + 1, x * 2), (torch.tensor(0), x))


def counted(x: Tensor) -> Tensor:
    """Counts in Python's integers."""
    return while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x + i), (0, x))[1]


def counted_result(x: Tensor) -> Any:
    """Returns the count."""
    return while_loop(lambda i, x: i < x.shape[0], lambda i, x: (i + 1, x + i), (0, x))


def loop_with_branch(x: Tensor) -> Tensor:
    """A branch in each turn."""

    def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.cond(x.sum() > 0, lambda x: x.sin() - 1, lambda x: x.cos() * 2, (x,))

    return while_loop(lambda i, x: i < 4, body, (torch.tensor(0), x))[1]


def loop_in_loop(x: Tensor) -> Tensor:
    """A loop in each turn."""

    def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, while_loop(lambda j, x: j < i, lambda j, x: (j + 1, x.sin() * 2), (torch.tensor(0), x))[1]

    return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))[1]


class Recurrent(nn.Module):
    """A recurrent cell over the rows of its input."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.cell = nn.Linear(6, 3)
        self.options = options

    def forward(self, carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            carry = self.cell(torch.cat([carry, row], -1)).tanh()
            return carry, carry * row

        return scan(step, carry, x, **self.options)


def scan_of_trees(carry: dict[str, Tensor], x: dict[str, Tensor]) -> Any:
    """Two carries, two inputs, two outputs."""

    def step(c: dict[str, Tensor], r: dict[str, Tensor]) -> Any:
        new = {"s": c["s"] + r["a"].sin(), "p": c["p"] * r["b"]}
        return new, (new["s"] * new["p"], r["a"].cos())

    return scan(step, carry, x)


class Decay(nn.Module):
    """A recurrence with two parameters of one shape: their gradients begin with the same zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.phase = nn.Parameter(torch.rand(2)), nn.Parameter(torch.rand(2))

    def forward(self, x: Tensor) -> Tensor:
        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            new = carry * self.rate.sigmoid() + row.sin() * (self.phase + carry).cos()
            return new, new.clone()

        return scan(step, x[0] * 0.0, x)[1]


class Rows(nn.Module):
    """A layer on each row, by ``map``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return map_rows(lambda row, y: self.layer(row).sin() * y, x, y)


def rows_of_trees(x: dict[str, Tensor]) -> Any:
    """A tree in, a tree out."""
    return map_rows(lambda row: {"sum": row["a"] + row["b"], "parts": (row["a"].sin(), row["b"].cos())}, x)


def rows_of_rows(x: Tensor) -> Tensor:
    """A map in a map."""
    return map_rows(lambda rows: map_rows(lambda row: row.sin() * 2, rows), x)


def running(x: Tensor) -> Tensor:
    """A running product that is no cumprod."""
    return associative_scan(lambda a, b: a * b, x.sin() + 2, 0, combine_mode="generic")


class Block(nn.Module):
    """A nested compile region."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.layer, self.dropout = nn.LayerNorm(4), nn.Linear(4, 4), dropout

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.layer(self.norm(x)).relu(), self.dropout, self.training)


class Stack(nn.Module):
    """Identical blocks one after another."""

    def __init__(self, block: Callable[[], nn.Module] = Block, count: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([block() for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


class Outer(nn.Module):
    """A region of regions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.ModuleList([Block(0.5), Block(0.5)]), nn.Linear(4, 4)

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        for block in self.inner:
            x = block(x)
        return self.last(x).tanh()


class NormBlock(nn.Module):
    """A region that writes to its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).relu()


class Layer(nn.Module):
    """A layer with an activation of its own, not marked as a region."""

    def __init__(self, activation: Callable[[], nn.Module] = nn.ReLU, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer, self.activation, self.dropout = nn.Linear(4, 4), activation(), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.activation(self.layer(x)))


class KindsOfLayers(nn.Module):
    """Layers of equal sizes whose submodules differ."""

    def __init__(self, *activations: Callable[[], nn.Module], region: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([MarkedLayer(each) if region else Layer(each) for each in activations])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class MarkedLayer(Layer):
    """A layer that the model marks."""

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Tied(nn.Module):
    """One block, called again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.block(x)
        return x


class BranchBlock(nn.Module):
    """A region with a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.layer(x).sin(), lambda x: x.cos(), (x,))


@torch.compiler.nested_compile_region
def two_results(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A region with two results."""
    return x.sin() * y, y.exp()


def regions_of_two(x: Tensor, y: Tensor) -> Tensor:
    """The second result is used once only."""
    a, b = two_results(x, y)
    c, _ = two_results(a, b)
    return c


@torch.compiler.nested_compile_region
def its_input(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns what it was given."""
    return x, x.sin()


def quantised(x: Tensor) -> Tensor:
    """A subgraph marked for a compiler, with an object of options."""
    return InvokeQuant()(lambda x, y: (x.sin() * y,), x, x, scheme="nf4")[0] * 2


@torch.compiler.nested_compile_region
def writes_to_input(x: Tensor) -> Tensor:
    """Writes to what it was given."""
    x.add_(1)
    return x.sin()


def writing_regions(x: Tensor) -> Tensor:
    """Two regions that write."""
    return writes_to_input(x) + writes_to_input(x)


class Attention(nn.Module):
    """Flex attention with a bias from a buffer."""

    def __init__(self, mask: BlockMask | None = None, **options: Any) -> None:
        super().__init__()
        self.register_buffer("bias", torch.arange(4.0))
        self.mask, self.options = mask, options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + self.bias[h] * (i - j)

        return flex_attention(q, k, v, score_mod=score_mod, block_mask=self.mask, **self.options)


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Each position sees those before it."""
    return i >= j


def causal_mask() -> BlockMask:
    return create_block_mask(causal, None, None, 128, 128, device="cpu")


def asserted(x: Tensor) -> Tensor:
    torch._assert(x.dim() == 1, "one dimension")
    torch._assert(x.abs().max() < 100, "too large")
    return x * 2


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mask is made inside."""
    return flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, 128, 128, device="cpu"))


def with_logsumexp(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """The second result of flex attention."""
    return flex_attention(q, k, v, return_lse=True)


def _mutates(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.add_(1).sin(), lambda x: x.cos(), (x,))


def _gives_operand(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x, lambda x: x.cos(), (x,))


def _gives_view(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x[:2], lambda x: x[2:].cos(), (x,))


def _other_shapes(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x[:1] * 2, lambda x: x[:2].cos(), (x,)).sum()


def _in_place_inside(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin().mul_(2).add_(x), lambda x: x.clone().fill_(3) * x, (x,))


def _one_gradient(x: Tensor, y: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x, y: x * 2, lambda x, y: y.sin(), (x, y))


def _integers(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cond(x.sum() > 0, lambda x: (x.sin(), (x > 0).long()), lambda x: (x.cos(), (x < 0).long()), (x,))


def _in_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = torch.cond(x.sum() > 0, lambda x: x.exp(), lambda x: x.cos(), (x,))
    return x * scale


def _of_size(x: Tensor) -> Tensor:
    return torch.cond(x.shape[0] > 4, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))


def _with_size(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin() / x.shape[0], lambda x: x.cos() + x.shape[0], (x,))


def _constant_predicate(x: Tensor, flag: bool) -> Tensor:
    return torch.cond(flag, lambda x: x.sin(), lambda x: x.cos(), (x,))


def _loop_writes_operand(x: Tensor) -> Tensor:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.add_(1)), (torch.tensor(0), x))[1]


def _loop_captures_its_carry(x: Tensor) -> tuple[Tensor, Tensor]:
    def more(i: Tensor, y: Tensor) -> Tensor:
        return (i < 3) & (x.sum() < 100)

    whole = while_loop(more, lambda i, y: (i + 1, y * 2 + x), (torch.tensor(0), x))[1]
    return whole, while_loop(more, lambda i, y: (i + 1, y * 2 + x[1:]), (torch.tensor(0), x[:-1]))[1]


def _loop_writes_captured(x: Tensor, total: Tensor) -> Tensor:
    def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        total.add_(x.sum())
        return i + 1, x * 2

    return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))[1]


def _loop_keeps_a_carry(x: Tensor, y: Tensor) -> Any:
    return while_loop(lambda i, x, y: i < 3, lambda i, x, y: (i + 1, x * y, y), (torch.tensor(0), x, y))


def _qkv(size: int = 128, heads: tuple[int, int] = (4, 4), dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    return (
        t(2, heads[0], size, 16, dtype=dtype),
        t(2, heads[1], size, 16, dtype=dtype),
        t(2, heads[1], size, 16, dtype=dtype),
    )


def _rows(*sizes: int) -> tuple[Call, ...]:
    """Calls with other numbers of rows than the example."""
    return tuple(Call(i, inputs=Given(_leaf(size))) for i, size in enumerate(sizes))


PLAIN_ROWS = tuple(Call(size, inputs=inputs(t(size, 3))) for size in (2, 6))


class OverSteps(nn.Module):
    """All results of a recurrent layer without a batch, in both directions."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.layer = kind(3, 4, bidirectional=True, **options)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x)


def _leaf(size: int) -> Callable[[torch.Generator], Any]:
    return lambda generator: ((torch.randn((size, 3), generator=generator).requires_grad_(),), {})


def cond(name: str, model: Model, *specs: Any, **options: Any) -> Case:
    options.setdefault("calls", TURNS)
    return case(f"control flow: cond, {name}", model, *specs, **options)


def inferred(name: str, make: Callable[[], nn.Module], *specs: Any) -> Case:
    return module_case(f"control flow: {name}", make, *specs, calls=INFERRED, methods=("infer",))


CASES: list[Case] = [
    module_case("control flow: cond, closures over parameters", Branches, g(4, 3), calls=TURNS),
    module_case("control flow: cond in cond, dictionary of results", Nest, g(4, 3), calls=TURNS),
    module_case("control flow: cond, dynamic batch", Branches, g(4, 3), calls=_rows(2, 5, 7, 9), dynamic_shapes=BATCH),
    cond("in place on what a branch made", _in_place_inside, g(4, 3)),
    cond("gradient through one branch each", _one_gradient, g(4, 3), g(4, 3)),
    cond("integer results", _integers, g(4, 3)),
    cond("under no_grad", _in_no_grad, g(4, 3)),
    cond("predicate from a size", _of_size, g(4, 3), calls=_rows(2, 5, 7, 3), dynamic_shapes=BATCH),
    cond("sizes inside", _with_size, g(4, 3), calls=_rows(2, 5, 7, 3, 4, 6), dynamic_shapes=BATCH),
    cond("predicate is a constant", _constant_predicate, g(4, 3), const(True)),
    module_case("control flow: cond, closures over constants", Constants, g(4, 3), calls=TURNS),
    cond("a branch writes to its operand", _mutates, g(4, 3)),
    case(
        "control flow: cond, a branch writes to its operand, inference",
        _mutates,
        t(4, 3),
        calls=TURNS[-2:],
        methods=("infer",),
        ignore="version counter",  # whichever branch is taken, the new value is written back
    ),
    cond("a branch returns its operand", _gives_operand, g(4, 3)),
    cond("a branch returns a view of its operand", _gives_view, g(4, 3)),
    cond("branches of other sizes", _other_shapes, g(4, 3)),
    module_case("control flow: cond, a branch writes to buffers", Normalised, g(4, 3), calls=TURNS),
    module_case("control flow: cond, a branch writes to buffers, eval", Normalised, g(4, 3), calls=INFERRED, methods=("infer",)),
    module_case("control flow: cond, a branch draws random numbers", DroppedBranch, g(4, 3), calls=TURNS),
    module_case(
        "control flow: cond, a branch draws random numbers, inference",
        DroppedBranch,
        t(4, 3),
        calls=INFERRED,
        methods=("infer",),
    ),
    module_case("control flow: while_loop, closures over parameters", Loop, g(4, 3), const(torch.tensor(3)), calls=TRAINED),
    module_case("control flow: while_loop, no turn", Loop, g(4, 3), const(torch.tensor(0))),
    case("control flow: while_loop, as long as the data says", loop, t(4, 3), calls=TURNS),
    case("control flow: while_loop, gradients", loop, g(4, 3), calls=TURNS),
    case("control flow: while_loop, Python integers", counted, t(4, 3)),
    case("control flow: while_loop, Python integers, dynamic", counted, t(4, 3), calls=PLAIN_ROWS, dynamic_shapes=BATCH),
    case("control flow: while_loop, the count returned", counted_result, t(4, 3)),
    case("control flow: while_loop, cond in each turn", loop_with_branch, t(4, 3), calls=TURNS),
    case("control flow: while_loop, cond in each turn, gradients", loop_with_branch, g(4, 3), calls=TURNS),
    case("control flow: while_loop in while_loop", loop_in_loop, t(4, 3)),
    case("control flow: while_loop, writes to its operand", _loop_writes_operand, t(4, 3)),
    case(
        "control flow: while_loop, writes to a captured tensor, inference",
        _loop_writes_captured,
        t(4, 3),
        t(1),
        calls=INFERRED,
        methods=("infer",),
    ),
    case("control flow: while_loop, a carry that stays", _loop_keeps_a_carry, t(4, 3), t(4, 3)),
    module_case("control flow: scan, closures over parameters", Recurrent, g(2, 3), g(5, 2, 3)),
    module_case("control flow: scan, backwards", lambda: Recurrent(reverse=True), g(2, 3), g(5, 2, 3)),
    module_case("control flow: scan, another dimension", lambda: Recurrent(dim=1), g(2, 3), g(2, 5, 3)),
    module_case("control flow: scan, of another scan's rows", lambda: nn.Sequential(Decay(), Decay()), g(5, 3, 2)),
    case(
        "control flow: scan, trees",
        scan_of_trees,
        Given(
            lambda generator: (
                tuple(
                    {key: torch.randn(shape, generator=generator).requires_grad_() for key, shape in shapes.items()}
                    for shapes in ({"s": (3,), "p": (3,)}, {"a": (5, 3), "b": (5, 3)})
                ),
                {},
            )
        ),
    ),
    module_case(
        "control flow: scan, dynamic length",
        Recurrent,
        g(2, 3),
        g(5, 2, 3),
        dynamic_shapes={"carry": None, "x": {0: torch.export.Dim.DYNAMIC}},
        calls=tuple(
            Call(
                size,
                inputs=Given(
                    lambda generator, size=size: (
                        (
                            torch.randn(2, 3, generator=generator).requires_grad_(),
                            torch.randn(size, 2, 3, generator=generator).requires_grad_(),
                        ),
                        {},
                    )
                ),
            )
            for size in (3, 7)
        ),
    ),
    module_case("control flow: map, closures over parameters", Rows, g(4, 3), g(3)),
    case(
        "control flow: map, trees",
        rows_of_trees,
        Given(
            lambda generator: (
                ({key: torch.randn(4, 3, generator=generator).requires_grad_() for key in "ab"},),
                {},
            )
        ),
    ),
    case("control flow: map in map", rows_of_rows, g(4, 3)),
    case("control flow: map, dynamic length", rows_of_rows, g(4, 3), calls=_rows(2, 6), dynamic_shapes=BATCH),
    case("control flow: associative_scan", running, g(7, 3)),
    module_case("control flow: nested compile regions, identical layers", Stack, g(3, 4)),
    module_case("control flow: nested compile regions, dropout", lambda: Stack(lambda: Block(0.5)), g(3, 4)),
    module_case(
        "control flow: nested compile regions, dynamic batch",
        Stack,
        t(3, 4),
        dynamic_shapes=BATCH,
        calls=_BATCHES,
    ),
    module_case("control flow: nested compile regions in regions", lambda: Stack(Outer, 3), g(3, 4)),
    module_case(
        "control flow: nested compile regions, buffers written",
        lambda: Stack(NormBlock),
        g(3, 4),
        ignore="version counter",  # as for BatchNorm outside of regions
    ),
    module_case("control flow: nested compile regions, one layer thrice", Tied, g(3, 4)),
    module_case("control flow: nested compile regions, cond inside", lambda: Stack(BranchBlock), g(3, 4), calls=TURNS),
    module_case("control flow: nested compile regions, kinds of layers", lambda: KindsOfLayers(*_KINDS, region=True), g(3, 4)),
    module_case("control flow: regional build, kinds of layers", lambda: KindsOfLayers(*_KINDS), g(3, 4), regional=True),
    module_case("control flow: regional build, dropout", lambda: Stack(lambda: Layer(dropout=0.5)), g(3, 4), regional=True),
    module_case(
        "control flow: regional build, dynamic batch",
        lambda: Stack(Layer),
        t(3, 4),
        regional=True,
        dynamic_shapes=BATCH,
        calls=_BATCHES,
    ),
    case("control flow: nested compile regions, a result unused", regions_of_two, g(3), g(3)),
    case("control flow: nested compile regions, returns its input", its_input, g(3)),
    case("control flow: nested compile regions, writes to its input", writing_regions, t(3)),
    case("control flow: invoke_quant, with options", quantised, g(4, 3), calls=TRAINED),
    inferred("flex attention, score_mod", Attention, *_qkv()),
    inferred("flex attention, block mask", lambda: Attention(causal_mask()), *_qkv()),
    inferred("flex attention, grouped queries", lambda: Attention(causal_mask(), enable_gqa=True), *_qkv(heads=(4, 2))),
    inferred("flex attention, bfloat16", lambda: Attention(causal_mask()), *_qkv(dtype=torch.bfloat16)),
    inferred("flex attention, scale", lambda: Attention(scale=0.3), *_qkv(size=60)),
    case("control flow: torch._assert of a tensor", asserted, g(3)),
    case("control flow: flex attention, mask made inside", attended, *_qkv(), calls=INFERRED, methods=("infer",)),
    case("control flow: flex attention, logsumexp", with_logsumexp, *_qkv(), calls=INFERRED, methods=("infer",)),
    case(
        "control flow: flex attention, gradients on a CPU (eager raises)",
        attended,
        g(1, 4, 128, 16),
        g(1, 4, 128, 16),
        t(1, 4, 128, 16),
    ),
]
CASES += [
    case(
        f"control flow: while_loop, captures what it carries, {target}",
        _loop_captures_its_carry,
        t(4, 3),
        calls=INFERRED,
        methods=("infer",),
        front_ends=("dynamo",),
        targets=(target,),
    )
    for target in ("portable", "cpu")
]
CASES += [
    module_case(
        f"control flow: {name} over any number of steps, {target}",
        functools.partial(OverSteps, kind, **options),
        g(4, 3),
        calls=_rows(2, 9, 1),
        dynamic_shapes={"x": {0: torch.export.Dim("steps", min=1, max=64)}},
        front_ends=("trace",),
        targets=(target,),
    )
    for target in ("portable", "cpu")
    for name, kind, options in (
        ("LSTM", nn.LSTM, {}),
        ("LSTM with projections", nn.LSTM, {"proj_size": 2}),
        ("GRU", nn.GRU, {}),
        ("GRU of two layers", nn.GRU, {"num_layers": 2}),
        ("RNN", nn.RNN, {"nonlinearity": "relu"}),
    )
]
CASES += [
    module_case(
        f"control flow: a GRU over any number of steps and a batch that varies, {target}",
        functools.partial(OverSteps, nn.GRU),
        g(4, 2, 3),
        calls=tuple(Call(rows, inputs=inputs(g(rows, batch, 3))) for rows, batch in ((2, 4), (9, 5))),
        dynamic_shapes={"x": {0: torch.export.Dim("steps", min=2, max=64), 1: torch.export.Dim("batch", min=2, max=64)}},
        front_ends=("trace",),
        targets=(target,),
    )
    for target in ("portable", "cpu")
]
CASES += [
    module_case(
        f"control flow: a GRU over many steps, {target}",
        functools.partial(OverSteps, nn.GRU),
        g(UNROLLED + 1, 3),
        front_ends=("trace",),
        targets=(target,),
    )
    for target in ("portable", "cpu")
]
