"""The first valid vectors: models in plain torch code, with the inputs of their calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

Args = tuple[tuple[Any, ...], dict[str, Any]]


class Case(NamedTuple):
    """A valid vector: a model, its example inputs, and the inputs of further calls."""

    about: str
    covers: list[str]
    model: Callable[[], nn.Module]
    inputs: Callable[[], Args]
    dynamic_shapes: Any = None
    more: Callable[[], Args] | None = None
    autocast: str | None = None


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.second(torch.tanh(self.first(x))), y)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sin(self.embed(tokens)))


class Nested(nn.Module):
    """Takes arguments in containers and by keyword.

    Writes to one input, returns a view of another and an input itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, batch: dict[str, Any], *, scale: float, carry: torch.Tensor) -> dict[str, Any]:
        x = batch["x"]
        mixed = x @ self.weight * scale / batch["count"] + batch["parts"][0]
        carry.add_(mixed.detach().sum(0))
        return {"mixed": mixed, "turned": batch["parts"][1].t(), "carry": carry, "version": 1}


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        hidden = torch.relu(x @ self.weight)
        low, high = hidden.chunk(2, dim=1)
        return hidden.sum(), (low, high), hidden.argmax(1), [x.sin(), None], x.shape[0]


class Pair(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


@dataclasses.dataclass
class Report:
    pair: Pair
    norm: torch.Tensor


torch.utils._pytree.register_dataclass(Report)


class Recorded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Report:
        logits = self.layer(x)
        return Report(Pair(logits.square().mean(), logits), logits.detach().norm())


@dataclasses.dataclass
class Unregistered:
    """A class that torch's tree functions do not flatten."""

    loss: torch.Tensor
    logits: torch.Tensor


class RecordedAsLeaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Unregistered:
        logits = self.layer(x)
        return Unregistered(logits.square().mean(), logits)


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, batch: dict[str, Any], seen: list[Any]) -> Any:
        seen.append(batch.pop("old"))
        seen[0] = batch["x"] * self.scale
        batch["nested"] = {"twice": seen[0] * 2, "seen": seen}
        return batch, seen[0].sum()


class Picked(nn.Module):
    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, rows).sin()


class Slope(nn.Module):
    """A loss on the slope of a network at its argument, on which it calls ``requires_grad_()``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            height = self.layer(x.requires_grad_()).tanh()
            (slope,) = torch.autograd.grad(height.sum(), x, create_graph=True)
            return height.detach(), (slope.square().sum(1) - 1).square().mean()


class Attention(nn.Module):
    """One pre-norm block as in GPT-2, without dropout."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Layer(nn.Module):
    """A layer that is compiled once for all its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 4)

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Sizes(nn.Module):
    """Results, views and saved values that depend on a dynamic size, one tensor passed twice, and a constant tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, again: torch.Tensor) -> tuple[Any, ...]:
        count = x.shape[0]
        scaled = x * self.weight * torch.tensor([1.0, -2.0, 0.5]) / count
        return scaled.sum(0).expand(count, 3) + again, x.view(count * 3), scaled.exp().reshape(3 * count)[count:], 2 * count + 1


def _sizes_inputs(count: int) -> Args:
    x = torch.randn(count, 3, requires_grad=True)
    return (x, x), {}


def _nested_inputs() -> Args:
    parts = [torch.randn(3), torch.randn(2, 4, requires_grad=True)]
    batch = {"x": torch.randn(5, 3, requires_grad=True), "parts": parts, "count": 5}
    return (batch,), {"scale": 0.5, "carry": torch.randn(3)}


BATCH = torch.export.Dim("batch", min=2, max=64)

VALID: dict[str, Case] = {
    "scale": Case("y = x * scale: the smallest", [], Scale, lambda: ((torch.randn(4, requires_grad=True),), {})),
    "mlp": Case("two layers and a loss", [], Mlp, lambda: ((torch.randn(5, 6), torch.randint(3, (5,))), {})),
    "batchnorm": Case("buffers mutated in train mode", ["R1"], Normed, lambda: ((torch.randn(3, 2, 4, 4),), {})),
    "tied_weights": Case("one parameter under two names", ["C4"], Tied, lambda: ((torch.randint(7, (2, 3)),), {})),
    "dynamic_batch": Case(
        "a batch size from 2 to 64",
        ["A2"],
        Mlp,
        lambda: ((torch.randn(5, 6), torch.randint(3, (5,))), {}),
        dynamic_shapes={"x": {0: BATCH}, "y": {0: BATCH}},
        more=lambda: ((torch.randn(9, 6), torch.randint(3, (9,))), {}),
    ),
    "nested_kwargs": Case(
        "containers, keywords, constants, an aliased result, a mutated input that is returned", ["R1"], Nested, _nested_inputs
    ),
    "several_outputs": Case(
        "views of an intermediate, an integer tensor, none and a number among the results",
        [],
        Several,
        lambda: ((torch.randn(3, 4, requires_grad=True),), {}),
    ),
    "record_output": Case("a dataclass that holds a named tuple", [], Recorded, lambda: ((torch.randn(4, 3),), {})),
    "record_leaf": Case(
        "a dataclass that is one leaf to torch's tree functions", [], RecordedAsLeaf, lambda: ((torch.randn(4, 3),), {})
    ),
    "containers": Case(
        "a dictionary and a list of the caller's that are changed, and returned",
        ["A17", "A18", "C36"],
        Changing,
        lambda: (({"x": torch.randn(3, requires_grad=True), "old": torch.randn(2)}, [torch.randn(2)]), {}),
    ),
    "autocast_variants": Case(
        "methods for calls without autocast and under autocast to bfloat16, called without",
        ["C5", "A9"],
        Mlp,
        lambda: ((torch.randn(5, 6), torch.randint(3, (5,))), {}),
        autocast="none,bf16",
    ),
    "refusing_values": Case(
        "an operator that may refuse the values of a call, and its line",
        [],
        Picked,
        lambda: ((torch.randn(4, 3, requires_grad=True), torch.tensor([2, 0])), {}),
    ),
    "requires_grad_set": Case(
        "a gradient with respect to an argument, which the model makes require one",
        ["A16"],
        Slope,
        lambda: ((torch.randn(3, 2),), {}),
    ),
    "attention": Case("a block of GPT-2", [], Attention, lambda: ((torch.randn(2, 4, 8, requires_grad=True),), {})),
    "sizes": Case(
        "sizes in results, views and saved values; one tensor given twice; a constant tensor",
        ["A2", "A8"],
        Sizes,
        lambda: _sizes_inputs(4),
        dynamic_shapes={"x": {0: torch.export.Dim("count", min=2, max=9)}, "again": {0: torch.export.Dim("count", min=2, max=9)}},
        more=lambda: _sizes_inputs(7),
    ),
    "regions": Case(
        "three layers in a nested compile region: one subgraph, called three times",
        ["G7"],
        lambda: nn.Sequential(nn.Linear(4, 4), Layer(), Layer(), Layer()),
        lambda: ((torch.randn(3, 4, requires_grad=True),), {}),
    ),
    "origins": Case(
        "modules and source lines of nodes",
        [],
        lambda: nn.Sequential(Normed(), nn.Linear(3, 2)),
        lambda: ((torch.randn(3, 2, 4, 4),), {}),
    ),
}
