"""Arguments laid out otherwise than at build: eager copies what it would take a view of, which shows in writes and in results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim

from devtools.harness import INFER, TRAIN, Call, Case, case, g, inputs, laid_out, n, t

from .autograd import ByLayout
from .shapes import LAYOUT

Made = Callable[[torch.Generator], Any]

LAYOUTS: dict[str, Made] = {
    "transposed": lambda gen: torch.randn(3, 4, generator=gen).t(),
    "every other row": lambda gen: torch.randn(8, 3, generator=gen)[::2],
    "every other column": lambda gen: torch.randn(4, 6, generator=gen)[:, ::2],
    "contiguous": t(4, 3),
}
TRANSPOSED = inputs(LAYOUTS["transposed"])
ANY_SIZE = {"x": {0: Dim.AUTO, 1: Dim.AUTO}}
OTHER_STRIDES = r"\bx: has the strides \[1, 4\], expected \[3, 1\]: the model does something else"  # A15


def calls(**options: Any) -> tuple[Call, ...]:
    return tuple(Call(3 + i, inputs=inputs(made), **options) for i, made in enumerate(LAYOUTS.values()))


def requiring_grad(made: Made) -> Made:
    return lambda gen: made(gen).requires_grad_()


def returned(x: Tensor) -> Any:
    return x.ravel()


def returned_beside_views(x: Tensor) -> Any:
    """What is always a view, and what is a copy where the elements are not in order."""
    return x.contiguous(), x.reshape(-1), x[0], x.flatten()[1:]


def written_where_contiguous(x: Tensor) -> Tensor:
    y = x.reshape(-1)
    y.mul_(2)
    return x + 1


def read_after_a_write(x: Tensor) -> Tensor:
    """The argument is written to in either layout; what is read then is the old value in one of them."""
    y = x.contiguous()
    x.add_(1)
    return y * 2


def written(x: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1


def windows_written(x: Tensor, y: Tensor) -> Any:
    """Windows of a transposed tensor, which functionalization turns into a tensor that lies row by row."""
    x.unfold(-1, 2, 2).mul_(2)
    return x.clamp(y, None), x * 2


def copied_and_written(x: Tensor, y: Tensor) -> Any:
    """What is copied of a tensor with gaps is not what is written to it, with gradients, afterwards."""
    rows = x.flatten()
    x.squeeze().copy_(torch.where(x.squeeze() > 0.1, x.squeeze(), y.mean()))
    return rows.unsqueeze(-1), rows * 2, x.flatten()


def read_and_written(x: Tensor, y: Tensor) -> Any:
    """The gradient of ``y`` needs what ``x`` was before it was written to: a copy, without the gaps."""
    difference = x - y
    x.mul_(2)
    return difference.erf().sign()


def _refused(name: str, function: Callable[[Tensor], Any], **options: Any) -> Case:
    wrong = Call(3, inputs=inputs(LAYOUTS["transposed"]), refused=OTHER_STRIDES)
    return case(name, function, t(4, 3), calls=(TRAIN, INFER, wrong, Call(4)), **options)


def pooled(x: Tensor) -> Any:
    """Channels last, whatever the sizes are; ``reshape`` takes a view of that in another order."""
    images = x.reshape(1, 2, -1, 36).to(memory_format=torch.channels_last)
    found = F.max_pool2d(images, 3, 2, 1)
    return found, F.group_norm(found.reshape(2, 2, -1), 2), F.avg_pool2d(images, 3, 2, 1), F.interpolate(images, scale_factor=2.0)


def convolved(x: Tensor) -> Any:
    """What is compiled for any size, with gradients, where Inductor would compile it for the example's."""
    y = F.glu(F.conv2d(x, torch.ones(4, 3, 3, 3, dtype=x.dtype), stride=2), 1)
    return F.adaptive_avg_pool2d(y, (2, 2)), F.adaptive_avg_pool1d(y.flatten(2), 3), F.glu(x, -1), y


def windows_cast(x: Tensor) -> Any:
    """Elements that are in two windows, copied: the smaller dimension comes last."""
    windows = x.half().unfold(1, 2, 1).to(x.dtype)
    return windows, windows.reshape(-1, 2)


def layouts_of_gradients(x: Tensor) -> Any:
    """A custom backward asks for the layout of the gradients of channels-last images."""
    interpolated = [partial(F.interpolate, scale_factor=1.7, mode=mode) for mode in ("nearest", "nearest-exact", "bilinear")]
    aligned = partial(F.interpolate, size=(3, 9), mode="bilinear", align_corners=True)
    others = lambda y: y.roll(1, 3), lambda y: y.prod(1), F.hardsigmoid, F.elu, lambda y: y.index_fill(1, torch.tensor([0]), 2.0)
    return [way(ByLayout.apply(x * 1)).square().sum() for way in (*interpolated, aligned, *others)]


def rolled(x: Tensor) -> Any:
    """Kernels concatenate, so channels-last images stay such; views of the results differ for contiguous ones."""
    parts = x.roll(1, 3), x.roll((1, -1), (1, 2)), torch.fft.fftshift(x), x[:, ::2].index_fill(1, torch.tensor([0]), 2.0)
    return [part.permute(0, 2, 3, 1).view(-1, part.shape[1]) for part in parts], x.roll(1).view(-1), x.roll(4, 3).view(-1)


COUNTING: dict[str, Callable[[Tensor], Any]] = {
    "as_strided": lambda x: x.as_strided((2, 3), (2, 3)) * 2,
    "as_strided of a view": lambda x: x.t().as_strided((2, 3), (2, 3)) * 2,
    "as_strided_copy": lambda x: torch.as_strided_copy(x, (2, 3), (2, 3)),
    "as_strided_scatter": lambda x: x.as_strided_scatter(x.sum().expand(2), (2,), (2,), 4),
    "as_strided of what is computed": lambda x: (x * 2).as_strided((2, 3), (2, 3)),
    "resize_ of a copy": lambda x: x.clone().resize_(2, 3),
}
"""Functions that use offsets in memory. A call with other strides has other offsets."""


CASES: list[Case] = [
    *(
        case(
            f"layouts: offsets in memory, {name}",
            function,
            t(4, 3),
            calls=(INFER, Call(2, inputs=TRANSPOSED, refused=OTHER_STRIDES)),
        )
        for name, function in COUNTING.items()
    ),
    case(
        "layouts: offsets in memory, of a view that is returned",
        lambda x: x.as_strided((2, 3), (2, 3)),
        t(4, 3),
        calls=(INFER, Call(2, inputs=TRANSPOSED)),
    ),
    case(
        "layouts: offsets in memory, of a slice of any size",
        COUNTING["as_strided"],
        LAYOUTS["every other row"],
        dynamic_shapes=ANY_SIZE,
    ),
    *(
        case(
            f"layouts: {function.__name__}, dynamic, {target}",
            function,
            t(6, 36),
            dynamic_shapes=ANY_SIZE,
            calls=(INFER, Call(2, training=False, grad=False, inputs=inputs(t(8, 36)))),
            targets=(target,),
        )
        for target in ("portable", "cpu")
        for function in (pooled, windows_cast)
    ),
    *(
        case(
            f"layouts: images of any size, {target}",
            convolved,
            g(2, 3, 16, 16, dtype=torch.float64),
            dynamic_shapes={"x": {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}},
            calls=(TRAIN, *(Call(2, inputs=inputs(g(batch, 3, 20, 24, dtype=torch.float64))) for batch in (1, 3, 17))),
            targets=(target,),
        )
        for target in ("portable", "cpu")
    ),
    *(
        case(f"layouts: {name}, {target}", function, laid_out(g(2, 3, 4, 4), (48, 1, 12, 3)), targets=(target,))
        for target in ("portable", "cpu")
        for name, function in (("read by a backward", layouts_of_gradients), ("rolled images", rolled))
    ),
    case("layouts: ravel, returned", returned, g(4, 3), calls=(TRAIN, *calls())),
    case(
        "layouts: ravel, returned, requires grad",
        returned,
        g(4, 3),
        calls=tuple(Call(3 + i, inputs=inputs(requiring_grad(made))) for i, made in enumerate(LAYOUTS.values())),
    ),
    case("layouts: ravel, returned, cpu", returned, t(4, 3), calls=(TRAIN, *calls()), targets=("cpu",)),
    case("layouts: copies and views, returned", returned_beside_views, t(4, 3), calls=(TRAIN, *calls())),
    case("layouts: contiguous, returned", lambda x: x.contiguous(), t(4, 3), calls=(TRAIN, *calls())),
    *(
        case(f"layouts: {function.__name__}, dynamic, {name}", function, made, dynamic_shapes=ANY_SIZE, calls=(TRAIN, *calls()))
        for function in (returned, returned_beside_views)
        for name, made in LAYOUTS.items()
        if name != "transposed"  # what was a copy at build stays one where eager takes a view (LayoutWarning)
    ),
    case("layouts: written in any", written, t(4, 3), calls=(TRAIN, *calls()), ignore=LAYOUT),
    _refused("layouts: written where contiguous", written_where_contiguous),
    _refused("layouts: written where contiguous, cpu", written_where_contiguous, targets=("cpu",)),
    _refused("layouts: read after a write", read_after_a_write),
    case(
        "layouts: written where contiguous, built where it is not",
        written_where_contiguous,
        LAYOUTS["transposed"],
        calls=(TRAIN, Call(3, inputs=inputs(t(4, 3)), refused=r"\bx: has the strides \[3, 1\], expected \[1, 4\]")),
    ),
    *(
        case(
            f"layouts: a slice that nothing reads, {target}",
            lambda x, y: y * 2,
            lambda gen: torch.randn(8, 128, generator=gen)[:4, ::2],
            g(3),
            calls=(TRAIN, Call(2, inputs=inputs(t(4, 64), g(3)))),
            targets=(target,),
        )
        for target in ("portable", "cpu")
    ),
    case(
        "layouts: a slice as the example, written where contiguous",
        written_where_contiguous,
        lambda gen: torch.randn(8, 3, generator=gen)[::2],
        dynamic_shapes=ANY_SIZE,
    ),
    *(
        case(f"layouts: windows written, {name}", windows_written, laid_out(make(4, 6), stride), t(4, 6))
        for name, make, stride in (("transposed", t, (1, 4)), ("with gaps", t, (2, 10)), ("non-leaf", n, (1, 4)))
    ),
    *(
        case(f"layouts: with gaps, {name}, {target}", function, laid_out(make(4, 6), (24, 2)), g(4, 6), targets=(target,))
        for target in ("portable", "cpu")
        for name, function, make in (
            ("read and written", read_and_written, t),
            ("copied and written", copied_and_written, t),
            ("copied and written, non-leaf", copied_and_written, n),
        )
    ),
]
