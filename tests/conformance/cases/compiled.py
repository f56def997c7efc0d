"""What Inductor computes otherwise than eager, and a build mends: torch.compile gives other values in each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim

from devtools.harness import INFER, TRAIN, Case, Spec, case, g, ints, t

from .shapes import at


def positive(dtype: torch.dtype) -> Spec:
    """Enough numbers for several vectors, none of them zero."""
    return lambda generator: torch.randint(1, 100, (9, 10), generator=generator).to(dtype)


def extremes(x: Tensor) -> Any:
    least, indices = x.min(0)
    return x.amin(), x.amax(1), least, indices, x.max(), x.argmin(), (-x).argmax(1), (-x).max(1).values + 1


def any_and_absolute(x: Tensor, y: Tensor) -> Any:
    z = y.bitwise_or(-128)  # one that has no opposite
    return x.any() * 200 + 100, x.any(0), x.any((0, 1)), z.abs().int(), (-x.abs()).int()


def quotients(x: Tensor) -> Any:
    return x // 0.1, (-x) // 0.1, torch.div(x, x.flip(0), rounding_mode="floor"), torch.floor_divide(x, 0.7), x // 0.0


def tenths(generator: torch.Generator) -> Tensor:
    return torch.randint(-20, 20, (40,), generator=generator).double() / 10


def powers(x: Tensor) -> Any:
    """Of whole numbers, which have more digits than a float."""
    exponents = x.abs().clamp(max=62)
    return (
        2**exponents,
        torch.pow(3, exponents % 30),
        torch.pow(-2, exponents),
        torch.pow(2, x.to(torch.int8) % 7),
        torch.pow(2.5, x % 9),
    )


def padded_product(x: Tensor) -> Tensor:
    """A sum whose tiles lie across a loop between: 18 is no multiple of a vector."""
    y = F.gelu(x)
    return torch.matmul(F.pad(y, (0, 0, 0, 0, 0, 10), value=0.5), F.pad(y.permute(3, 2, 1, 0), (0, 0, 0, 10), value=0.5))


def integers_multiplied(x: Tensor, y: Tensor) -> Any:
    return x @ y, x[0] @ y, x[:1] @ y[:, None], x[None, :1] @ y[None, :, None], x[:, :1] @ y[None, :2], torch.mv(x, y)


def powers_of_two(half: Tensor, single: Tensor, count: Tensor) -> Any:
    return (
        torch.ldexp(half, single),
        torch.ldexp(count, half),
        torch.ldexp(single, count),
        torch.ldexp(single * 1e-30, count + 200),
    )


def indices_of_extremes(x: Tensor) -> Any:
    """Loops go by memory, which is channels-last; indices do not."""
    return x.mean(-1).argmax(), x.amax(-1).argmin(), (x * 2).argmax(), x.argmin()


def pooled_volumes(x: Tensor) -> Any:
    """Windows of which the loops run in another order than the indices in them are counted."""
    small, where = F.max_pool3d(x, 3, return_indices=True)
    return small, where, F.max_pool3d(x, 3, stride=2, padding=1), F.adaptive_max_pool3d(x, (1, 2, 2)), F.max_pool2d(x[:, 0], 6)


def repeated_and_flipped(x: Tensor) -> Tensor:
    return (x + 1).flatten().repeat_interleave(2).flip(0)


def casts(x: Tensor) -> Any:
    rounded = x.bfloat16().to(x.dtype)
    return rounded, rounded == x, (x + 1).half().view(-1).float() * 3, x.half().double(), x.bfloat16().sum(0)


def written_twice(x: Tensor) -> Any:
    """A part, then what a mask tells."""
    y, z = x.clone(), x.sin()
    y.diagonal().mul_(2)
    y[y > 0] = y.mean()
    z[1:] = 3
    z[z > 2] = x.sum()
    return y, z, x.diagonal_scatter(x.diagonal() * 2).index_put((x > 0,), x.mean())


def read_and_written(x: Tensor) -> Any:
    """Parts are read, by loops and by a kernel, then all is written, also from what was read."""
    y, z = (x @ x.t()) @ x, x @ x.t()
    first, rows = y[:2] * 3, F.pad(z[1:3] * 2, (0, 0, 1, 1))
    product = y[2:4] @ y[2:4].t()
    y[y > 0] = 0.25
    z[z > 0] = rows.sum()
    return first, rows, product, y, z


def concatenated_and_written(x: Tensor) -> Any:
    """A tensor that would lie in its concatenation, and a concatenation, are written."""
    sums, parts, indices, masked, whole = x.cumsum(0), x.sin(), x.cos(), x.tanh(), x.exp()
    first, second, third = torch.cat([parts, sums]), torch.cat([indices, sums], 1), torch.cat([masked, sums])
    parts.diagonal().mul_(2)
    indices.index_put_((torch.tensor([1, 2]), torch.tensor([3, 4])), x.sum())
    masked[masked > 0] = 1
    fourth = torch.cat([whole, sums])
    fourth[2:4].mul_(3)
    return first, parts * 2, second, indices * 2, third, masked * 2, fourth, whole * 2


def complex_differences(x: Tensor, y: Tensor) -> Any:
    """By a kernel, whose ``alpha`` nobody gives, and which takes no numbers."""
    return x.conj() - y, x - 2 * y.abs(), torch.sub(x, y, alpha=3), torch.rsub(x, y), 1 - x, x - 2.5, x.tanh()


def complex_and_real_numbers(x: Tensor) -> Any:
    """Of a tensor of one element, which a number in ``float64`` makes ``complex128``, and of more."""
    one = x.sum()
    return one * 3.5, one + 2, one - 1.5, one / 2.5, 2 / one, one.sinc(), x * 3.5, x / 2.5, x**2.5, x.sinc()


def complex_numbers(x: Tensor) -> Any:
    """Numbers in calls, and in the gradients of ``polar``, ``angle`` and a sine."""
    y = torch.polar(x.abs() + 0.5, x)
    z = (x * 1j + 2j) / (1 + 2j)
    return torch.view_as_real(y), (z - 1j).abs(), y.sin().imag, (z + 3).angle(), torch.where(x > 0, y, 0).real


def numbers_for_each(x: Tensor, y: Tensor) -> Any:
    """Operators on lists of tensors with a number for each of them."""
    pair, numbers = [x, y], [0.5, 3]
    three: Any = [torch._foreach_addcmul(pair, pair, pair, numbers), torch._foreach_addcdiv(pair, pair, [x + 9, y + 9], numbers)]
    names = ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
    two = [getattr(torch, f"_foreach_{name}")(pair, numbers) for name in names]
    z = y.clone()
    torch._foreach_clamp_min_([z[1:], z[0]], [0.1, 1])
    return three, two, torch._foreach_lerp(pair, [x * 2, y * 3], numbers), z


def extremes_scattered(x: Tensor) -> Any:
    """What the extremes are of is computed in one loop, and saved by another."""
    y = x.sin().scatter_reduce(0, torch.tensor([[1, 0, 2, 3, 4, 5, 0, 1]]), x[:1], "amax")
    return y.masked_fill(x > 0, 1).tril()


def scattered_by_index(x: Tensor, y: Tensor) -> Any:
    """Places in memory, which is more than the tensor, or lies otherwise."""
    rows, whole = x.split(2)[-1], x.sin()
    return (
        whole.as_strided_scatter(whole.reshape(-1)[:21], (21,), (1,), 1),
        rows.as_strided_scatter(y, (2,), (1,), 1),
        rows.as_strided_scatter(y, (2,), (3,), 43),
        rows.as_strided_scatter(y, (2,), (3,)),
        x.t().as_strided_scatter(y, (2,), (2,), 3),
        (x * 2)[4:].as_strided_scatter(y, (2,), (3,), 38),
        x[:, None].expand(6, 3, 8).as_strided_scatter(y, (2,), (3,), 5),
    )


def numbers_read(x: Tensor) -> Any:
    """They are ``double``, as Python's are."""
    total = x.amax().item()
    return total, x * (total * 0.3 + 1e-9), torch.full((2,), total, dtype=torch.float64)


def nothing_changed(x: Tensor) -> Any:
    """Results with the numbers of the argument, or of one another, in memory of their own; the argument is written to later."""
    ones, zeros, y = torch.ones(6, 8), torch.zeros(6, 8), x * 2
    results = (
        x * ones,
        x.t() / ones.t(),
        x.clone().view(-1).clone(),
        torch.cat(x.split([5, 3], 1), 1),
        y,
        y + zeros,
        y.clone().view(-1).clone(),
        torch.cat([y, y.sin()]),
    )
    x.add_(1)
    return results


def channels_last(generator: torch.Generator) -> Tensor:
    return torch.randn(1, 8, 18, 18, generator=generator).contiguous(memory_format=torch.channels_last)


def taken(x: Tensor, indices: Tensor) -> Any:
    return x.take(indices[0] % 5), x.t().take(indices % 5), x.take(-1 - indices[:1, None] % 5)


def added_in_one_place(x: Tensor) -> Any:
    """A whole vector of numbers, and what is left of it; the gradient of an extreme adds, too."""
    indices = torch.zeros(17, dtype=torch.long)
    added = x.new_zeros(1).index_add(0, indices, x[0]), x.new_zeros(3, 1).index_add(1, indices, x)
    greatest = x.new_zeros(1).index_reduce(0, indices, x[1], "amax", include_self=False)
    return *added, greatest, x.new_zeros(5).index_put((indices + 2,), x[2], accumulate=True)


def last_and_diagonal(x: Tensor) -> Any:
    """Parts whose sizes are the smaller of two that vary, and their gradients."""
    return x[-3:].sin(), x[-3:, :-1].cos(), x.diag() * 2, x.diagonal(-1).exp(), x[:, -2:].clone()


def halves(x: Tensor) -> Any:
    """The backward's inputs are half as long as what its sizes are computed from, which it is given beside them."""
    return [*(part * 2 for part in x.chunk(2)), x[: (x.shape[0] + 1) // 2].exp()]


SIZE = Dim("size", min=2, max=64)

CASES: list[Case] = [
    case(f"compiled: {name}, {target}", function, *specs, calls=(INFER,), methods=("infer",), targets=(target,))
    for name, function, *specs in (
        ("extremes of int8", extremes, positive(torch.int8)),
        ("extremes of uint8", extremes, positive(torch.uint8)),
        ("any and abs of bytes", any_and_absolute, positive(torch.uint8), positive(torch.int8)),
        ("quotients rounded down", quotients, tenths),
        ("powers of whole numbers", powers, positive(torch.int64)),
        ("indices of extremes", indices_of_extremes, channels_last),
        ("rests of tiles", padded_product, channels_last),
        ("casts round", casts, t(5, 33)),
        ("nothing changed", nothing_changed, t(6, 8)),
        ("written twice", written_twice, t(6, 9)),
        ("read and written", read_and_written, t(6, 8)),
        ("concatenated and written", concatenated_and_written, t(6, 8)),
        ("scattered by index", scattered_by_index, t(6, 8), t(2)),
        ("numbers read", numbers_read, t(6, dtype=torch.float64)),
        ("taken", taken, t(6, 8), positive(torch.int64)),
        ("numbers for each", numbers_for_each, positive(torch.float32), positive(torch.float64)),
    )
    for target in ("portable", "cpu")
]
CASES += [
    case("compiled: casts round, gradients", casts, g(5, 33), methods=("train",), targets=("cpu",)),
    case(
        "compiled: complex differences",
        complex_differences,
        g(3, 4, dtype=torch.complex128),
        t(3, 4, dtype=torch.complex128),
        methods=("train",),
        targets=("cpu",),
    ),
    case(
        "compiled: complex and real numbers",
        complex_and_real_numbers,
        g(3, 4, dtype=torch.complex64),
        methods=("train",),
        targets=("cpu",),
    ),
    case("compiled: complex numbers", complex_numbers, g(3, 4, dtype=torch.float64), methods=("train",), targets=("cpu",)),
    case("compiled: extremes scattered", extremes_scattered, g(60, 8, dtype=torch.float64), methods=("train",), targets=("cpu",)),
    case("compiled: added in one place", added_in_one_place, g(3, 17), methods=("train",), targets=("cpu",)),
    case("compiled: gradients that are zero, cpu", lambda x: x.sgn(), g(5), methods=("train",), targets=("cpu",)),
    case(
        "compiled: indices in windows, gradients",
        pooled_volumes,
        lambda gen: torch.randn(7, 7, 6, 2, 1, generator=gen, dtype=torch.float64).permute(4, 3, 2, 1, 0).requires_grad_(),
        methods=("train",),
        targets=("cpu",),
    ),
    case("compiled: nothing changed, gradients", lambda x: nothing_changed(x * 3), g(6, 8), methods=("train",), targets=("cpu",)),
    case("compiled: written twice, gradients", written_twice, g(6, 9), methods=("train",), targets=("cpu",)),
]
CASES += [
    case(
        "compiled: integers multiplied",
        integers_multiplied,
        *(ints(*n, high=99, dtype=torch.int8) for n in ((2, 3), (3,))),
        methods=("infer",),
        calls=(INFER,),
        targets=("cpu",),
    ),
    case(
        "compiled: powers of two",
        powers_of_two,
        lambda gen: torch.rand(5, generator=gen).half(),
        t(5),
        ints(5, high=9),
        methods=("infer",),
        calls=(INFER,),
        targets=("cpu",),
    ),
    case(
        "compiled: the last of varying sizes, cpu",
        last_and_diagonal,
        g(6, 5),
        dynamic_shapes={"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}},
        calls=(TRAIN, at(g(4, 7)), at(g(5, 5)), at(g(3, 9))),
        methods=("train",),
        targets=("cpu",),
    ),
    *(
        case(
            f"compiled: {name}, cpu",
            function,
            g(5, 4),
            dynamic_shapes={"x": {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}},
            calls=(TRAIN, at(g(4, 7)), at(g(9, 2))),
            methods=("train",),
            targets=("cpu",),
        )
        for name, function in (("halves of varying sizes", halves), ("a half of varying sizes", lambda x: halves(x)[2]))
    ),
    case(
        "compiled: repeated and flipped, sizes vary, cpu",
        repeated_and_flipped,
        t(3, 3),
        dynamic_shapes={"x": {0: SIZE, 1: Dim("width", min=2, max=64)}},
        calls=(INFER, at(t(2, 5), grad=False), at(t(7, 2), grad=False)),
        methods=("infer",),
        targets=("cpu",),
    ),
]
