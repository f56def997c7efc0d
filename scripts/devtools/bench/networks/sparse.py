"""Networks that look rows up and add into rows: embeddings, graphs, mixtures of experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Recommender(nn.Module):
    """Tables of embeddings, the products of all pairs, and a multilayer perceptron."""

    def __init__(self, tables: int = 26, rows: int = 1000, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.dense = nn.Linear(13, width)
        pairs = (tables + 1) * tables // 2
        self.head = nn.Sequential(nn.Linear(pairs + width, 64), nn.ReLU(), nn.Linear(64, 1))
        first, second = torch.triu_indices(tables + 1, tables + 1, 1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, dense: Tensor, indices: Tensor, clicked: Tensor) -> Tensor:
        base = self.dense(dense)
        found = torch.stack([base, *(table(indices[:, i]) for i, table in enumerate(self.tables))], 1)
        products = found @ found.transpose(1, 2)
        logits = self.head(torch.cat([base, products[:, self.first, self.second]], 1))
        return F.binary_cross_entropy_with_logits(logits[:, 0], clicked)


def recommender() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Recommender(), (torch.randn(128, 13), torch.randint(1000, (128, 26)), torch.rand(128).round())


class Messages(nn.Module):
    """Each edge computes a message from both of its nodes; each node adds up its messages."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor, sources: Tensor, targets: Tensor) -> Tensor:
        for layer in self.layers:
            messages = torch.relu(layer(torch.cat([x[sources], x[targets]], 1)))
            x = x + torch.zeros_like(x).index_add(0, targets, messages)
        return self.head(x).square().mean()


def graph() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Messages(), (torch.randn(500, 64), torch.randint(500, (3000,)), torch.randint(500, (3000,)))


class Bags(nn.Module):
    """Means of bags of embeddings, as in fastText."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(5000, 64, mode="mean")
        self.head = nn.Linear(64, 10)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.bags(words)), labels)


def embedding_bag() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Bags(), (torch.randint(5000, (64, 32)), torch.randint(10, (64,)))


class Experts(nn.Module):
    """A mixture of experts: every expert computes all rows, the two best of a row count."""

    def __init__(self, width: int = 64, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * 0.05)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * 0.05)

    def forward(self, x: Tensor) -> Tensor:
        best, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weights = torch.zeros(x.shape[0], self.up.shape[0]).scatter_add(1, chosen, best)
        hidden = F.gelu(torch.einsum("bd,edh->ebh", x, self.up))
        return (x + torch.einsum("ebh,ehd,be->bd", hidden, self.down, weights)).square().mean()


def experts() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Experts(), (torch.randn(256, 64),)
