"""Graphs that are copied for AOTInductor: its code is the same as after its own trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch_fixes.lowering import sources_of

from aotpack._torch.inductor import second_trace


class Picture(nn.Module):
    """Channels-last saved values, a pool that Inductor decomposes, and gradients that are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 1)
        )
        self.head = nn.Linear(8 * 16, 4)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.layers(image).flatten(1)).square().mean()


class Attention(nn.Module):
    """Heads, a softmax, a layer norm, and the random numbers of a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.25, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layer(rows).square().mean()


class Words(nn.Module):
    """Integers, scattered gradients, and a kernel of a library with several results."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer, self.head = nn.Embedding(20, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(self, words: Tensor) -> Tensor:
        rows, _ = self.layer(self.words(words))
        return F.cross_entropy(self.head(rows).flatten(0, 1), words.flatten())


class Parts(nn.Module):
    """Lists of results, of which some are not used, and a statistic that a call changes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count += 1
        first, _, third = x.split(4, dim=1)
        values, indices = (first * self.scale).sort(dim=1)
        return values.cumsum(1) * third.t().reshape(values.shape), indices


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "picture": (Picture, lambda: (torch.randn(2, 3, 8, 8),)),
    "attention": (Attention, lambda: (torch.randn(2, 5, 16),)),
    "words": (Words, lambda: (torch.randint(20, (2, 5)),)),
    "parts": (Parts, lambda: (torch.randn(3, 12, requires_grad=True),)),
}


def _sources(case: str, folder: Path, **options: Any) -> list[str]:
    model, arguments = CASES[case]
    torch.manual_seed(0)
    return sources_of(model(), arguments(), folder, **options)


@pytest.mark.parametrize("case", CASES)
def test_code_is_the_same_as_after_a_trace(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []

    def counted(*args: Any) -> torch.fx.GraphModule | None:
        copies.append(copied(*args))
        return copies[-1]

    copied = second_trace.copied
    monkeypatch.setattr(second_trace, "copied", counted)
    found = _sources(case, tmp_path)
    assert len(copies) == 2  # forward and backward
    monkeypatch.setattr(second_trace, "can_be_copied", lambda module: False)
    assert found == _sources(case, tmp_path)
    assert len(found) == len(copies) == 2


def test_graphs_with_symbolic_sizes_are_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_trace, "copied", lambda *_: pytest.fail("a graph with symbolic sizes was copied"))
    assert _sources("attention", tmp_path, dynamic_shapes=({0: torch.export.Dim("batch")},))


def test_graphs_with_checks_of_values_are_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a check has no result."""

    def spread(x: Tensor) -> Tensor:
        return F.gaussian_nll_loss(x, x, x)

    monkeypatch.setattr(second_trace, "copied", lambda *_: pytest.fail("a graph with a check of values was copied"))
    assert len(sources_of(spread, (torch.rand(3, 4),), tmp_path, "infer")) == 1


def _into_writes(x: Tensor) -> Tensor:
    return torch.empty_like(x).copy_(x)


def _into_a_constant(x: Tensor) -> Tensor:
    return x * torch.tensor(2.0)


@pytest.mark.parametrize("rule", [_into_writes, _into_a_constant])
def test_a_graph_is_traced_if_an_operator_decomposes_into_what_is_not_copied(rule: Callable[[Tensor], Tensor]) -> None:
    with FakeTensorMode():
        module = make_fx(torch.sin)(torch.empty(3))
    sine = torch.ops.aten.sin.default
    assert second_trace.copied(module, {sine: rule}) is None
    copy = second_trace.copied(module, {sine: torch.cos})
    assert copy is not None
    assert [node.target for node in copy.graph.nodes if node.op == "call_function"] == [torch.ops.aten.cos.default]
