"""Sizes of 1 that torch or the model asks about while it is traced: taken where the model is one program, refused elsewhere."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.markdown import ROOT, blocks
from torch import Tensor, nn

import aotpack
from aotpack.model.entry import load_entry
from aotpack_loader.errors import BuildError, InputError

BATCH = torch.export.Dim("batch", min=1, max=8)


class Broadcasts(nn.Module):
    """Expands positions where there is something to expand, and shifts its labels, as transformers' decoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.position_table, self.head = nn.Embedding(11, 8), nn.Embedding(6, 8), nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1]).unsqueeze(0)
        if ids.shape[0] != positions.shape[0]:
            positions = positions.expand(ids.shape[0], -1)
        logits = self.head(self.words(ids) + self.position_table(positions))
        labels = ids[..., 1:].contiguous()
        return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 11), labels.view(-1))


class Encodes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


class Masks(nn.Module):
    """Reads the batch off its input to view its mask, as transformers' GPT-2 does: a trace has a symbol for each of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.position_table, self.head = nn.Embedding(11, 8), nn.Embedding(6, 8), nn.Linear(8, 11)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        mask = mask.view(ids.shape[0], -1)[:, None, None, :]
        positions = torch.arange(ids.shape[1]).unsqueeze(0)
        if ids.shape[0] != positions.shape[0]:
            positions = positions.expand(ids.shape[0], -1)
        x = (self.words(ids) + self.position_table(positions)).unsqueeze(1)
        y: Tensor = self.head(nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask))
        return y


class Weighs(Broadcasts):
    """Views its mask by the batch of its ids and sums it up: the trace ties the two sizes by divisibility alone."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(ids) * mask.view(ids.shape[0], -1).float().mean()


@pytest.mark.parametrize("kind", [Masks, Weighs])
def test_sizes_that_are_tied_are_one_together(kind: type[nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    eager, out = kind(), tmp_path / "m.aotpack"

    def make(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randint(11, (batch, 6)), torch.rand(batch, 6) > 0.3

    sizes = ({0: BATCH}, {0: BATCH})
    aotpack.build(copy.deepcopy(eager), make(3), out=out, targets=("portable",), methods=("train",), dynamic_shapes=sizes)
    loaded = aotpack.load(out, backend="portable")
    for batch in (5, 1, 2):
        _compare(eager, loaded, *make(batch))
    with pytest.raises(InputError):
        loaded(make(1)[0], make(2)[1])


MODELS: dict[str, Callable[[], tuple[nn.Module, Callable[[int], Tensor]]]] = {
    "Broadcasts": lambda: (Broadcasts(), lambda batch: torch.randint(11, (batch, 6))),
    "TransformerEncoderLayer": lambda: (Encodes(), lambda batch: torch.randn(batch, 5, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_last_batch_of_one_trains(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    eager, make = MODELS[name]()
    sizes, out = ({0: BATCH},), tmp_path / "m.aotpack"
    aotpack.build(copy.deepcopy(eager), (make(3),), out=out, targets=("portable",), methods=("train",), dynamic_shapes=sizes)
    loaded = aotpack.load(out, backend="portable")
    for batch in (5, 1, 2):
        _compare(eager, loaded, make(batch))


def _compare(eager: nn.Module, loaded: nn.Module, *args: Tensor) -> None:
    """One step of each: results, their strides, gradients."""
    results = [model(*args) for model in (eager, loaded)]
    torch.testing.assert_close(*results)
    assert results[0].stride() == results[1].stride()
    for model, result in zip((eager, loaded), results, strict=True):
        model.zero_grad()
        result.square().sum().backward()
    for (parameter, a), (_, b) in zip(eager.named_parameters(), loaded.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=lambda text, name=parameter: f"{name}: {text}")  # type: ignore[misc]


class Decodes(Broadcasts):
    """With a layer between, which turns rows and columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.words = nn.Sequential(self.words, self.layer)  # type: ignore[assignment]


def test_a_last_batch_of_one_trains_with_compiled_code(tmp_path: Path) -> None:
    """Inductor asks for the order of strides and, where it writes the gradient of a part, whether that overlaps itself."""
    torch.manual_seed(0)
    eager, out = Decodes(), tmp_path / "m.aotpack"
    ids, sizes = torch.randint(11, (3, 6)), ({0: BATCH},)
    aotpack.build(copy.deepcopy(eager), (ids,), out=out, targets=("cpu",), methods=("train",), dynamic_shapes=sizes)
    loaded = aotpack.load(out, backend="cpu")
    for batch in (5, 1, 2):
        _compare(eager, loaded, torch.randint(11, (batch, 6)))


class Asks(nn.Module):
    """Computes something else for one row."""

    def __init__(self, at_one: Callable[[Any, Tensor], Tensor], else_: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
        self.ways = at_one, else_

    def forward(self, x: Tensor) -> Tensor:
        return self.ways[0](self, x) if x.shape[0] == 1 else self.ways[1](self, x)


@pytest.mark.parametrize(
    "ways",
    [
        (lambda m, x: x * m.a * 2, lambda m, x: x * m.a * 3),
        (lambda m, x: x * m.a, lambda m, x: x * m.b),
        (lambda m, x: x[:, :2] * m.a[0], lambda m, x: x[:, 2:] * m.a[0]),
        (lambda m, x: x * m.a, lambda m, x: x * m.a.sin()),
        (lambda m, x: (x * m.a).sum(0), lambda m, x: (x * m.a).mean(0)),
    ],
    ids=["a number", "a parameter", "a slice", "a call more", "another call"],
)
def test_another_way_for_one_is_refused(ways: Any, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="dynamic_shapes allows more than the model"):
        aotpack.build(
            Asks(*ways),
            (torch.randn(3, 4),),
            out=tmp_path / "m.aotpack",
            targets=("portable",),
            methods=("train",),
            dynamic_shapes=({0: BATCH},),
        )


def test_a_lazy_module_that_was_never_called_is_refused_by_name(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(BuildError, match=r"0\.weight: has no size yet"):
        aotpack.build(model, (torch.randn(2, 4),), out=tmp_path / "m.aotpack", targets=("portable",))


def test_warnings_at_sizes_that_nobody_passed_are_not_shown(tmp_path: Path) -> None:
    """The policy of the recipe has a loss that warns if one of its arguments has a row, and the other has several."""
    page = blocks(ROOT / "docs" / "recipes" / "reinforcement-learning.md")
    (tmp_path / "policy.py").write_text(next(block.text for block in page if block.title == "policy.py"))
    entry = load_entry(str(tmp_path / "policy.py"))
    options: dict[str, Any] = {"targets": ("portable",), "dynamic_shapes": entry.dynamic_shapes, "methods": ("train",)}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        aotpack.build(entry.model, entry.args, out=tmp_path / "m", **options)
    assert [str(warning.message) for warning in shown if "target size" in str(warning.message)] == []


class MeanOfRows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean() if x.shape[0] > 0 else x.sum()


def test_an_example_without_rows_where_the_model_takes_other_calls(tmp_path: Path) -> None:
    shapes = ({0: torch.export.Dim("rows", max=99)},)
    options: dict[str, Any] = {"out": tmp_path / "mean.aotpack", "targets": ("portable",), "dynamic_shapes": shapes}
    with pytest.raises(BuildError, match=r"x\.shape\[0\]: is 0 in the example, and the model takes at least 1"):
        aotpack.build(MeanOfRows(), (torch.randn(0, 4),), methods=("infer",), **options)
