"""Sparse gradients: of embeddings, bags of embeddings and gathered elements."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from devtools.harness import Case, case, const, g, ints, module_case


class Embedded(nn.Module):
    """``uses``: how often the table is read. ``tied``: the table is also the weight of the last layer."""

    def __init__(self, uses: int = 1, *, tied: bool = False, **options: object) -> None:
        super().__init__()
        self.table, self.out, self.uses, self.tied = nn.Embedding(7, 4, sparse=True, **options), nn.Linear(4, 2), uses, tied

    def forward(self, i: Tensor) -> Tensor:
        x = self.table(i)
        for _ in range(self.uses - 1):
            i = (i + 1) % 7
            x = x * self.table(i)
        return x @ self.table.weight.t() if self.tied else self.out(x)


class Bags(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(7, 4, sparse=True, mode=mode)

    def forward(self, i: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
        return self.table(i, offsets, weights).sin()


def gathered(x: Tensor, i: Tensor) -> Tensor:
    return torch.gather(x, 0, i, sparse_grad=True).exp()


VARYING = {"i": {0: torch.export.Dim.DYNAMIC}}

CASES: list[Case] = [
    module_case("sparse gradients: embedding", Embedded, ints(5)),
    module_case("sparse gradients: embedding, cpu", lambda: Embedded(2, padding_idx=1), ints(5), targets=("cpu",)),
    module_case("sparse gradients: embedding of a matrix", Embedded, ints(2, 5)),
    module_case("sparse gradients: embedding read twice", lambda: Embedded(2), ints(5)),
    module_case("sparse gradients: embedding read twice, of other sizes", lambda: Embedded(2), ints(5), dynamic_shapes=VARYING),
    module_case("sparse gradients: embedding with padding", lambda: Embedded(padding_idx=1), ints(5)),
    module_case("sparse gradients: padding, of other sizes", lambda: Embedded(2, padding_idx=1), ints(5), dynamic_shapes=VARYING),
    module_case("sparse gradients: embedding tied to a dense layer", lambda: Embedded(tied=True), ints(5)),
    module_case("sparse gradients: embedding read twice and tied", lambda: Embedded(2, tied=True), ints(5)),
    module_case("sparse gradients: bags of sums", lambda: Bags("sum"), ints(2, 3)),
    module_case("sparse gradients: bags of means, with offsets", lambda: Bags("mean"), ints(5), const(torch.tensor([0, 2, 2]))),
    case("sparse gradients: gather", gathered, g(7, 4), ints(3, 4)),
]  # fmt: skip
