"""The parts of compiled kernels that aotpack generates itself: additions by index and in place, masks as bytes, dropout, and
sums in chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch_fixes.lowering import sources_of

import aotpack
from aotpack._torch.inductor.codegen.in_place_sums import added_in_place

ROWS, WIDTH = 37, 21
"""Multiples of no vector's length, so that kernels have rests."""


class Scatters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, padding_idx=1)
        self.wide = nn.Parameter(torch.randn(3, WIDTH))

    def forward(self, x: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, ...]:
        looked_up = torch.relu(self.table(rows) + x)
        summed = torch.zeros_like(self.wide).index_add(0, rows % 3, looked_up) * self.wide
        spread = torch.zeros(ROWS, 4).scatter_add(1, columns, x)
        halves = torch.zeros(5, dtype=torch.bfloat16).index_put((rows,), x[:, 0].round().bfloat16(), accumulate=True)
        dropped = nn.functional.dropout(x, 0.3)
        scores = (looked_up @ self.table.weight.t()).square()  # the gradient of the weight has two terms
        return summed, spread.clamp(-1, 1), halves.float() + (looked_up > 1).sum(), dropped, scores


@pytest.fixture(scope="module")
def scatters(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, tuple[Tensor, ...], Path]:
    torch.manual_seed(0)
    model = Scatters()
    given = (torch.randn(ROWS, WIDTH, requires_grad=True), torch.randint(5, (ROWS,)), torch.randint(4, (ROWS, WIDTH)))
    out = tmp_path_factory.mktemp("scatters") / "m"
    aotpack.build(model, given, out=out, targets=("cpu:x86-64-v3",), methods=("train",))  # other tests build for this machine's
    return model, given, out


def _step(model: nn.Module, given: tuple[Tensor, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    results = model(*given)
    inputs = [given[0], *model.parameters()]
    return [*results, *torch.autograd.grad(sum(result.sum() for result in results), inputs)]


@pytest.mark.parametrize("threads", [1, 2, 6])
def test_additions_with_any_number_of_threads(threads: int, scatters: tuple[nn.Module, tuple[Tensor, ...], Path]) -> None:
    """Up to four threads add plainly, more add atomically."""
    model, given, out = scatters
    loaded = aotpack.load(out)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(5):
            torch.testing.assert_close(_step(loaded, given), _step(model, given))
    finally:
        torch.set_num_threads(before)


def test_dropout_draws_with_eagers_kernel(scatters: tuple[nn.Module, tuple[Tensor, ...], Path]) -> None:
    """Its mask is ``bernoulli``'s, not a comparison of uniform numbers that are drawn one by one."""
    model, given, out = scatters
    found, expected = _step(aotpack.load(out), given)[3], _step(model, given)[3]
    torch.testing.assert_close(found, expected)
    assert 0.2 < float((found == 0).float().mean()) < 0.4


def _put(x: Tensor, rows: Tensor) -> Tensor:
    return torch.full((5, 3), 0.0, dtype=x.dtype).index_put((rows,), x[rows], accumulate=True)


def _put_where(x: Tensor, rows: Tensor) -> Tensor:
    zeros, mask = torch.full((5, 3), 0.0), (rows != 1).unsqueeze(-1)
    return torch.ops.aten._unsafe_masked_index_put_accumulate(zeros, mask, [rows], x[rows % 5])


def _read_twice(x: Tensor, rows: Tensor) -> Tensor:
    scaled = x * 2
    return (scaled + _put(x, rows)) * scaled


@pytest.mark.parametrize(
    ("function", "dtype", "rows", "in_place"),
    [
        (lambda x, rows: x * 2 + _put(x, rows), torch.float32, [0, 3, 3], True),
        (lambda x, rows: _put(x, rows) + x * 2, torch.float64, [0, 3, 3], True),
        (lambda x, rows: x * 2 + _put_where(x, rows), torch.float32, [1, 4, 4, 7 - 8], True),
        (lambda x, rows: x + _put(x, rows), torch.float32, [2], False),  # an input
        (lambda x, rows: (x * 2)[:, :1] + _put(x, rows), torch.float32, [2], False),  # another size
        (lambda x, rows: torch.add(x * 2, _put(x, rows), alpha=3), torch.float32, [2], False),
        (lambda x, rows: x * 2 + _put(x, rows), torch.bfloat16, [2], False),
        (_read_twice, torch.float32, [2], False),
    ],
)
def test_sums_are_added_to_in_place(
    function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype, rows: list[int], in_place: bool
) -> None:
    x, indices = torch.randn(5, 3, dtype=dtype), torch.tensor(rows)
    graph = make_fx(function, tracing_mode="fake")(x, indices)
    added_in_place(graph)
    operators = {str(node.target) for node in graph.graph.nodes}
    assert ("aten.add.Tensor" in operators) is not in_place
    torch.testing.assert_close(graph(x, indices), function(x, indices))


def test_sums_of_numbers_or_of_sizes_that_vary_stay() -> None:
    def function(x: Tensor, rows: Tensor) -> Tensor:
        return x * 2 + torch.full_like(x, 0.0).index_put((rows,), x[rows], accumulate=True) + x.size(0) / 2

    given = torch.randn(5, 3), torch.tensor([0, 3, 3])
    graph = make_fx(function, tracing_mode="symbolic")(*given)
    before = [node.target for node in graph.graph.nodes]
    added_in_place(graph)
    assert [node.target for node in graph.graph.nodes] == before
    torch.testing.assert_close(graph(*given), function(*given))


@pytest.mark.parametrize("threads", [1, 3])
def test_sums_of_many_rows_have_each_chunk_once(threads: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rows are summed in chunks, and chunks pairwise: 73 chunks of 4,096, and the rest."""
    x, out = torch.rand(300_001, 5), tmp_path_factory.getbasetemp() / "sums"
    if not out.exists():
        aotpack.build(lambda x: x.abs().sum(0), (x,), out=out, targets=("cpu:x86-64-v3",), methods=("infer",))
    loaded = aotpack.load(out)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.testing.assert_close(loaded(x).double(), x.double().sum(0), rtol=2e-6, atol=0)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu"])
def test_masks_of_other_types_are_stored_as_bytes(target: str, tmp_path: Path) -> None:
    """Masks of ``float64`` and integers are stored by the conversion of ``float32``'s, also rests that fill no vector."""
    x = torch.randn(ROWS, WIDTH, dtype=torch.float64)
    x[0, 0] = float("nan")
    given = (x, (x.nan_to_num() * 3).long(), (x.nan_to_num() * 3).int())

    def masks(x: Tensor, long: Tensor, short: Tensor) -> tuple[Tensor, ...]:
        return x > 0.5, x != x, (x.exp() > 1) & (long < 2), long > 0, long == 1, short <= 1, (x > 0) == (short > 0)

    aotpack.build(masks, given, out=tmp_path / "m", targets=(target,), methods=("infer",))
    for found, expected in zip(aotpack.load(tmp_path / "m")(*given), masks(*given), strict=True):
        torch.testing.assert_close(found, expected)


def test_all_convolutions_may_keep_the_graphs_layout(tmp_path: Path) -> None:
    """As the patch embedding of a vision transformer does, whose weight is large for its image."""
    assert len(sources_of(nn.Conv2d(3, 64, 16, stride=16), (torch.randn(2, 3, 32, 32),), tmp_path)) == 2
