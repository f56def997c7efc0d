"""Small models of the kinds that XLA is for."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from conformance.cases.recompute import layers
from torch import Tensor, nn

from aotpack_loader import load


class Mlp(nn.Module):
    """Two layers, for classification."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.second(F.gelu(self.first(x))), labels)


class Cnn(nn.Module):
    """Convolutions, a pool, and BatchNorm, whose buffers change at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 16, 3, stride=2), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return F.cross_entropy(self.last(F.relu(self.second(h)).mean((2, 3))), labels)


class Block(nn.Module):
    """A transformer block with causal attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + F.dropout(self.out(attended.transpose(1, 2).reshape(x.shape)), self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm_mlp(x)))), self.dropout, self.training)


class Gpt(nn.Module):
    """A language model of two blocks whose output layer is the embedding's."""

    def __init__(self, dropout: float = 0.0, vocabulary: int = 50, width: int = 32, length: int = 12) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, 4, dropout) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(positions))))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits


def mlp() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and example inputs; so are the others."""
    torch.manual_seed(0)
    return Mlp(), (torch.randn(8, 16), torch.randint(0, 10, (8,)))


def cnn() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Cnn(), (torch.randn(4, 3, 12, 12), torch.randint(0, 10, (4,)))


def gpt(dropout: float = 0.0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Gpt(dropout), (torch.randint(0, 50, (2, 12)), torch.randint(0, 50, (2, 12)))


def assert_computes_layers(bundle: Path, a: Tensor, w: Tensor) -> None:
    """A bundle of the notebook's function computes what eager does; so does its backward, for ``a``."""
    there = a.detach().requires_grad_()
    result, expected = load(bundle, backend="xla:cpu")(there, w), layers(a, w)
    torch.testing.assert_close(result.cpu(), expected)
    for value in (result, expected):
        value.sum().backward()
    torch.testing.assert_close(there.grad.cpu(), a.grad)
