"""A GPT in plain torch with the sizes of examples/gpt, because torch_xla's environment lacks transformers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 256, 128, 128, 4, 4


class Block(nn.Module):
    """Causal attention and a multilayer perceptron, each after a norm and with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        split = self.qkv(self.norm_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


class Gpt(nn.Module):
    """Loss and logits. The output layer shares its weight with the embedding."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.norm = nn.Sequential(*[Block() for _ in range(layers)]), nn.LayerNorm(WIDTH)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.norm(self.blocks(self.tokens(input_ids) + self.positions(positions)))
        logits = hidden @ self.tokens.weight.t()
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def model(layers: int = LAYERS) -> nn.Module:
    return Gpt(layers)


def example_inputs() -> tuple[tuple[()], dict[str, Tensor]]:
    input_ids = torch.randint(VOCABULARY, (8, CONTEXT))
    return (), {"input_ids": input_ids, "labels": input_ids.clone()}
