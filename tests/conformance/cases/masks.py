"""``nn.Transformer`` and its parts, with masks that are arguments or buffers. Eager asks whether a mask is causal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from devtools.harness import INFER, TRAIN, Call, Case, Spec, g, inputs, module_case


def causal(length: int, dtype: torch.dtype = torch.float32) -> Spec:
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    return lambda generator: hidden if dtype is torch.bool else torch.zeros(length, length).masked_fill(hidden, float("-inf"))


def full(length: int) -> Spec:
    return lambda generator: torch.zeros(length, length)


def padding(length: int) -> Spec:
    return lambda generator: torch.arange(length).expand(2, length) >= torch.tensor([[length], [length - 2]])


def first_hidden(length: int) -> Spec:
    """Padding at the start, which eager leaves in."""
    return lambda generator: torch.arange(length).expand(2, length) < torch.tensor([[0], [2]])


class Encoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, mask: Tensor, padding: Tensor | None = None) -> Tensor:
        result: Tensor = self.encoder(x, mask=mask, src_key_padding_mask=padding)
        return result


class Padded(nn.Module):
    """In inference eager takes padding at the end of the rows out, and returns zeros there before the last norm."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8))
        nn.init.ones_(self.encoder.norm.bias)  # type: ignore[union-attr, arg-type]

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        result: Tensor = self.encoder(x, src_key_padding_mask=padding)
        return result


class Translating(nn.Module):
    """Keeps a mask for the longest target, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, 0.1, batch_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(9))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        length = y.shape[1]
        result: Tensor = self.transformer(x, y, tgt_mask=self.mask[:length, :length])
        return result


_OTHER_MASK = Call(2, inputs=inputs(g(2, 5, 8), full(5)))
_LONGER = Call(2, inputs=inputs(g(2, 7, 8), causal(7)))
_VARYING: dict[str, Any] = {
    "dynamic_shapes": {"x": {1: Dim.DYNAMIC}, "mask": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}},
    "calls": (TRAIN, _LONGER, Call(3, inputs=inputs(g(2, 6, 8), full(6)))),
}

CASES: list[Case] = [
    module_case("masks: an encoder's mask is an argument", Encoding, g(2, 5, 8), causal(5), calls=(TRAIN, INFER, _OTHER_MASK)),
    *(
        module_case(f"masks: of lengths that vary, {end}", Encoding, g(2, 5, 8), causal(5), front_ends=(end,), **_VARYING)
        for end in ("export", "trace")
    ),
    module_case("masks: of lengths that vary, cpu", Encoding, g(2, 5, 8), causal(5), targets=("cpu",), **_VARYING),
    module_case(
        "masks: padding that eager takes out",
        Padded,
        g(2, 5, 8),
        padding(5),
        calls=(TRAIN, INFER, Call(2, training=False, grad=False, inputs=inputs(g(2, 5, 8), first_hidden(5)))),
    ),
    module_case("masks: with padding", Encoding, g(2, 5, 8), causal(5, torch.bool), padding(5)),
    module_case(
        "masks: a decoder's is cut out of a buffer",
        Translating,
        g(2, 5, 8),
        g(2, 4, 8),
        rng="eager",
        dynamic_shapes={"x": {1: Dim.DYNAMIC}, "y": {1: Dim.DYNAMIC}},
        calls=(TRAIN, Call(2, inputs=inputs(g(2, 3, 8), g(2, 7, 8)))),
    ),
]
