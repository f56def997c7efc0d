"""``as_strided`` of results: each kernel chooses the strides of what it returns.

For each of these, torch's fake kernels and decompositions (2.13) report other strides than the
real kernel. ``torch.compile`` reads other elements than eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.export import Dim

from aotpack.capture.front_ends import FRONT_ENDS
from devtools.harness import Call, Case, Spec, case, g, module_case, t


def read_strided(*results: Tensor) -> list[Tensor]:
    return [result.as_strided((5,), (2,)) * 2 for result in results]


def of_images(x: Tensor) -> Any:
    pooled, where = F.max_pool2d(x, 2, return_indices=True)
    return read_strided(
        F.pad(x, (1, 1, 2, 2, 1, 1), mode="reflect"),
        F.pad(x, (1, 1, 2, 2, 0, 1), mode="replicate"),
        F.channel_shuffle(x, 2),
        F.max_unpool2d(pooled, where, 2),
        F.pad(x.sin(), (1, 1, 2, 2), mode="replicate"),
    )


def of_volumes(x: Tensor) -> Any:
    return read_strided(
        F.pad(x, (1,) * 6, mode="reflect"), F.max_pool3d(x.movedim(1, -1)[0], 2), F.interpolate(x, scale_factor=2)
    )


def of_transposed(x: Tensor) -> Any:
    turned, signs = x.transpose(0, 2), x > 0
    share, turned_share = x.sigmoid(), x.sigmoid().transpose(0, 2)
    return read_strided(
        F.batch_norm(turned, None, None, training=True),
        F.logsigmoid(turned),
        2**turned,
        F.interpolate(turned, scale_factor=2),
        F.binary_cross_entropy(turned_share, share.detach(), reduction="none"),
        torch.xlogy(share, turned_share),
        torch.logaddexp(x, turned),
        torch.ldexp(x, turned),
        torch.copysign(turned, x.sum()),
        torch.stack([turned]),
        torch.cat([turned]),
        torch.put(turned, torch.tensor([1, 3]), x[0, 0, :2]),
        torch.heaviside(x.detach(), turned.detach()) * x,
        signs.transpose(0, 2).logical_and(signs) * x,
        F.one_hot(signs.long().transpose(0, 2), 2) * x.unsqueeze(-1),
        torch.view_copy(turned, (4, 4, 4)).logit(1e-3),
    )


def of_losses(x: Tensor, y: Tensor) -> Any:
    """Gradients that the model itself takes."""
    losses = (F.mse_loss, F.smooth_l1_loss, F.huber_loss)
    found = [torch.autograd.grad(loss(x.t(), y.t(), reduction="none").sum(), x, create_graph=True)[0] for loss in losses]
    found += torch.autograd.grad(F.glu(x.t()).sum(), x, create_graph=True)
    found += torch.autograd.grad((F.log_softmax(x.t(), 0) * y.t()).sum(), x, create_graph=True)
    return read_strided(*found)


def of_weights_alone(x: Tensor, weight: Tensor) -> Any:
    """Kernels that return no gradient of what they normalise."""
    normal = F.layer_norm(x.t(), (4,), weight), F.batch_norm(x, None, None, weight, training=True)
    return read_strided(*normal)


def written_in_place(x: Tensor, y: Tensor) -> Any:
    """The operators that return lay their results out otherwise than those that write."""
    rows, first = torch.tensor([0, 2]), y[:2, :4]
    added, summed, lower = x.t() * 1, x.sin().t().clone(), x.t() * 1
    added.index_add_(0, rows, first)
    summed.cumsum_(0)
    lower.tril_()
    chosen, base = x.t() * 1, x * 1
    chosen.masked_scatter_(chosen > 0, y)
    base.t().scatter_(0, rows[:1].expand(1, 4), 1.5)
    return added, summed, lower, chosen, base, base.t(), added.as_strided((5,), (2,)) * 2, chosen * 2


def of_slices(x: Tensor) -> Any:
    """``unique`` lays out what it finds slice by slice; all differ."""
    found = [function(x, dim=dim) for function in (torch.unique, torch.unique_consecutive) for dim in range(3)]
    return *found, *(value.as_strided((10,), (2,)) * 2 for value in found)


def of_draws(x: Tensor) -> Any:
    """Operators that draw random numbers, and lay them out row by row."""
    rates = x.detach().abs()
    return read_strided(
        F.rrelu(x, training=True), F.rrelu(x, training=False), torch.poisson(rates), torch.normal(0.0, rates + 0.1)
    )


def few_elements(x: Tensor) -> Any:
    """Views of a result that torch_xla's ``as_strided`` does not read right."""
    y = x * 2
    first = y.as_strided((4,), (1,))
    return y, first, first[1:], first.view(2, 2), y.as_strided((2, 4), (1, 2), 3), y.as_strided((3,), (5,))


def elements_with_gaps(x: Tensor) -> Any:
    y = x * 2
    return y, y.as_strided((2, 2), (4, 1))


def turned_elements(x: Tensor) -> Any:
    y = x * 2
    return y, y.t().as_strided((4,), (1,))


def argument_written_in_place(x: Tensor, y: Tensor) -> Tensor:
    x.t().index_copy_(0, torch.tensor([0, 2]), y[:2, :4])
    return x * 2


def view_of_a_view_written(x: Tensor) -> Any:
    y = x * 1
    view = y[1:].as_strided((2, 2), (2, 1), 2)
    view.mul_(2)
    view[1].add_(x[0])
    return y, view, view.t(), y.sin()


def view_beyond_a_view_written(x: Tensor) -> Tensor:
    y = x * 1
    y[:2].as_strided((2,), (2,)).mul_(2)
    return y


def view_beyond_a_view_read(x: Tensor) -> Tensor:
    """Eager's gradient lacks what belongs to the element outside of the view."""
    return (x * 1)[:2].as_strided((2,), (2,)) * 3


def argument_written_through_a_view_of_a_view(x: Tensor, y: Tensor) -> Any:
    x.view(2, 4)[1].as_strided((2,), (2,)).mul_(y)
    return x * y[0], x[2:].as_strided((2,), (1,), 1)


def slice_written_before_and_after(x: Tensor) -> Any:
    y = (x * 1)[::2]
    y.add_(1)
    view = y.as_strided((3,), (2,))
    y.mul_(x[::2])
    return view * 2, y


def in_a_loop_of_views(x: Tensor) -> Tensor:
    y = x * 1
    for i in range(2):
        row = y.view(2, 4)[i]
        row.as_strided((2,), (3,)).sub_(row[:2].clone())
    return y


def one_of_several_views_written(x: Tensor) -> Tensor:
    y = x * 1
    y.view(2, 4).unbind()[1].as_strided((2,), (3,)).mul_(2)
    return y


class WritesItsBuffer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.arange(8.0))

    def forward(self, x: Tensor) -> Tensor:
        self.kept[2:].as_strided((3,), (2,)).add_(x.detach().sum())
        return self.kept * x


def layout(*order: int, sizes: tuple[int, ...]) -> Spec:
    """A trained tensor with its dimensions in memory in this order."""

    def made(generator: torch.Generator) -> Tensor:
        values = torch.randn([sizes[dim] for dim in order], generator=generator, dtype=torch.float64)
        return values.permute([order.index(dim) for dim in range(len(order))]).requires_grad_()

    return made


SUBJECTS: tuple[tuple[str, Callable[..., Any], tuple[Spec, ...]], ...] = (
    ("images", of_images, (layout(0, 2, 3, 1, sizes=(2, 4, 6, 6)),)),
    ("volumes", of_volumes, (layout(0, 2, 3, 4, 1, sizes=(1, 3, 4, 4, 4)),)),
    ("transposed tensors", of_transposed, (g(4, 4, 4, dtype=torch.float64),)),
    ("gradients of weights alone", of_weights_alone, (t(4, 4, dtype=torch.float64), g(4, dtype=torch.float64))),
    ("tensors written in place", written_in_place, (g(4, 6, dtype=torch.float64), t(6, 4, dtype=torch.float64))),
    ("arguments written in place", argument_written_in_place, (t(4, 6), t(6, 4))),
    ("slices", of_slices, (t(3, 4, 5),)),
    ("gradients of losses (eager raises without)", of_losses, (g(4, 6, dtype=torch.float64), t(4, 6, dtype=torch.float64))),
)


def filled_diagonals(x: Tensor, buffer: Tensor) -> tuple[Tensor, ...]:
    """torch fills a diagonal by ``as_strided``, also that of a view."""
    products = x @ x.mT
    buffer[1].fill_diagonal_(3.0)
    cube = torch.stack([products, products * 2, products * 3]).mT.fill_diagonal_(0.5)
    tall = torch.cat([products, products]).view(6, 3)
    return (
        torch.cov(x).fill_diagonal_(0) * x,
        products[None].squeeze(0).fill_diagonal_(-float("inf")).softmax(-1),
        cube * 2,
        tall.fill_diagonal_(1.5),
        torch.zeros(6, 3).fill_diagonal_(2, wrap=True) * x[0],
        buffer * x,
    )


CASES: list[Case] = [
    case(f"as_strided: {name}, {target}", function, *specs, methods=("train",), targets=(target,))
    for name, function, specs in SUBJECTS
    for target in ("portable", "cpu")
]
CASES += [
    *(
        case(f"as_strided: diagonals of views are filled, {target}", filled_diagonals, g(3, 3), t(2, 3, 3), targets=(target,))
        for target in ("portable", "cpu")
    ),
    *(
        case(
            f"as_strided: draws, {target}",
            of_draws,
            layout(2, 1, 0, sizes=(2, 4, 6)),
            methods=("train",),
            targets=(target,),
            rng="eager",
        )
        for target in ("portable", "cpu")
    ),
    case(
        "as_strided: images of any number",
        of_images,
        layout(0, 2, 3, 1, sizes=(2, 4, 6, 6)),
        methods=("train",),
        dynamic_shapes={"x": {0: Dim("number", min=2, max=64)}},
    ),
    case("as_strided: a few elements of a result", few_elements, g(4, 4)),
    case("as_strided: elements with gaps", elements_with_gaps, g(4, 4)),
    case("as_strided: elements of a turned result", turned_elements, g(4, 4)),
    *(
        case(f"as_strided: a view of a view is written, {end}", view_of_a_view_written, g(8), front_ends=(end,))
        for end in FRONT_ENDS
    ),
    case("as_strided: a view of a view is written, cpu", view_of_a_view_written, g(8), methods=("train",), targets=("cpu",)),
    case("as_strided: a view beyond a view is written", view_beyond_a_view_written, t(8)),
    case("as_strided: a view beyond a view is written, with a gradient", view_beyond_a_view_written, g(8)),
    case("as_strided: a view beyond a view is read, with a gradient", view_beyond_a_view_read, g(8)),
    case("as_strided: an argument is written through a view of a view", argument_written_through_a_view_of_a_view, t(8), t(2)),
    case("as_strided: a slice of a result is written before and after", slice_written_before_and_after, g(8)),
    case("as_strided: views of rows are written in a loop", in_a_loop_of_views, g(8)),
    case("as_strided: one of several views is written (eager raises)", one_of_several_views_written, g(8)),
    module_case("as_strided: a buffer is written through a view of a view", WritesItsBuffer, g(8), calls=(Call(1), Call(2))),
]
