"""Sizes that depend on data, and numbers read from tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from devtools.harness import INFER, TRAIN, Call, Case, case, const, g, ints, t

from .shapes import ANY, BATCH, at


def split_at(x: Tensor, indices: Tensor) -> Any:
    return torch.tensor_split(x * 2, indices)


def indices(gen: torch.Generator) -> Tensor:
    return torch.randint(7, (2,), generator=gen).sort().values


def inverse_transform(x: Tensor) -> Tensor:
    spectrum = torch.stft(x, 8, window=torch.hann_window(8), return_complex=True)
    return torch.istft(spectrum * 2, 8, window=torch.hann_window(8))


def nonzero(x: Tensor) -> Tensor:
    return x.nonzero()


def boolean_mask(x: Tensor) -> Tensor:
    return x[x > 0] * 2


def boolean_mask_sum(x: Tensor) -> Tensor:
    return x[x > 0].sum()


def masked_select(x: Tensor) -> Tensor:
    return torch.masked_select(x, x > 0).exp().sum()


def item(x: Tensor, i: Tensor) -> Tensor:
    return x * i.item()


def item_as_an_exponent(x: Tensor, i: Tensor) -> Tensor:
    return x.exp() ** (i.float().item() / 2)


def item_as_size(i: Tensor, x: Tensor) -> Tensor:
    size = i.item()
    torch._check(size >= 0)
    return torch.zeros(size) + x.sum()


def positions(x: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, ...]:
    """Rows and columns at numbers that tensors hold; some are written to, and one is returned as a view."""
    y = x * 2
    y[i] = x[j]
    y[:, i] += x[..., j.int()]
    rest = x[i, None, 1:] * y[i, torch.tensor([0, 2])].sum(), torch.stack([x[k] for k in torch.tensor([2, 0])]) * 3
    batched = torch.vmap(lambda row, at: row[at])(x, torch.tensor([0, -1, 2, 3]))
    return *rest, y, batched, x[i][None].expand(2, -1) * x[:, j.item()][0], torch.select_scatter(x, x[j], 0, i.item()), x[j - 3]


def written_from(cache: Tensor, new: Tensor, i: Tensor) -> Tensor:
    """A cache of keys, as decoders fill it."""
    cache[:, i : i + 1] = new
    cache.narrow(0, i.item(), 1).copy_(new[:1] * 2)
    return (cache[:, : i + 1] * 3).sum(1)


def written_to_slices(x: Tensor, i: Tensor) -> Tensor:
    """Rows before and from a position are written to, and what was written is computed with."""
    y, k = x * 2, i.item()
    y[:k] = y[:k].exp()
    y[k : k + 1] *= 3
    y[:, : i + 1] += x[:, 0:1]
    return y.sin()


def unique(i: Tensor) -> Tensor:
    return torch.unique(i)


def repeat_interleave(x: Tensor, i: Tensor) -> Tensor:
    return x.repeat_interleave(i, dim=0)


def mask_and_rows(x: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    return (x[rows] @ weight).relu().mean(0)


def views_of_unknown_size(x: Tensor) -> Any:
    y = x[x > 0]
    return y.view(-1, 1), y


def sizes_that_depend_on_data(x: Tensor) -> Any:
    y = x[x > 0]
    return y * y.shape[0], y.shape[0], y.shape[0] * 2 + 1


def count_as_a_number(x: Tensor) -> Tensor:
    found = x.nonzero()
    return x[found[:, 0], found[:, 1]].sin() * found.shape[0]


def number_results(x: Tensor, scale: Tensor) -> Any:
    return x * scale.item(), scale.item(), (x.sum() > 0).item()


def item_as_a_size_of_a_view(x: Tensor, i: Tensor) -> Tensor:
    count = i.item()
    torch._check(count >= 0)
    torch._check(count <= 4)
    return x.narrow(0, 0, count).exp()


def checked(x: Tensor, i: Tensor) -> Tensor:
    torch._check(i.item() < 3, lambda: "too many")
    return x * 2


def scanned(x: Tensor) -> Tensor:
    return x[x > 0].cumsum(0)


def any_branch(x: Tensor) -> Tensor:
    return x * 2 if x.sum() > 0 else x * 3


CASES: list[Case] = [
    case("shapes: unbacked, nonzero", nonzero, ints(4, high=2), calls=(Call(1), Call(2), Call(3, training=False, grad=False))),
    case(
        "shapes: unbacked, nonzero of a size that varies, 0 and 1 tried",
        nonzero,
        ints(4, 3, high=2),
        dynamic_shapes=ANY,
        calls=(TRAIN, at(ints(1, 3, high=2)), at(ints(0, 3, high=2))),
    ),
    case("shapes: unbacked, boolean mask", boolean_mask, g(6), calls=(Call(1), Call(2))),
    case("shapes: unbacked, boolean mask, summed", boolean_mask_sum, g(6), calls=(Call(1), Call(2))),
    case("shapes: unbacked, masked_select", masked_select, g(6), calls=(Call(1), Call(2))),
    case("shapes: unbacked, masked_select, expanded", lambda x, y: x.masked_select(y[:, None] > -9), g(6), t(4)),
    case("shapes: unbacked, item as a value", item, g(3), ints(), calls=(Call(1), Call(2))),
    *(
        case(
            f"shapes: unbacked, positions that tensors hold, {target}",
            positions,
            t(4, 5),
            const(torch.tensor(2)),
            const(torch.tensor(-1)),
            targets=(target,),
        )
        for target in ("portable", "cpu")
    ),
    *(
        case(
            f"shapes: unbacked, a cache written from a position that a tensor holds, {target}",
            written_from,
            t(2, 5, 4),
            t(2, 1, 4),
            const(torch.tensor(1)),
            calls=(INFER,),
            targets=(target,),
        )
        for target in ("portable", "cpu")
    ),
    *(
        case(
            f"shapes: unbacked, rows written to in training, {target}",
            written_to_slices,
            t(5, 4),
            const(torch.tensor(2)),
            targets=(target,),
            calls=(TRAIN, *(at(t(5, 4), const(torch.tensor(position))) for position in (1, 4, 0, -2))),
        )
        for target in ("portable", "cpu")
    ),
    case("shapes: unbacked, item as the weight of lerp", lambda x, y, i: x.lerp(y, i.float().item()), t(3), t(3), ints()),
    case(
        "shapes: unbacked, item as the weight of lerp, cpu",
        lambda x, y, i: x.lerp(y, i.float().item() / 4),
        t(3),
        t(3),
        ints(),
        targets=("cpu",),
    ),
    case(
        "shapes: unbacked, item as an exponent, cpu",
        lambda x, i: x.exp() ** (i.float().item() / 2),
        t(3),
        ints(),
        targets=("cpu",),
    ),
    case("shapes: unbacked, item as a size", item_as_size, ints(), g(3), calls=(Call(1), Call(2))),
    case("shapes: unbacked, split at indices in a tensor", split_at, g(7), indices, calls=(Call(1), Call(2))),
    case("shapes: an operator that looks at values, of which a graph has no need", inverse_transform, g(2, 40)),
    case("shapes: unbacked, unique", unique, ints(6), calls=(Call(1), Call(2))),
    case("shapes: unbacked, repeat_interleave", repeat_interleave, g(3), ints(3), calls=(Call(1), Call(2))),
    case(
        "shapes: unbacked, rows of a mask through a product",
        mask_and_rows,
        g(5, 4),
        lambda gen: torch.randn(5, generator=gen) > 0,
        g(4, 3),
        calls=(Call(1), Call(2), Call(3, training=False, grad=False)),
    ),
    case("shapes: unbacked, views", views_of_unknown_size, g(6), calls=(Call(1), Call(2))),
    case(
        "shapes: unbacked, sizes as results",
        sizes_that_depend_on_data,
        g(6),
        calls=(Call(1), Call(2), Call(3, training=False, grad=False)),
    ),
    case("shapes: unbacked, a count as a number", count_as_a_number, g(3, 4), calls=(Call(1), Call(2))),
    case(
        "shapes: unbacked, numbers as results",
        number_results,
        g(3),
        lambda gen: torch.randn((), generator=gen, dtype=torch.float64),
        calls=(Call(1), Call(2), Call(3, training=False, grad=False)),
    ),
    case("shapes: unbacked, item as the size of a view", item_as_a_size_of_a_view, g(5), ints(high=4), calls=(Call(1), Call(2))),
    case(
        "shapes: unbacked, dynamic batch beside it",
        mask_and_rows,
        g(5, 4),
        lambda gen: torch.randn(5, generator=gen) > 0,
        g(4, 3),
        dynamic_shapes={"x": {0: BATCH}, "rows": {0: BATCH}},
        calls=(TRAIN, at(g(9, 4), lambda gen: torch.randn(9, generator=gen) > 0, g(4, 3))),
    ),
    case(
        "shapes: unbacked, a check that fails (eager raises)",
        checked,
        g(2),
        const(torch.tensor(2)),
        calls=(TRAIN, at(g(2), const(torch.tensor(3)))),
    ),
    case("shapes: unbacked, nothing found", boolean_mask, lambda gen: (-torch.rand(6, generator=gen)).requires_grad_()),
    case("shapes: unbacked, an operator that branches on it", scanned, g(6)),
    case("shapes: a branch on data", any_branch, g(3)),
]
