"""Transformers: encoders with dropout, a Llama, attention over long sequences, pictures."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Encoder(nn.Module):
    """``nn.TransformerEncoder`` over vectors; ``dtype`` other than float32: under autocast."""

    def __init__(self, *, width: int = 128, layers: int = 3, dropout: float = 0.1, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            return self.encoder(x).float().square().mean()


def encoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Encoder(), (torch.randn(8, 32, 128),)


def bf16_encoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Encoder(dropout=0.0, dtype=torch.bfloat16), (torch.randn(8, 32, 128),)


class LlamaLayer(nn.Module):
    """Attention with rotated positions and a gated linear unit, each after a root-mean-square norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (part * cosines + _rotated(part) * sines for part in parts[:2])
        found = F.scaled_dot_product_attention(q, k, parts[2], is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def _rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class Llama(nn.Module):
    def __init__(self, *, width: int = 256, layers: int = 6, heads: int = 4, length: int = 64, words: int = 1000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)
        half = width // heads // 2
        angles = torch.outer(torch.arange(length), 10000 ** (-torch.arange(half) / half)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        x = self.words(words)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


def llama() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Llama(), (torch.randint(1000, (4, 64)), torch.randint(1000, (4, 64)))


def attention_512() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Llama(width=128, layers=2, length=512, words=256), (torch.randint(256, (2, 512)), torch.randint(256, (2, 512)))


def attention_2048() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Llama(width=64, layers=1, length=2048, words=256), (torch.randint(256, (1, 2048)), torch.randint(256, (1, 2048)))


class Cross(nn.Module):
    """``nn.MultiheadAttention`` between two sequences, with dropout."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        found, _ = self.attention(x, memory, memory, need_weights=False)
        return self.norm(x + found).square().mean()


def cross_attention() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return Cross(), (torch.randn(16, 32, 64), torch.randn(16, 48, 64))


class VisionTransformer(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.positions = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, pictures: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.positions
        return F.cross_entropy(self.head(self.encoder(x).mean(1)), labels)


def vision_transformer() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return VisionTransformer(), (torch.randn(8, 3, 32, 32), torch.randint(10, (8,)))
