"""Losses with padded labels, of a single example, and where a margin is just met."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from devtools.harness import Case, Spec, case, const, g, ints, t

_PADDED = torch.tensor([[2, 0, -1, 1], [3, -1, -1, -1], [0, 1, 2, 3], [-1, 2, 2, 2]])
_LARGE = torch.tensor([[3e38, -3e38, 1.0, 2.0], [1, 2, 3, 4], [0, 0, 0, 0], [4, 3, 2, 1]])
_REDUCTIONS = ("none", "mean", "sum")


def multilabel_margins(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    return tuple([F.multilabel_margin_loss(x, labels, reduction=how) for how in _REDUCTIONS])


def margins(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    return tuple([F.multi_margin_loss(x, labels, p=p, reduction=how) for how in _REDUCTIONS for p in (1, 2)])


def weighed(x: Tensor, labels: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """A weight of NaN, infinity or zero counts at its own label alone."""
    return tuple([F.nll_loss(x, labels, weight, reduction=how) for how in _REDUCTIONS])


def large(generator: torch.Generator) -> Tensor:
    return _LARGE.clone().requires_grad_()


def rounded(*shape: int) -> Spec:
    """A leaf whose elements often differ by exactly 1, where eager's gradient is 0."""
    return lambda generator: torch.randn(shape, generator=generator).round().requires_grad_()


def bf16(*shape: int) -> Spec:
    return lambda generator: torch.randn(shape, generator=generator).bfloat16().requires_grad_()


def positive(*shape: int) -> Spec:
    return lambda generator: torch.rand(shape, generator=generator)


def of_two_types(x: Tensor, y: Tensor, weight: Tensor) -> list[Tensor]:
    probability = x.sigmoid()
    return [
        F.soft_margin_loss(x, y),
        F.huber_loss(x.detach(), y, reduction="none"),
        F.binary_cross_entropy(probability, probability.detach(), weight=weight),
        F.mse_loss(x, y),
    ]


def normed(x: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    by_batch = F.batch_norm(x, None, None, weight, bias, training=True)
    return [F.layer_norm(x, (6,), weight, bias), F.group_norm(x, 2, weight, bias), by_batch]


CASES: list[Case] = [
    *(
        case(
            f"losses: a class weight of {weight}, {name}, {target}",
            weighed,
            scores,
            const(labels),
            const(torch.tensor([weight, 1, 0])),
            targets=(target,),
        )
        for target in ("portable", "cpu")
        for weight in (float("nan"), 0.0)
        for name, scores, labels in (
            ("rows", g(4, 3), torch.tensor([0, 1, 2, -100])),
            ("images", g(2, 3, 1, 2), torch.tensor([[[0, 1]], [[2, 0]]])),
        )
    ),
    *(
        case(f"losses: {name}, {target}", function, scores, labels, targets=(target,))
        for target in ("portable", "cpu")
        for name, function, scores, labels in (
            ("labels padded with -1", multilabel_margins, g(4, 4), const(_PADDED)),
            ("margins near the largest number", multilabel_margins, large, const(_PADDED)),
            ("labels of one example", multilabel_margins, g(4), const(_PADDED[0])),
            ("the label of one example", margins, g(4), const(torch.tensor(2))),
            ("margins just met", margins, rounded(6, 4), ints(6, high=4)),
        )
    ),
    *(
        case(f"losses: of two element types, {target}", of_two_types, bf16(6), t(6), positive(6), targets=(target,))
        for target in ("portable", "cpu")
    ),
    case("norms: an input of half precision, weights of float32", normed, bf16(2, 6, 6), g(6), g(6)),
]
