"""Sizes that vary, and other sizes, strides and offsets of arguments than at build."""

from __future__ import annotations

import math
from typing import Any

import torch
from support.releases import TORCH
from torch import Tensor, nn
from torch.export import Dim

from devtools.harness import INFER, TRAIN, Call, Case, Spec, case, const, g, inputs, ints, module_case, n, t

from .mutation import at_an_offset

_ZERO_HEADS = r"x: expected .*=1\.\." if TORCH >= (2, 14) else ""
"""From 2.14 on, attention without heads calls the kernel that divides by their number."""

BATCH = Dim("batch", min=2, max=64)
SEQUENCE = Dim("sequence", min=2, max=32)


def at(*specs: Any, refused: str = "", grad: bool = True, **named: Any) -> Call:
    """A call with other sizes."""
    return Call(3, training=grad, grad=grad, inputs=inputs(*specs, **named), refused=refused)


class Attention(nn.Module):
    """Batch and sequence both vary."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Block(nn.Module):
    """Heads are the second dimension to the attention, and the third in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.qkv, self.out, self.norm = nn.Embedding(9, 4), nn.Linear(4, 12), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 2, 2).transpose(1, 2) for part in self.qkv(self.norm(x)).split(width, 2))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(found.transpose(1, 2).contiguous().view(batch, length, width))


class Positional(nn.Module):
    """A table cut to the sequence's length."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


def sizes_as_outputs(x: Tensor) -> Any:
    return x * 2, x.shape[0], x.shape[0] * x.shape[1] + 1


def sizes_as_values(x: Tensor) -> Tensor:
    return x * x.shape[0] / (x.shape[1] + 0.5)


def sizes_saved(x: Tensor) -> Tensor:
    return x.mean(0).expand(x.shape[0], -1).sin().reshape(-1)


def new_of_size(x: Tensor) -> Any:
    return x.sum() + torch.zeros(x.shape[0]).sum(), torch.arange(x.shape[0])


def real_sizes(x: Tensor) -> Any:
    rows, columns = x.shape
    return (
        x[: math.ceil(rows / 3), : round(columns / 2)] * 2,
        torch.arange(0, rows, 0.3),
        x[: math.floor(columns * 0.1)] / rows**0.5,
        x[: int(math.sqrt(rows))],
    )


def alias_dynamic(x: Tensor) -> Any:
    return x.view(-1), x[1:], x.t(), x * 2


def mutated_dynamic(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.sin()


def intermediate_alias_dynamic(x: Tensor) -> Any:
    y = x * 2
    return y.view(-1), y[0], y


def halves(x: Tensor) -> Tensor:
    return x.view(x.shape[0] // 2, 2, -1).sum(1)


def equal_sizes(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def joined(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y])


def branch_on_size(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 8 else x * 3


DYNAMIC = {"x": {0: BATCH}}
BOTH = {"x": {0: BATCH, 1: SEQUENCE}}
ANY = {"x": {0: Dim.DYNAMIC}}
LAYOUT = r"^out\.stride: "
"""A LayoutWarning says that results keep the strides of the build (tests/test_call.py)."""

SLICES: dict[str, Any] = {
    "columns": lambda gen: torch.randn(4, 9, generator=gen)[:, :5].requires_grad_(),
    "every other row": lambda gen: torch.randn(8, 6, generator=gen)[::2].requires_grad_(),
    "every other column, transposed": lambda gen: torch.randn(8, 6, generator=gen)[:, ::2].t().requires_grad_(),
}


def _reshaped_part(x: Tensor) -> Tensor:
    """A view of every second column if there is an even number of columns."""
    return x[:, ::2].reshape(-1, 2)


def _written_part(x: Tensor) -> Tensor:
    _reshaped_part(x).add_(1)
    return x * 1


ASKS_FOR_ELEMENTS = {
    "numel()": lambda x: (x * 2).sum() if x.numel() else x.sum() + 5,
    "== 0": lambda x: x.sum() + 1 if x.shape[0] == 0 else x.sum() * 1,
    "max()": lambda x: (x.sum() + 3) / max(x.shape[0], 1),
    "sym_max()": lambda x: (x.sum() + 3) * torch.sym_max(x.shape[0], 1),
    "a product": lambda x: x.sum() + (5 if x.shape[0] * 3 > 0 else 7),
    "a quotient": lambda x: x.sum() + (5 if x.shape[0] / 2 > 0 else 7),
}

ANY_SIZE = {
    "reshape": lambda x: x.reshape(-1, 3).flatten() * 2,
    "unsqueeze and expand": lambda x: x.unsqueeze(0).expand(5, -1, -1) * 2,
    "reductions": lambda x: (x.sum(0), x.mean(1)),
    "softmax": lambda x: x.softmax(0),
    "product": lambda x: x @ x.t(),
    "broadcast": lambda x: x + x.sum(0, keepdim=True),
    "outer": lambda x: x[:, None] * x[None],
    "slices": lambda x: (x[1:], x[:2] * 2),
    "cat": lambda x: torch.cat([x, x * 2]),
    "loss": lambda x: nn.functional.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long), reduction="sum"),
    "arange": lambda x: x * torch.arange(x.shape[0])[:, None],
    "layer norm": lambda x: nn.functional.layer_norm(x, (3,)),
}
_fft, _pad = torch.fft, nn.functional.pad
NUMBERS_BELOW_ZERO = {
    "a transform of twice the length": lambda x, n: _fft.irfft(_fft.rfft(x, n=2 * n), n=2 * n)[..., :n].sin(),
    "magnitudes of twice the length": lambda x, n: _fft.rfft(x, n=2 * n).abs(),
    "zeros after": lambda x, n: _pad(x, (0, n)).cumsum(-1),
    "zeros before": lambda x, n: _pad(x, (n, 0)).roll(1, -1).sin(),
    "zeros or a cut": lambda x, n: _pad(x, (5 - n, 30)).sin(),
    "zeros up to a multiple": lambda x, n: _pad(x, (0, -n % 8)).unflatten(-1, (-1, 8)).cumsum(-1),
    "rolled": lambda x, n: x.roll(-(n // 2), -1).sin(),
    "scaled": lambda x, n: x.sin() * x.cos() * (9 - n) / (n - 20.5),
    "below the diagonal": lambda x, n: (x[0][:, None] * x[0]).tril(3 - n).sin(),
}
"""Backwards that need a number computed of sizes, which may be negative."""

NOT_ONE = {
    "squeeze": lambda x: x.squeeze(0) * 2,
    "Python asks": lambda x: x * 2 if x.shape[0] == 1 else x * 3,
}
"""What torch traces for one side of a question about the size; the other side is refused at the call."""


def strided_from_one(x: Tensor) -> Tensor:
    return x.as_strided((3,), (2,), 1) * 2


def one_and_three(x: Tensor) -> Tensor:
    return x.as_strided((2,), (2,), 1)


def two_apart(x: Tensor) -> Tensor:
    return x.as_strided((3,), (2,)) * 2


def first_rows(x: Tensor, n: int) -> tuple[Tensor, int]:
    return x[:n].sin() * n, n + 1


def scaled_rows(x: Tensor, n: int, fixed: int) -> Tensor:
    return (x * n).sin() * fixed + x.shape[0] / (n + 1)


class Repeats(nn.Module):
    """Makes a tensor of the size that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor, count: int) -> Tensor:
        return (x * self.weight).repeat(count, 1) + torch.arange(count)[:, None]


class OffsetBuffer(nn.Module):
    """Reads the storage of a buffer that begins inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("part", torch.arange(9.0)[2:])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.part.as_strided((3,), (1,), 1)


class Views(nn.Module):
    """Views of a batch of sequences, as transformers take them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.project, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project(self.norm(x)).view(x.shape[0], x.shape[1], 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        attended = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return x + self.out(attended.transpose(1, 2).reshape(x.shape))


def quantised(x: Tensor, scale: Tensor) -> Tensor:
    return torch._fake_quantize_learnable_per_tensor_affine(x * 3, scale, torch.zeros(1), -8, 7, 1.0)


def quantised_channels(x: Tensor, scale: Tensor) -> Tensor:
    return torch._fake_quantize_learnable_per_channel_affine(x * 3, scale, torch.zeros(3), 1, -8, 7, 1.0)


def _scales(count: int) -> Spec:
    return lambda generator: (torch.rand(count, generator=generator) + 0.5).requires_grad_()


CASES: list[Case] = [
    *(
        module_case(
            f"shapes: a batch of one, {target}",
            Views,
            t(2, 6, 16),
            dynamic_shapes={"x": {0: Dim("batch"), 1: Dim("length")}},
            calls=(TRAIN, at(t(5, 9, 16)), at(t(1, 7, 16)), at(t(1, 5, 16), grad=False)),
            targets=(target,),
        )
        for target in ("portable", "cpu")
    ),
    case(
        "shapes: dynamic batch",
        lambda x: x.sin() * 2,
        g(4, 3),
        dynamic_shapes=DYNAMIC,
        calls=(TRAIN, at(g(7, 3)), at(g(2, 3)), at(g(64, 3)), at(g(5, 3), grad=False)),
    ),
    *(
        case(
            f"shapes: dynamic batch, learnable quantisation by {name}",
            function,
            g(4, 3),
            _scales(count),
            dynamic_shapes={"x": {0: Dim("batch", min=2, max=64)}, "scale": None},
            calls=(TRAIN, at(g(7, 3), _scales(count))),
        )
        for name, function, count in (("tensor", quantised, 1), ("channel", quantised_channels, 3))
    ),
    case(
        "shapes: dynamic batch, out of range",
        lambda x: x * 2,
        g(4, 3),
        dynamic_shapes=DYNAMIC,
        calls=(at(g(65, 3), refused="batch|2..64|float32"), at(g(1, 3), refused="float32"), at(g(4, 2), refused="float32")),
    ),
    case("shapes: dynamic batch, size 1", lambda x: x.sin() * 2, g(4, 3), dynamic_shapes=ANY, calls=(TRAIN, at(g(1, 3)))),
    case("shapes: dynamic batch, size 0", lambda x: x.sin().sum(), g(4, 3), dynamic_shapes=ANY, calls=(TRAIN, at(g(0, 3)))),
    *[
        case(
            f"shapes: sizes 0, 1 and more, {name}",
            function,
            g(4, 3),
            dynamic_shapes=({0: Dim.DYNAMIC},),
            calls=(at(g(1, 3)), at(g(0, 3)), at(g(7, 3)), at(g(1, 3), grad=False)),
        )
        for name, function in ANY_SIZE.items()
    ],
    *[
        case(
            f"shapes: the backward needs a number below 0, {name}",
            lambda x, function=function: function(x.tanh(), x.shape[1]),
            t(2, 12),
            dynamic_shapes=({1: Dim("n", min=8, max=64)},),
            calls=(TRAIN, at(t(2, 9)), at(t(2, 16)), at(t(2, 50))),
            targets=("cpu", "portable"),
            methods=("train",),
        )
        for name, function in NUMBERS_BELOW_ZERO.items()
    ],
    case(  # the stride of a dimension of size 1 means nothing
        "shapes: size 1, transposed result",
        lambda x: x.t() * 2,
        g(4, 3),
        dynamic_shapes=({0: Dim.DYNAMIC},),
        calls=(at(g(7, 3)), at(g(1, 3))),
    ),
    *[
        case(
            f"shapes: size 1 is refused, {name}",
            function,
            g(4, 3),
            dynamic_shapes=({0: Dim.DYNAMIC},),
            calls=(at(g(7, 3)), at(g(1, 3), refused=r"must satisfy \(x\.shape\[0\] != 1\); here x\.shape\[0\] = 1")),
        )
        for name, function in NOT_ONE.items()
    ],
    *[
        case(
            f"shapes: a model asks whether there are elements, {name}, {front_end}",
            function,
            t(4),
            dynamic_shapes=({0: Dim.AUTO},),
            front_ends=(front_end,),
            calls=(TRAIN, at(t(7)), at(t(1)), at(t(0), refused=r"s\d+=1\.\.|must satisfy \(x\.shape\[0\] != 0\)|/ 2\) > 0")),
        )
        for name, function in ASKS_FOR_ELEMENTS.items()
        for front_end in ("dynamo", "export", "trace")
    ],
    case(
        "shapes: a sum of several sizes",
        lambda x: x.unsqueeze(1).unfold(2, 2, 1).reshape(-1, 2).sum(1) * torch.arange(x.shape[0] * (x.shape[1] - 1)),
        g(4, 6),
        dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},),
        calls=(TRAIN, at(g(7, 5))),
    ),
    case(
        "shapes: attention over no elements, of which torch's kernel makes a crash",
        lambda x: nn.functional.scaled_dot_product_attention(x, x, x),
        g(2, 2, 4, 8),
        dynamic_shapes=({0: Dim.AUTO, 2: Dim.AUTO},),
        calls=(TRAIN, at(g(3, 2, 5, 8)), at(g(0, 2, 4, 8)), at(g(2, 2, 1, 8)), at(g(2, 2, 0, 8), refused=r"s\d+=1\.\.")),
    ),
    *[
        case(
            f"shapes: what reshape copies at some sizes, {name}",
            function,
            t(*sizes),
            dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},),
            calls=calls,
        )
        for name, function, sizes, calls in (
            (
                "written to, at a size where it copies",
                _written_part,
                (6, 35),
                (TRAIN, at(t(8, 33)), at(t(6, 36), refused="must satisfy")),
            ),
            (
                "returned, at a size where it copies",
                _reshaped_part,
                (6, 35),
                (TRAIN, at(t(8, 33)), at(t(6, 36), refused="must satisfy")),
            ),
            ("written to, at a size where it does not", _written_part, (6, 36), (TRAIN,)),
            ("returned, at a size where it does not", _reshaped_part, (6, 36), (TRAIN,)),
            ("computed with", lambda x: _reshaped_part(x) * 2, (6, 36), (TRAIN, at(t(8, 48)), at(t(8, 35)))),
        )
    ],
    *[
        case(
            f"shapes: an argument is returned where a size is {n}, {name}",
            function,
            g(4, 3),
            g(1, 3),
            dynamic_shapes=({0: Dim.AUTO}, None),
            calls=(TRAIN, at(g(7, 3), g(1, 3)), at(g(n, 3), g(1, 3), refused=rf"must satisfy \(\w+\.shape\[0\] != {n}\)")),
        )
        for name, function, n in (
            ("broadcast_tensors", lambda x, y: torch.broadcast_tensors(x, y), 1),
            ("contiguous", lambda x, y: (x.t().contiguous(), y * 2), 1),
            ("diff", lambda x, y: (x.diff(dim=0), y * 2), 0),
        )
    ],
    *[
        case(
            f"shapes: an operator of torch that goes another way for no elements, {front_end}",
            lambda x: torch.linalg.matrix_rank(x, hermitian=True),
            t(4, 4),
            dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},),
            front_ends=(front_end,),
            calls=(
                at(t(3, 3)),
                at(t(1, 1)),
                at(t(0, 0), refused=r"must satisfy \(x\.shape\[0\] != 0\); here x\.shape\[0\] = 0"),
            ),
        )
        for front_end in ("dynamo", "export", "trace")
    ],
    case(
        "shapes: eager takes no size of 0 either",
        lambda x: x.amax(),
        t(4, 3),
        dynamic_shapes=ANY,
        calls=(at(t(1, 3)), at(t(7, 3))),
    ),
    case(
        "shapes: the example has size 1", lambda x: x.sin(), g(1, 3), dynamic_shapes=ANY, calls=(TRAIN, at(g(5, 3)), at(g(0, 3)))
    ),
    module_case(
        "shapes: sizes 0 and 1, attention",
        Attention,
        g(3, 5, 4),
        dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},),
        calls=(at(g(1, 5, 4)), at(g(0, 5, 4), refused=_ZERO_HEADS), at(g(4, 2, 4))),
    ),
    *[
        module_case(
            f"shapes: sizes 0 and 1, a transformer's block, {target}",
            Block,
            ints(3, 7, high=9),
            dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},),
            calls=tuple(at(ints(*sizes, high=9)) for sizes in ((2, 9), (1, 7), (3, 1), (1, 1), (0, 7))),
            targets=(target,),
        )
        for target in ("portable", "cpu")
    ],
    module_case(
        "shapes: size 1, BatchNorm and convolution",
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2)),
        t(4, 1, 6, 6),
        dynamic_shapes=({0: Dim.DYNAMIC},),
        calls=(TRAIN, at(t(1, 1, 6, 6)), at(t(1, 1, 6, 6), grad=False)),
        ignore="version counter",
    ),
    case(
        "shapes: equal sizes of the example vary independently",
        joined,
        g(4, 3),
        g(4, 3),
        dynamic_shapes={"x": {0: Dim.DYNAMIC}, "y": {0: Dim.DYNAMIC}},
        calls=(TRAIN, at(g(6, 3), g(2, 3)), at(g(1, 3), g(0, 3))),
    ),
    case(
        "shapes: equal dimensions of one argument vary independently",
        lambda x: x.sin().sum(1),
        g(4, 4),
        dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},),
        calls=(TRAIN, at(g(6, 3)), at(g(1, 5))),
    ),
    case(
        "shapes: a size as an exponent",
        lambda x: x ** x.shape[0],
        g(4, 3),
        dynamic_shapes=ANY,
        calls=(TRAIN, at(g(5, 3)), at(g(1, 3)), at(g(0, 3))),
    ),
    case(
        "shapes: an integer argument that varies",
        first_rows,
        g(6, 3),
        const(4),
        dynamic_shapes={"x": None, "n": Dim("n", min=0, max=6)},
        calls=(
            TRAIN,
            INFER,
            at(g(6, 3), const(2)),
            at(g(6, 3), const(0)),
            at(g(6, 3), const(6), grad=False),
            at(g(6, 3), const(7), refused=r"n: expected an int .*0\.\.6, got int 7"),  # A14
            at(g(6, 3), const(-1), refused=r"n: expected an int"),
            at(g(6, 3), const(2.0), refused=r"n: expected an int"),
            at(g(6, 3), const(True), refused=r"n: expected an int"),
        ),
    ),
    *(
        case(
            f"shapes: an integer argument that varies, with a batch, {target}",
            scaled_rows,
            g(6, 3),
            const(4),
            const(2),
            dynamic_shapes={"x": {0: BATCH}, "n": Dim.DYNAMIC, "fixed": None},
            targets=(target,),
            calls=(
                TRAIN,
                INFER,
                at(g(9, 3), const(5), const(2)),
                at(g(2, 3), const(1), const(2)),
                at(g(9, 3), const(5), const(3), refused=r"fixed: the graphs were built for 2"),
            ),
        )
        for target in ("portable", "cpu")
    ),
    module_case(
        "shapes: an integer argument that varies, by keyword, as a size",
        Repeats,
        inputs(g(3), count=const(4)),
        dynamic_shapes={"x": None, "count": Dim("count", max=20)},
        calls=(TRAIN, INFER, at(g(3), count=const(7)), at(g(3), count=const(21), refused="count: expected an int")),
    ),
    case(
        "shapes: an integer argument that varies, and is fixed by the model",
        lambda x, n: x * 2 if n == 4 else x,
        g(3),
        const(4),
        dynamic_shapes={"x": None, "n": Dim.DYNAMIC},
    ),
    case(
        "shapes: a float argument that varies", lambda x, n: x * n, g(3), const(4.5), dynamic_shapes={"x": None, "n": Dim.DYNAMIC}
    ),
    case("shapes: integer arguments that are fixed, trace", scaled_rows, g(6, 3), const(4), const(2), front_ends=("trace",)),
    case(
        "shapes: a size as a factor, a divisor and a remainder",
        lambda x: x * x.shape[0] ** 2 / x.shape[0] + x.shape[0] % 3,
        g(4, 3),
        dynamic_shapes=ANY,
        calls=(TRAIN, at(g(2, 3)), at(g(1, 3))),
    ),
    case("shapes: static size 1", lambda x: x.squeeze(0) * 2, g(1, 3)),
    case("shapes: static size 0", lambda x: x * 2, g(0, 3)),
    case(
        "shapes: static, another size is refused",
        lambda x: x * 2,
        g(4, 3),
        calls=(at(g(5, 3), refused="float32"), at(g(4, 3, 1), refused="float32")),
    ),
    module_case(
        "shapes: dynamic batch and sequence",
        Attention,
        g(3, 5, 4),
        dynamic_shapes=BOTH,
        calls=(TRAIN, at(g(4, 9, 4)), at(g(5, 5, 4)), at(g(4, 9, 4), grad=False)),
    ),
    module_case(
        "shapes: dynamic sequence, positional table",
        Positional,
        g(3, 5, 4),
        dynamic_shapes=BOTH,
        calls=(TRAIN, at(g(2, 32, 4)), at(g(2, 33, 4), refused="float32")),
    ),
    module_case(
        "shapes: dynamic batch, module",
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
        t(4, 3),
        dynamic_shapes=({0: BATCH},),
        calls=(TRAIN, at(t(9, 3)), at(t(9, 3), grad=False)),
    ),
    module_case(
        "shapes: dynamic batch, BatchNorm and convolution",
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.MaxPool2d(2)),
        t(4, 1, 6, 6),
        dynamic_shapes=({0: BATCH},),
        calls=(TRAIN, at(t(9, 1, 6, 6)), at(t(9, 1, 6, 6), grad=False)),
        ignore="version counter",
    ),
    case(
        "shapes: sizes as outputs",
        sizes_as_outputs,
        g(4, 3),
        dynamic_shapes=BOTH,
        calls=(TRAIN, at(g(6, 5)), at(g(6, 5), grad=False)),
    ),
    case(
        "shapes: a bound that torch finds in floating point",
        lambda x: (x.var(correction=3.5), x.std(0)),
        g(4, 3),
        dynamic_shapes=ANY,
        calls=(TRAIN, at(g(2, 3)), at(g(1, 3), refused=r"-3.5.*float.* > 0.0")),
    ),
    case(
        "shapes: sizes computed with real numbers",
        real_sizes,
        g(7, 10),
        dynamic_shapes=BOTH,
        calls=(TRAIN, at(g(10, 7)), at(g(20, 30))),
    ),
    case(
        "shapes: a scale factor",
        lambda x: nn.functional.interpolate(x, scale_factor=1.7, mode="bilinear"),
        g(2, 3, 5, 6),
        dynamic_shapes={"x": {2: Dim.AUTO, 3: Dim.AUTO}},
        calls=(TRAIN, at(g(2, 3, 10, 7))),
    ),
    case(
        "shapes: attention over a width that varies",
        lambda x: nn.functional.scaled_dot_product_attention(x, x, x),
        g(2, 4, 8),
        dynamic_shapes={"x": {0: Dim.AUTO, 1: Dim.AUTO, 2: Dim.AUTO}},
        calls=(TRAIN, at(g(3, 5, 8))),
    ),
    *(
        case(
            f"shapes: a slice as the example, {name}",
            lambda x: (x.sin(), x[0], x.reshape(-1) * 2),
            sliced,
            dynamic_shapes={"x": {0: Dim.AUTO, 1: Dim.AUTO}},
            calls=(TRAIN, at(sliced)),
        )
        for name, sliced in SLICES.items()
    ),
    case(
        "shapes: a slice as the example, written to",
        mutated_dynamic,
        lambda gen: torch.randn(8, 6, generator=gen)[::2, ::2],
        dynamic_shapes={"x": {0: Dim.AUTO, 1: Dim.AUTO}},
        calls=(TRAIN, at(t(5, 6))),
    ),
    case(
        "shapes: a branch on a ratio of sizes",
        lambda x: x * 2 if x.shape[0] / 2 <= 2 and x.shape[0] / x.shape[1] > 0.4 else x * 3,
        g(4, 3),
        dynamic_shapes={"x": {0: Dim.AUTO, 1: Dim.AUTO}},
        calls=(TRAIN, at(g(3, 3)), at(g(5, 3), refused=r" / 2\) <= 2"), at(g(2, 5), refused=r"/ x\.shape\[\d\]\) > 0.4|0.4 < ")),
    ),
    case("shapes: sizes as values", sizes_as_values, g(4, 3), dynamic_shapes=BOTH, calls=(TRAIN, at(g(6, 5)))),
    case("shapes: sizes saved for the backward", sizes_saved, g(4, 3), dynamic_shapes=BOTH, calls=(TRAIN, at(g(6, 5)))),
    case("shapes: new tensors of a size", new_of_size, g(4, 3), dynamic_shapes=BOTH, calls=(TRAIN, at(g(6, 5)))),
    case("shapes: aliases of dynamic inputs", alias_dynamic, n(4, 3), dynamic_shapes=BOTH, calls=(TRAIN, at(n(6, 5)))),
    case(
        "shapes: aliases of dynamic intermediates",
        intermediate_alias_dynamic,
        g(4, 3),
        dynamic_shapes=BOTH,
        calls=(TRAIN, at(g(6, 5))),
    ),
    case("shapes: mutated dynamic input", mutated_dynamic, n(4, 3), dynamic_shapes=BOTH, calls=(TRAIN, at(n(6, 5)))),
    case(
        "shapes: equalities",
        equal_sizes,
        g(4, 3),
        g(4, 3),
        dynamic_shapes={"x": {0: BATCH}, "y": {0: BATCH}},
        calls=(TRAIN, at(g(6, 3), g(6, 3)), at(g(6, 3), g(5, 3), refused="float32")),
    ),
    case(
        "shapes: equalities, not broken by broadcasting",
        equal_sizes,
        g(4, 3),
        g(4, 3),
        dynamic_shapes={"x": {0: Dim.DYNAMIC}, "y": {0: Dim.DYNAMIC}},
        calls=(TRAIN, at(g(6, 3), g(6, 3)), at(g(6, 3), g(1, 3), refused="float32")),
    ),
    case(
        "shapes: two free sizes",
        joined,
        g(4, 3),
        g(5, 3),
        dynamic_shapes={"x": {0: Dim("a", min=2)}, "y": {0: Dim("b", min=2)}},
        calls=(TRAIN, at(g(6, 3), g(2, 3)), at(g(3, 3), g(3, 3))),
    ),
    case(
        "shapes: divisibility, 2*Dim",
        halves,
        g(4, 3),
        dynamic_shapes={"x": {0: 2 * Dim("half", min=1, max=16)}},
        calls=(TRAIN, at(g(8, 3)), at(g(7, 3), refused="float32|satisfy|divis|Mod|%")),
    ),
    case(
        "shapes: divisibility, Dim.DYNAMIC",
        halves,
        g(4, 3),
        dynamic_shapes=ANY,
        calls=(TRAIN, at(g(8, 3)), at(g(7, 3), refused="float32|satisfy|divis|Mod|%")),
    ),
    case(
        "shapes: sum of sizes, Dim + 1",
        lambda x, y: x[1:] + y,
        g(5, 3),
        g(4, 3),
        dynamic_shapes={"x": {0: Dim("m", min=2, max=16) + 1}, "y": {0: Dim("m", min=2, max=16)}},
        calls=(TRAIN, at(g(8, 3), g(7, 3)), at(g(8, 3), g(8, 3), refused="float32|satisfy")),
    ),
    case(
        "shapes: a branch on a size",
        branch_on_size,
        g(4, 3),
        dynamic_shapes=ANY,
        calls=(TRAIN, at(g(8, 3)), at(g(9, 3), refused="float32|satisfy")),
    ),
    case(
        "shapes: other strides at call",
        lambda x: x.sin() * 2,
        g(4, 3),
        calls=(Call(1, inputs=inputs(lambda gen: torch.randn(3, 4, generator=gen).t().requires_grad_())),),
        ignore=LAYOUT,
    ),
    case("shapes: other strides at call, dynamic", lambda x: x.view(-1) * 2, n(4, 3), dynamic_shapes=BOTH, calls=(TRAIN,)),
    case(
        "shapes: other strides at call, sliced",
        lambda x: x.sin() * 2,
        g(4, 3),
        calls=(Call(1, inputs=inputs(lambda gen: torch.randn(8, 6, generator=gen)[::2, ::2].requires_grad_())),),
    ),
    case("shapes: non-contiguous at build", lambda x: x.sin(), lambda gen: torch.randn(3, 4, generator=gen).t().requires_grad_()),
    case(
        "shapes: other strides at call, mutated",
        mutated_dynamic,
        t(4, 3),
        calls=(Call(1, inputs=inputs(lambda gen: torch.randn(3, 4, generator=gen).t())),),
        ignore=LAYOUT,
    ),
    case(
        "shapes: other strides at call, returned",
        lambda x: (x, x[0]),
        t(4, 3),
        calls=(Call(1, inputs=inputs(lambda gen: torch.randn(3, 4, generator=gen).t())),),
    ),
    case(
        "shapes: other strides at call, alias that view() cannot take (eager raises)",
        lambda x: x.view(-1),
        t(4, 3),
        calls=(Call(1, inputs=inputs(lambda gen: torch.randn(3, 4, generator=gen).t())),),
    ),
    case(
        "shapes: expanded input at call",
        lambda x: x.sin(),
        t(4, 3),
        calls=(Call(1, inputs=inputs(lambda gen: torch.randn(3, generator=gen).expand(4, 3))),),
    ),
    case(
        "shapes: offset input at call",
        lambda x: (x.sin(), x[1]),
        t(4),
        calls=(Call(1, inputs=inputs(lambda gen: torch.randn(9, generator=gen)[3:7])),),
    ),
    case("shapes: as_strided with an offset, built with an offset input", strided_from_one, at_an_offset(8)),
    case("shapes: as_strided with an offset, its view alone, built with an offset input", one_and_three, at_an_offset(8)),
    case(
        "shapes: as_strided without an offset, built with an offset input",
        two_apart,
        at_an_offset(8),
        calls=(TRAIN, INFER, Call(3, inputs=inputs(t(8)))),
    ),
    *(
        case(
            f"shapes: as_strided with an offset, an offset input at call, {target}",
            strided_from_one,
            g(8),
            targets=(target,),
            calls=(TRAIN, INFER, Call(3, inputs=inputs(at_an_offset(8)), refused=r"\bx: has the storage offset 5")),  # A13
        )
        for target in ("portable", "cpu")
    ),
    case(
        "shapes: as_strided without an offset, offset inputs, cpu",
        two_apart,
        t(8),
        targets=("cpu",),
        calls=(TRAIN, Call(3, inputs=inputs(at_an_offset(8)))),
    ),
    module_case("shapes: as_strided with an offset, of a buffer inside its storage", OffsetBuffer, g(3)),
    case(
        "shapes: offset input at call, as_strided alias",
        lambda x: x.as_strided((2,), (2,)),
        t(4),
        calls=(Call(1, inputs=inputs(lambda gen: torch.randn(9, generator=gen)[3:7])),),
    ),
]
