"""Views by ``as_strided`` whose elements overlap, where sizes vary: torch's own backward of them fixes the sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import Dim
from torch.utils.checkpoint import checkpoint

from devtools.harness import TRAIN, Case, case, g, ints, laid_out, t

from .random import filled
from .shapes import BATCH, at

LENGTH = Dim("length", min=6, max=64)


def windows(x: Tensor) -> Tensor:
    """Six windows of three elements in each row of eight."""
    return x.as_strided((x.shape[0], 6, 3), (8, 1, 1))


def of_an_intermediate(x: Tensor) -> Tensor:
    return windows(x.cos()).sin()


def attention_chunks(x: Tensor) -> Tensor:
    """As Longformer makes them: each the second half of the one before, of heads whose strides vary with the batch."""
    batch, length, _ = x.shape
    heads = x.tanh().transpose(0, 1).contiguous().view(length, batch, 2, 3).permute(1, 2, 0, 3)
    chunks = heads.reshape(batch * 2, length // 4, 4, 3)
    size, stride = list(chunks.shape), list(chunks.stride())
    return chunks.as_strided([size[0], 2 * size[1] - 1, *size[2:]], [stride[0], stride[1] // 2, *stride[2:]])


def strides_that_vary(x: Tensor) -> Tensor:
    """The batch is the second dimension of the memory, so that it is in the strides of the dimensions that overlap."""
    y = x.sin().transpose(0, 1).contiguous().transpose(0, 1)
    return torch.as_strided(input=y, size=(y.shape[0], 3, 4), stride=(1, 2 * y.stride(1), y.stride(1)))


def several(x: Tensor) -> Any:
    """An offset, other orders of dimensions, windows of windows, repeated elements, sizes of 1."""
    y = x.sin()
    rows = y.shape[0]
    return (
        torch.ops.aten.as_strided.default(y, (rows, 2, 2, 3), (8, 2, 1, 1), 2).cos(),
        y.as_strided((2, 2, rows, 2), (2, 1, 8, 2)),
        y.as_strided((3, rows, 4), (1, 8, 1)).exp(),
        y.as_strided((rows, 1, 4, 2, 3), (8, 5, 1, 0, 2)) * 2,
    )


def uneven_steps(x: Tensor) -> Tensor:
    """Steps of three and two: no windows of one another, so torch's backward fixes the sizes."""
    return x.sin().as_strided((x.shape[0], 2, 3), (8, 3, 2)).cos()


def view_and_base(x: Tensor) -> Any:
    y = x * 2
    return windows(y), y


def written_base(x: Tensor) -> Any:
    """What is written to the base shows in every window."""
    y = x * 2
    found = windows(y)
    y[:, 1].mul_(3)
    return found.sin(), y


def written_windows(x: Tensor) -> Tensor:
    y = x * 2
    windows(y)[:, 0].mul_(3)
    return y


def checkpointed(x: Tensor) -> Any:
    return checkpoint(lambda a: windows(a * 2).sin(), x, use_reentrant=False)


def sliding(x: Tensor) -> Tensor:
    """As many windows as there are elements."""
    y = x.sin()
    return y.as_strided((y.shape[0], y.shape[1] - 2, 3), (y.stride(0), 1, 1)).cos()


def windows_that_grow(x: Tensor) -> Tensor:
    """How much a window has varies, which no plain integer says: torch's backward fixes it."""
    y = x.sin()
    return y.as_strided((y.shape[0], 3, y.shape[1] - 4), (y.stride(0), 2, 1)).cos()


def expanded_filled(x: Tensor) -> Tensor:
    wide = x.clone().expand(3, 4)
    filled(wide, 2.0)
    return wide * 2


def expanded_overload(x: Tensor) -> Tensor:
    wide = x.clone().expand(3, 4)
    torch.ops.aten.add_.Scalar(wide, 2)
    return wide * 2


def expanded_written(x: Tensor) -> Tensor:
    y = x * 2
    y.expand(3, 4).zero_()
    return y


def expanded_argument_written(x: Tensor) -> Tensor:
    x.expand(3, 4).mul_(3)
    return x + 1


def strided_written(x: Tensor) -> Tensor:
    y = x * 2
    y.as_strided((2, 2), (1, 1)).mul_(3)
    return y


def expanded_turned(x: Tensor) -> Tensor:
    return (x * 2).expand(3, 4).unsqueeze_(0).transpose_(1, 2) + 1


def windows_returned(x: Tensor) -> Any:
    """Gradients of windows are apart, though the windows share memory."""
    return x.sin().unfold(0, 2, 1), (x * 2).unfold(0, 3, 2)


def windows_written_over(x: Tensor, y: Tensor) -> Tensor:
    return x.unfold(0, 2, 1).select_scatter(y, 0, 1)


def passed_on(x: Tensor) -> Tensor:
    return x.slice_scatter(x[:1], 0, 1, 2)


def every_other(generator: torch.Generator) -> Tensor:
    return torch.randn(10, generator=generator)[::2]


def elements_after_write(x: Tensor) -> Tensor:
    x.add_(1)
    return x.as_strided((3,), (2,)) * 2


def copied_elements_after_write(x: Tensor) -> Tensor:
    x.add_(1)
    return torch.as_strided_copy(x, (3,), (2,))


def elements_before_write(x: Tensor) -> Tensor:
    view = x.as_strided((3,), (2,))
    x.add_(1)
    return view * 2


def last_column_added(x: Tensor) -> Tensor:
    x[:, 1:3].add_(x[:, :2])
    return x * 1


def last_column_assigned(x: Tensor) -> Tensor:
    x[:, 1:] = x[:, :-1]
    return x * 1


def transpose_added(x: Tensor) -> Tensor:
    x.add_(1)
    return x.add_(x.t()) * 1


def first_row_added(x: Tensor) -> Tensor:
    return x.index_put_((torch.tensor([0, 0]),), x[0], accumulate=True) * 1


def rows_assigned(x: Tensor) -> Tensor:
    x[torch.tensor([2, 0])] = x[:2]
    return x * 1


def result_over_operand(x: Tensor) -> Tensor:
    torch.mul(x[:2], x[1:3], out=x[1:3])
    return x * 1


def lists_crossed(x: Tensor) -> Tensor:
    torch._foreach_add_([x[0], x[1]], [x[1], x[0]])
    return x * 1


def one_listed_twice(x: Tensor) -> Tensor:
    y = x.clone()
    torch._foreach_mul_([y, y], 2.0)
    return y


MET_AGAIN = (last_column_added, last_column_assigned, transpose_added, first_row_added, rows_assigned)
MET_AGAIN += (result_over_operand, lists_crossed, one_listed_twice)


def read_elsewhere(x: Tensor, index: Tensor) -> Any:
    """Each write reads the same tensor: at other indices, at the same index, further on, or by a copy."""
    x[:, :-1] = x[:, 1:]
    x[:, :2].add_(x[:, 1:3])
    x[:2] = x[2:]
    x[:, ::2].add_(x[:, 1::2])
    x[0].copy_(x[1])
    x.diagonal().add_(x.diagonal())
    x.mul_(x.view(4, 4))
    x[1:] = x[1:].view(3, 4)
    x[index] = x[index] + 1
    x.index_add_(0, index, x[index])
    x[x > 0] = x[x > 0] * 2
    torch._foreach_add_([x[0], x[1]], [x[2], x[3]])
    torch._foreach_mul_([x[0], x[1]], [x[0], x[1]])
    y = x.clone()
    return y.copy_(x.t()), x * 1


ROWS = {"x": {0: BATCH}}
CALLS = (TRAIN, at(g(7, 8)), at(g(2, 8)), at(g(64, 8)), at(g(5, 8), grad=False))

CASES: list[Case] = [
    *[
        case(
            f"overlaps: windows, {name}",
            of_an_intermediate,
            g(4, 8),
            dynamic_shapes=ROWS,
            calls=CALLS,
            front_ends=(name,),
        )
        for name in ("dynamo", "export", "trace")
    ],
    *[
        case(f"overlaps: {name}", function, g(4, 8), dynamic_shapes=ROWS, calls=CALLS)
        for name, function in {
            "of an argument": windows,
            "strides that vary": strides_that_vary,
            "several": several,
            "view and base are results": view_and_base,
            "the base is written to": written_base,
            "in a checkpoint": checkpointed,
            "written to": written_windows,
            "uneven steps": uneven_steps,
        }.items()
    ],
    *[
        case(
            f"overlaps: chunks of attention, {target}",
            attention_chunks,
            g(4, 8, 6),
            dynamic_shapes=ROWS,
            calls=(TRAIN, at(g(7, 8, 6)), at(g(2, 8, 6)), at(g(5, 8, 6), grad=False)),
            targets=(target,),
        )
        for target in ("portable", "cpu")
    ],
    case(
        "overlaps: both sizes vary",
        sliding,
        g(4, 8),
        dynamic_shapes={"x": {0: BATCH, 1: LENGTH}},
        calls=(TRAIN, at(g(7, 6)), at(g(2, 64)), at(g(3, 9), grad=False)),
    ),
    *[
        case(f"overlaps: gradients of windows, {target}", windows_returned, g(6), targets=(target,))
        for target in ("portable", "cpu")
    ],
    case("overlaps: as_strided of a slice that was written to", elements_after_write, every_other),
    case("overlaps: as_strided of a slice that is written to later", elements_before_write, every_other),
    case("overlaps: as_strided_copy of a slice that was written to", copied_elements_after_write, every_other),
    case("overlaps: windows are copied with their strides, and written to", windows_written_over, g(6), g(2)),
    case("overlaps: gradients of an argument at uneven steps", passed_on, laid_out(g(5, 7), (15, 3))),
    case("overlaps: windows that grow", windows_that_grow, g(4, 8), dynamic_shapes={"x": {1: LENGTH}}),
    case("overlaps: an expanded tensor is written to by a custom operator", expanded_filled, t(4), front_ends=("trace",)),
    case("overlaps: an expanded tensor is written to by an operator's overload", expanded_overload, t(4), front_ends=("trace",)),
    *[
        case(f"overlaps: an expanded tensor is written to, {name}", expanded_written, t(4), front_ends=(name,))
        for name in ("dynamo", "export", "trace")
    ],
    case("overlaps: an expanded argument is written to (eager raises)", expanded_argument_written, t(4)),
    case("overlaps: an overlapping as_strided is written to", strided_written, t(4)),
    case("overlaps: sizes of an expanded tensor change in place", expanded_turned, t(4)),
    # Eager raises where there are no gaps, and does not look where there are.
    *[case(f"overlaps: {one.__name__.replace('_', ' ')}", one, laid_out(t(4, 4), (16, 2))) for one in MET_AGAIN],
    *[
        case(f"overlaps: read elsewhere than written, {name}", read_elsewhere, x, ints(2, high=4), targets=("portable", "cpu"))
        for name, x in {"with gaps": laid_out(t(4, 4), (16, 2)), "without": t(4, 4)}.items()
    ],
]
