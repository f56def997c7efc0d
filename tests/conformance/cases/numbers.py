"""Numbers: constants, types that are computed in, and ranges."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from devtools.harness import INFER, Call, Case, MakeInputs, Spec, case, const, g, t


def positions(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """DETR's positions, and others that are computed of constants."""
    ones = torch.ones((2, 4), dtype=torch.bool)
    half = ones.cumsum(1, dtype=torch.float16).unsqueeze(-1) * y
    whole = torch.full((5,), 2.7).cumsum(0, dtype=torch.int64)
    double = x * torch.ones_like(x).cumsum(-1, dtype=torch.float64)
    return ones.cumsum(1, dtype=torch.float32).unsqueeze(-1) * x, half, whole, double


def constants(x: Tensor) -> tuple[Tensor, ...]:
    """Tensors without dimensions do not decide on types, and a product with 0 may be no number."""
    wraps = torch.full((3,), 100, dtype=torch.int8) + torch.full((), 100)
    same = torch.full((3,), 0.1) == torch.full((), 0.1, dtype=torch.float64)
    return wraps > 0, same, x * 0


def sums_of_bytes(x: Tensor) -> tuple[Tensor, ...]:
    unsigned, signed = x.to(torch.uint8), x.to(torch.int8)
    sums = [unsigned.sum(dtype=torch.uint8), signed.sum(dtype=torch.int8), signed.sum(1, dtype=torch.int8)]
    return (
        *sums,
        x.sum(0, dtype=torch.uint8),
        (x / 30).to(torch.int8).prod(dtype=torch.int8),
        torch.arange(15).sum(dtype=torch.uint8),
    )


def deviations(x: Tensor) -> tuple[Tensor, ...]:
    large, small = x * 1e20, x * 1e-25
    return large.std(), small.std(), large.std(1), small.std(0, correction=0), torch.std_mean(large, 1)[0], x.bfloat16().std(1)


def small(x: Tensor) -> tuple[Tensor, ...]:
    """Of results that are compared as a whole, the largest must not hide the small ones."""
    return torch.erf(x) / x, torch.erf(x) + 1, torch.expm1(-x) / x, F.elu(-x) / x, torch.erf(x.bfloat16())


def remainders(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x * 1e6 % (2 * math.pi), x * 1e8 % y, torch.remainder(-3.0, y), y.long() % 3, (x % 1.5).bfloat16() % 0.3


def gradients_at_nan(x: Tensor) -> tuple[Tensor, ...]:
    """Eager's vectors, of which ``x`` fills several, give NaN or zero."""
    nothing = torch.zeros_like(x)
    smooth = [F.smooth_l1_loss(x, nothing, reduction=how, beta=0.5) for how in ("none", "sum")]
    activated = F.elu(x), F.celu(x, 0.7), F.selu(x), F.hardtanh(x), F.relu6(x), F.hardswish(x), F.softshrink(x)
    return (*activated, F.elu(x * 1, inplace=True), *smooth, x**-0.5)


def margins_at_nan(x: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    padded = torch.stack([labels, torch.full_like(labels, -1), labels, labels], 1)
    return F.multi_margin_loss(x, labels), F.multilabel_margin_loss(x, padded)


def filled(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    """Negative indices count from the end."""
    return x.index_fill(0, index, 2.0), x.index_fill(-1, index, -1), x.clone().index_fill_(1, index, 3.0)


def asserted(x: Tensor, mask: Tensor) -> Tensor:
    torch._assert_async(mask.all())
    return x * 2


def variances(x: Tensor) -> tuple[Tensor, ...]:
    shifted = x + 1e5
    return shifted.var(), shifted.var(1), torch.var_mean(shifted, 1)[0], shifted.std(0)


def thresholds(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return F.threshold(x, 0.3, 20.0), F.threshold(y, 0.3, 20.0), F.relu(x), F.threshold(x, 0.5, 1.0)


def unsigned(x: Tensor) -> tuple[Tensor, ...]:
    large = (x * 1e18, x * 1e38, (x * 1e18).bfloat16(), (x * 1e300).half(), x * float("nan"))
    unsigned = [each.to(torch.uint64) for each in large]
    return x.to(torch.uint32), x.to(torch.uint64), x.bfloat16().to(torch.uint32), x.double().to(torch.uint64), *unsigned


def cross_entropy(p: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy(p.sigmoid(), target)


def half_results(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """What rounds, overflows or underflows in half precision, read by what shows it. Numbers are no halves in products."""
    h, b = y.half(), y.bfloat16()
    products = (h * h).isinf(), (h * 1e-5 * 1e5).float() * 1e4, (h * 65536.0 / 65536.0).isinf(), ((h * h) / 300).isfinite()
    sums = (h + 1e-4) > h, ((h * 3.3) * 1.7 - h).float() * 1e3, (b + 0.1 - 0.3).float() * 1e3
    steps = (b / 3).floor(), (b * 100).to(torch.int64), torch.nextafter(b * 3, b * 4) == b * 3, b.view(3, -1).sum(-1) * 3 == b[:3]
    return x * products[0], *products, *sums, *steps


def half_moments(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """What code with vectors of halves did not compile, and a quotient that is whole only in half precision."""
    moments = x.var(), x.std((0, 1)), *torch.var_mean(x, (1, 2), keepdim=True), *torch.std_mean(x, -1, correction=0)
    return *moments, torch.signbit(y), torch.div(y * 2.996, y, rounding_mode="trunc"), x[:0].roll(1, 0).float()


def bags(weight: Tensor, indices: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
    return tuple(F.embedding_bag(indices, weight, offsets, mode=mode) for mode in ("sum", "mean", "max"))


def constants_without_end(x: Tensor) -> tuple[Tensor, ...]:
    """Infinite numbers and NaN that a graph makes up."""
    nan, endless = torch.full((2, 2), float("nan")), torch.full((2, 2), float("-inf"))
    found = nan.softmax(0), nan.amax(0), nan.clamp(0, 1), torch.minimum(nan, torch.full((2, 2), 2.0))
    return *(each + x for each in found), endless.logsumexp(0) + x, endless // 2 + x, (torch.full((2, 2), 3e38) * 10) // 2 - x


def half_gradients(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return F.elu(x, 0.3), F.selu(x), F.hardswish(x), F.smooth_l1_loss(x, x * 0.3, beta=0.3), F.elu(y, 0.3), F.hardswish(y)


def pools_at_nan(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return F.adaptive_max_pool1d(x, 3), F.adaptive_max_pool1d(x, 2), F.adaptive_max_pool2d(y, 3)


def products(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
    """Eager's gradient divides the product, unless it finds a 0: what overflows or is no number shows which."""
    return x.prod(), x.prod(1), y.prod(), y.prod(0), z.prod(), z.prod(-1, keepdim=True), (x * 1e-3).prod(dtype=torch.float64)


def ranges(x: Tensor) -> tuple[Tensor, ...]:
    """Compared as integers, so that one rounding shows."""
    halves = [torch.linspace(-3.3, 7.7, 33, dtype=dtype) for dtype in (torch.float16, torch.bfloat16)]
    halves += [
        torch.arange(3, -7, -0.3, dtype=torch.float16),
        torch.hann_window(33, dtype=torch.bfloat16),
        torch.logspace(-2, 2, 9).half(),
    ]
    whole = (
        torch.linspace(101.5, 3.3, 33, dtype=torch.int64),
        torch.linspace(0, 9.9, 100).mul(10).long(),
        torch.linspace(0, 5, 6) + x,
    )
    return (
        *whole,
        *(half.view(torch.int16) for half in halves),
        torch.arange(0, 1, 0.1).view(torch.int32),
        torch.arange(5.0) * x[:5],
    )


def equal_calls(x: Tensor) -> tuple[Any, ...]:
    """Results of calls with several results, each a tensor of its own."""
    return x.sort(), x.sort(), x.max(0), x.max(0), x.topk(1).values * 2, x.topk(1).values


def quotients(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """A square that is 0, and a product that is infinite before something is added to it."""
    return torch.addcdiv(x, x, y, value=0.3), torch.addmm(x, y[:, None], x[None] * 6e4), x + (y[:, None] * 300) @ (x * 300)[None]


def constant_channels(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Nothing to divide by: a batch norm's kernel looks for that, others do not."""
    rows = torch.stack([torch.ones_like(x), x, torch.zeros_like(x)])[None]
    still, varying = torch.tensor([0.0, 1.0, -1.0]), torch.tensor([0.0, 2.0, 0.0])
    return (
        F.instance_norm(rows, eps=0.0),
        F.instance_norm(rows, weight=y, bias=y, eps=0.0),
        F.group_norm(rows, 3, eps=0.0),
        F.batch_norm(rows, still, varying, y, y, eps=0.0),
        F.batch_norm(rows.bfloat16(), still, varying, eps=0.0),
        F.instance_norm(rows, still, varying, use_input_stats=False, eps=0.0),
    )


def images_of_nothing(x: Tensor) -> tuple[Tensor, ...]:
    """Images of a batch without rows, enlarged."""
    modes = ("nearest", "nearest-exact")
    shapes = (x[..., 0], x, x[:, :, None])
    made = [F.interpolate(each, scale_factor=2, mode=mode) for each in shapes for mode in modes]
    return *made, F.interpolate(x, size=(3, 7), mode="bilinear"), F.adaptive_avg_pool2d(x, 1)


def statistics(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Norms of half precision with float32 weights, whose gradients are float32: statistics are not rounded."""
    return (
        F.batch_norm(x, None, None, weight, bias, training=True),
        F.batch_norm(x, torch.zeros(3), torch.ones(3), training=True),
        F.instance_norm(x, weight=weight, bias=bias),
        F.group_norm(x, 3, weight, bias),
        F.layer_norm(x, (5,)),
    )


def large_margins(x: Tensor) -> tuple[Tensor, ...]:
    signs = torch.ones_like(x).cumsum(-1) % 2 * 2 - 1
    return F.soft_margin_loss(x, signs), F.soft_margin_loss(x, signs, reduction="none")


def view_and_detached(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    return y.view(-1), y.detach()


def views_and_detached(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x.sin(), x.exp()
    return y[0], y.detach(), y.data, y.detach().t(), z.t(), z.data, y.detach() * z


def _leaf(value: Tensor) -> Spec:
    return lambda generator: value.clone().requires_grad_()


def _with_quantile(number: float) -> Any:
    return lambda seed: ((torch.randn(5, requires_grad=True), torch.tensor([0.5, number])), {})


def _with_target(number: float) -> MakeInputs:
    return lambda seed: ((torch.zeros(4, requires_grad=True), torch.full((4,), number)), {})


_NAN, _INF = float("nan"), float("inf")
_SPECIAL = torch.tensor(
    [[_NAN] * 8, [_INF, -_INF, 0.0, -0.0, 3.0, -3.0, 1.0, -1.0], [1e30, -1e30, 1e-30, -1e-30, 6, 7, 2.9, -2.9]] * 2
)
_HALVES = torch.cat([torch.linspace(-9.7, 9.9, 62), torch.tensor([300.0, -256.0, 1e-4, 3e-8])])
_ONE_NAN = torch.where(torch.arange(84) == 23, _NAN, torch.linspace(-1, 1, 84)).reshape(12, 7)
_FACTORS = torch.tensor([[1e30, 1e30, 1e-30, 1e-30], [_INF, 1.0, 2.0, 3.0], [_NAN, 1.0, -1.0, 0.5], [3.0, 4.0, 5.0, 6.0]])
_SMALL = torch.tensor([0.0, 1.0, -2.0, 300.0, 6e-5, 6e-8] * 6)
_AT_THRESHOLD = torch.tensor([0.3, 0.31, 0.2, 0.5])


def complex_leaf(generator: torch.Generator) -> Tensor:
    return torch.randn(3, 4, generator=generator, dtype=torch.complex128).requires_grad_()


def narrowed(z: Tensor) -> Tensor:
    """A cast of complex numbers, whose result requires no gradient under ``no_grad``."""
    return z.to(torch.complex64)


def quotients_by_small_numbers(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return a // b, torch.div(a, b, rounding_mode="trunc")


_SUBNORMAL = torch.tensor([1e-40, -1e-40, 1e-45, 3e-39, -2e-42, 0.0, 1.0, -0.3]).expand(6, 8).contiguous()
_ANY = torch.tensor([1.0, -2.2e10, 1e-40, 0.0, 3e38, float("inf")]).view(6, 1).expand(6, 8).contiguous()

CASES: list[Case] = [
    *(
        case(f"numbers: {name}, {target}", function, *given, calls=(INFER,), targets=(target,))
        for target in ("portable", "cpu")
        for name, function, given in (
            ("complex ones are cast in inference", narrowed, (complex_leaf,)),
            ("quotients by subnormal ones", quotients_by_small_numbers, (const(_ANY), const(_SUBNORMAL))),
        )
    ),
    *(
        case(f"numbers: {name}, {target}", function, *specs, targets=(target,))
        for name, function, specs, *targets in (
            ("positions", positions, [g(2, 4, 3), g(2, 4, 3, dtype=torch.float16)], "portable"),
            ("constants", constants, [const(torch.tensor([[[1.0, -float("inf")], [float("nan"), 2.0]]]))], "portable"),
            (
                "sums of bytes",
                sums_of_bytes,
                [lambda generator: torch.randint(-100, 100, (7, 13), generator=generator).float()],
                "portable",
            ),
            ("range of std", deviations, [g(5, 9)]),
            ("thresholds of half precision", thresholds, [_leaf(_AT_THRESHOLD.bfloat16()), _leaf(_AT_THRESHOLD.half())]),
            ("negative numbers to unsigned ones", unsigned, [const(torch.linspace(-3.5, 90.0, 35))]),
            ("results in half precision", half_results, [g(66), const(_HALVES)]),
            ("gradients in half precision", half_gradients, [_leaf(_HALVES.bfloat16()), _leaf(_HALVES.half())]),
            ("moments of half precision", half_moments, [g(5, 5, 7, dtype=torch.bfloat16), const(_HALVES.bfloat16())]),
            (
                "bags of half precision",
                bags,
                [g(9, 4, dtype=torch.bfloat16), const(torch.tensor([1, 2, 8, 8, 0])), const(torch.tensor([0, 2]))],
            ),
            ("constants without end", constants_without_end, [g(2, 2)]),
            ("pools of NaN", pools_at_nan, [_leaf(_ONE_NAN), _leaf(_ONE_NAN.reshape(1, 2, 6, 7))]),
            (
                "gradients of products",
                products,
                [_leaf(_FACTORS), _leaf(_FACTORS.where(_FACTORS != 2, 0)), _leaf(_FACTORS.where(_FACTORS < 2, 0))],
            ),
            ("ranges", ranges, [g(6)]),
            ("channels that do not vary", constant_channels, [g(6), g(3)]),
            ("statistics of half precision", statistics, [g(4, 3, 5, dtype=torch.bfloat16), g(3), g(3)]),
            ("images of an empty batch", images_of_nothing, [g(0, 3, 4, 4)], "portable"),
            ("results of equal calls", equal_calls, [g(3, 4)]),
            ("squares and sums of half precision", quotients, [_leaf(_SMALL.half()), _leaf(_SMALL.flip(0).half())]),
            ("margins out of range", large_margins, [_leaf(torch.linspace(-300.0, 300.0, 35))]),
            ("a view beside what is detached", view_and_detached, [g(2, 4)]),
            ("views beside what is detached", views_and_detached, [g(2, 4)]),
        )
        for target in targets or ("portable", "cpu")
    ),
    case("numbers: variance far from zero, cpu", variances, t(6, 40), targets=("cpu",)),
    *(
        row
        for target in ("portable", "cpu")
        for row in (
            case(f"numbers: gradients where a number is NaN, {target}", gradients_at_nan, _leaf(_SPECIAL), targets=(target,)),
            case(
                f"numbers: margins where a score is NaN, {target}",
                margins_at_nan,
                _leaf(_SPECIAL.reshape(-1, 4)[:8]),
                const(torch.arange(8) % 4),
                targets=(target,),
            ),
            case(
                f"numbers: index_fill from the end, {target}",
                filled,
                g(4, 4),
                const(torch.tensor([-1, 0, -4])),
                targets=(target,),
            ),
            case(
                f"numbers: an assertion without a message (eager raises), {target}",
                asserted,
                g(2),
                const(torch.tensor([True, True])),
                calls=[
                    Call(1),
                    Call(2, inputs=lambda seed: ((torch.ones(2, requires_grad=True), torch.tensor([True, False])), {})),
                ],
                targets=(target,),
            ),
        )
    ),
    case("numbers: small numbers, cpu", small, const(torch.logspace(-30, -0.01, 40)), targets=("cpu",)),
    case("numbers: remainders, cpu", remainders, g(40), t(40), targets=("cpu",)),
    *(
        case(
            f"numbers: binary_cross_entropy of targets that are no probability (eager raises), {target}",
            cross_entropy,
            g(4),
            const(torch.full((4,), 0.5)),
            calls=[Call(1), *(Call(2, inputs=_with_target(number)) for number in (1.5, -0.5, float("nan")))],
            targets=(target,),
        )
        for target in ("portable", "cpu")
    ),
    *(
        case(
            f"numbers: quantiles that do not exist (eager raises), {target}",
            lambda x, q: (x.quantile(q), torch.nanquantile(input=x, q=q, dim=0)),
            g(5),
            const(torch.tensor([0.5, 1.0])),
            calls=[Call(1), *(Call(2, inputs=_with_quantile(number)) for number in (-0.5, 1.5, float("nan")))],
            targets=(target,),
        )
        for target in ("portable", "cpu")
    ),
]
