"""What may vary on which target: builds small models with sizes that vary, and compares them with eager at other sizes.

``python -m devtools.varying_sizes run TARGET [PATTERN]`` runs the rows and keeps what came out. ``page`` writes the table
of docs/guide/dynamic-shapes.md.
"""

from __future__ import annotations

import copy
import fnmatch
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import aotpack
import aotpack_loader
from aotpack_loader.errors import AotpackError

from .pages import replace
from .paths import RESULTS, ROOT

FILE: Final = RESULTS / "varying_sizes.json"
PAGE: Final = ROOT / "docs/guide/dynamic-shapes.md"
TARGETS: Final = ("portable", "cpu")

_B, _T = Dim("b", min=2, max=64), Dim("t", min=2, max=64)


class Row(NamedTuple):
    """A model and what varies: the example of the build comes first, then those that are compared."""

    what: str
    varies: str
    model: Callable[[], Any]
    examples: Callable[[], Sequence[tuple[Any, ...]]]
    sizes: Any
    options: dict[str, Any] = {}


class _First(nn.Module):
    """A layer whose first result counts."""

    def __init__(self, layer: nn.Module, *rest: Any) -> None:
        super().__init__()
        self.layer, self.rest = layer, rest

    def forward(self, x: Tensor) -> Any:
        return self.layer(x, *self.rest)[0]


class _Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            states.append(state)
        return torch.stack(states, 1)


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(4, 5, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.layer(packed)[1]  # type: ignore[no-any-return]


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.layers(x, mask=mask)  # type: ignore[no-any-return]


class _Grid(nn.Module):
    """Keeps a grid for the length of its last call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.grid = nn.Linear(2, 3), None

    def forward(self, x: Tensor) -> Tensor:
        if self.grid is None or self.grid.shape[0] != x.shape[1]:
            self.grid = torch.linspace(0, 1, x.shape[1])  # type: ignore[assignment]
        return self.layer(torch.stack([x, self.grid.expand_as(x)], -1))  # type: ignore[no-any-return,attr-defined]


def _grouped(x: Tensor, weight: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    return F.conv2d(x.reshape(1, batch * channels, height, width), weight.reshape(-1, 1, 3, 3), groups=batch * channels)


def _per_sample(x: Tensor, weight: Tensor) -> Tensor:
    gradient = torch.func.grad(lambda w, row: (F.layer_norm(row @ w, (3,)) * row[:3]).sum())
    return torch.func.vmap(gradient, (None, 0))(weight, x)


def _gamma(x: Tensor) -> Tensor:
    return torch.distributions.Gamma(x.exp(), 1.0).rsample()


def _selected(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0].cos().sum(0)


def _per_graph(x: Tensor, graph: Tensor) -> Tensor:
    return x.new_zeros(int(graph.max()) + 1, x.shape[1]).index_add(0, graph, x.sin())


def _r(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


ROWS: Final = (
    Row(
        "`nn.LSTM`",
        "batch, steps",
        lambda: _First(nn.LSTM(4, 5, batch_first=True)),
        lambda: [(_r(3, 7, 4),), (_r(5, 40, 4),)],
        {"x": {0: _B, 1: _T}},
    ),
    Row(
        "`nn.GRU`, two layers, both directions",
        "batch, steps",
        lambda: _First(nn.GRU(4, 5, 2, batch_first=True, bidirectional=True)),
        lambda: [(_r(3, 7, 4),), (_r(5, 11, 4),)],
        {"x": {0: _B, 1: _T}},
    ),
    Row(
        "packed sequences",
        "batch, steps, lengths",
        _Packed,
        lambda: [(_r(3, 7, 4), torch.tensor([7, 5, 2])), (_r(2, 9, 4), torch.tensor([1, 9]))],
        {"x": {0: _B, 1: _T}, "lengths": {0: _B}},
    ),
    Row("loop over cells in Python", "batch, steps", _Cells, lambda: [(_r(3, 7, 4),), (_r(5, 30, 4),)], {"x": {0: _B, 1: _T}}),
    Row("attention, causal mask", "batch, length", _Encoder, lambda: [(_r(3, 7, 8),), (_r(2, 12, 8),)], {"x": {0: _B, 1: _T}}),
    Row(
        "convolution, batch norm",
        "batch, height, width",
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        lambda: [(_r(3, 3, 9, 8),), (_r(2, 3, 12, 17),)],
        ({0: _B, 2: Dim("h", min=4, max=64), 3: Dim("w", min=4, max=64)},),
    ),
    Row(
        "convolution, `groups=batch * channels`",
        "batch",
        lambda: _grouped,
        lambda: [(_r(4, 3, 8, 8), _r(4, 3, 3, 3)), (_r(2, 3, 8, 8), _r(2, 3, 3, 3))],
        {"x": {0: _B}, "weight": {0: _B}},
    ),
    Row(
        "`vmap` of `grad`, layer norm",
        "batch",
        lambda: _per_sample,
        lambda: [(_r(5, 4), _r(4, 3)), (_r(9, 4), _r(4, 3))],
        {"x": {0: _B}, "weight": None},
    ),
    Row(
        "`vmap` of batch norm",
        "batch",
        lambda: lambda x: torch.func.vmap(lambda rows: F.batch_norm(rows, None, None, training=True))(x),
        lambda: [(_r(3, 6, 4),), (_r(5, 6, 4),)],
        {"x": {0: _B}},
    ),
    Row(
        "`cdist`",
        "rows of both",
        lambda: torch.cdist,
        lambda: [(_r(12, 3), _r(13, 3)), (_r(40, 3), _r(30, 3))],
        ({0: _B}, {0: _T}),
    ),
    Row("`Gamma.rsample()`", "batch", lambda: _gamma, lambda: [(_r(5),), (_r(9),)], {"x": {0: _B}}, {"rng": "eager"}),
    Row("`linspace`, kept for the size", "length", _Grid, lambda: [(_r(3, 7),), (_r(3, 9),)], {"x": {1: _T}}),
    Row(
        "rows that a mask selects",
        "batch, number of rows",
        lambda: _selected,
        lambda: [(_r(6, 4),), (_r(11, 4),)],
        {"x": {0: _B}},
    ),
    Row(
        "a number of graphs that is data",
        "nodes, graphs",
        lambda: _per_graph,
        lambda: [(_r(6, 4), torch.arange(6) // 3), (_r(9, 4), torch.arange(9) // 2)],
        {"x": {0: _B}, "graph": {0: _B}},
    ),
)


def outcome(row: Row, target: str) -> str:
    """``varies`` if values and gradients are eager's at all sizes, ``fixed`` if the build refuses, else what differs."""
    torch.manual_seed(0)
    model, examples = row.model(), row.examples()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/m.aotpack"
        options = {"targets": (target,), "methods": ("train",), "dynamic_shapes": row.sizes, **row.options}
        try:
            aotpack.build(copy.deepcopy(model), examples[0], out=path, **options)
        except AotpackError:
            return "fixed"
        loaded = aotpack_loader.load(path, backend=target, trust="all")
        for example in examples:
            found, expected = (_observed(each, example) for each in (loaded, model))
            if len(found) != len(expected) or not all(
                torch.allclose(*pair, 1e-3, 1e-4) for pair in zip(found, expected, strict=True)
            ):
                return "other values"
    return "varies"


def _observed(model: Any, example: tuple[Any, ...]) -> list[Tensor]:
    """The result, and the gradients of arguments and parameters."""
    torch.manual_seed(1)
    result = model(*example)
    parameters = [p for _, p in sorted(model.named_parameters())] if isinstance(model, nn.Module) else []
    leaves = [leaf for leaf in (*example, *parameters) if leaf.requires_grad]
    return [result.detach(), *torch.autograd.grad(result.square().sum(), leaves)]


def run(target: str, pattern: str) -> None:
    """Run the rows of a target whose names match, and keep what came out."""
    results: dict[str, dict[str, str]] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for row in ROWS:
        if fnmatch.fnmatch(row.what, pattern):
            results.setdefault(row.what, {})[target] = outcome(row, target)
            print(target, row.what, results[row.what][target], flush=True)
            kept = {each.what: results[each.what] for each in ROWS if each.what in results}
            FILE.write_text(json.dumps(kept, indent=1) + "\n")


def table() -> str:
    """The table of the page."""
    results = json.loads(FILE.read_text())
    shown = {"varies": "yes", "fixed": "refused"}
    lines = [f"| model | what varies | {' | '.join(f'`{target}`' for target in TARGETS)} |", "| --- | --- | --- | --- |"]
    lines += [f"| {row.what} | {row.varies} | {' | '.join(shown[results[row.what][t]] for t in TARGETS)} |" for row in ROWS]
    return "\n".join(lines)


def main() -> None:
    """Run rows, or write the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["run", target]:
            run(target, "*")
        case ["run", target, pattern]:
            run(target, pattern)
        case ["page"]:
            replace(PAGE, "varying-sizes", table())
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
