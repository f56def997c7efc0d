"""Input mutation: data, metadata, both, hidden from autograd, storage; buffers and their views."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from devtools.harness import TRAIN, Call, Case, case, g, inputs, ints, module_case, n, t


def data(x: Tensor) -> Tensor:
    x.mul_(2)
    return x + 1


def data_of_one(x: Tensor, w: Tensor) -> Tensor:
    x.add_(1)
    return x * w


def returns_mutated(x: Tensor) -> Tensor:
    return x.mul_(2)


def returns_mutated_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.mul_(2)
    return y, x.add_(1)


def nothing_to_do(x: Tensor, y: Tensor) -> Tensor:
    x.t_()
    nn.functional.dropout(y, 0.5, training=False, inplace=True)
    return x * y


def reshaped_views(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    x.view(-1).unsqueeze_(0)
    y[:2].t_()
    z.detach().t_()
    return x * y + z * z  # saves all three after their counters have moved


def reshaped_alias(x: Tensor) -> tuple[Tensor, ...]:
    y = x.detach()
    y.t_()
    z = x[0].detach()
    z.unsqueeze_(0)
    return y[0], y, z, z.t(), x[0]


def metadata(x: Tensor) -> Tensor:
    x.t_()
    return x + 1


def metadata_unsqueeze(x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    return x * 2


def metadata_transpose(x: Tensor) -> Tensor:
    x.transpose_(0, 1)
    return x.sum(0)


def metadata_as_strided(x: Tensor) -> Tensor:
    x.as_strided_((3,), (1,), 1)
    return x * 2


def both(x: Tensor) -> Tensor:
    x.t_()
    x.mul_(2)
    return x + 1


def both_data_first(x: Tensor) -> Tensor:
    x.mul_(3)
    x.t_()
    return x * x


def beyond_itself(x: Tensor) -> Tensor:
    return x.as_strided_((2, 2), (1, 2), 8)


def strided_and_data(x: Tensor) -> Tensor:
    x.as_strided_((3,), (1,), 2)
    x.mul_(2)
    return x + 1


def squeezed_slice_and_data(x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    x[:, 1:].add_(1)
    x.transpose_(0, 1)
    return x * 2


def viewed_after(x: Tensor) -> tuple[Tensor, ...]:
    x.t_()
    return x[0], x * 2


def viewed_after_unsqueeze(x: Tensor) -> tuple[Tensor, ...]:
    x.unsqueeze_(0)
    return x.unsqueeze(0), x * 2, x.transpose(1, 2)


def viewed_after_transpose(x: Tensor) -> tuple[Tensor, ...]:
    x.transpose_(0, 1)
    row = x.unbind(0)[1]
    return row * 3, row, x.sum(), x.detach()[0]


def viewed_after_squeeze(x: Tensor) -> tuple[Tensor, ...]:
    x.squeeze_(0)
    return x.view(2, 2), x * 2


def viewed_before(x: Tensor) -> tuple[Tensor, ...]:
    row = x[0]
    x.t_()
    return row, x[0], x * 2


def detached_before(x: Tensor) -> tuple[Tensor, ...]:
    apart = x.detach()
    x.t_()
    return apart.view(-1), apart, x.t().view(-1), x * 2


def viewed_before_strided(x: Tensor) -> tuple[Tensor, ...]:
    row = x[1]
    x.as_strided_((2, 2), (1, 2), 1)
    return row, x.sum()


def written_through_an_old_view(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    row = y[0]
    y.t_()
    row.mul_(3)
    return row, y


def written_through_a_new_view(x: Tensor) -> tuple[Tensor, ...]:
    y = x + 1
    y.t_()
    column = y[0]
    column.mul_(3)
    return column, y


def at_an_offset(*shape: int) -> Any:
    """A tensor that begins inside its storage."""
    return lambda gen: torch.randn(5 + math.prod(shape), generator=gen)[5:].view(shape)


def other_way_round(*shape: int) -> Any:
    """A tensor of this shape, its last size outermost in memory."""
    return lambda gen: torch.randn(*shape[::-1], generator=gen).t()


def returns_metadata(x: Tensor) -> Tensor:
    return x.t_()


def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x * 3


def under_no_grad_data_after_use(x: Tensor) -> Tensor:
    y = x.sin()
    with torch.no_grad():
        x.mul_(2)
    return y + x


def detached(x: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x * 3


def detached_and_returned(x: Tensor) -> Tensor:
    x.detach().add_(1)
    return x


def detached_then_mutated(x: Tensor) -> Tensor:
    x.detach().mul_(2)
    x.add_(1)
    return x * 2


def no_grad_then_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    x.mul_(3)
    return x.sin()


def set_new(x: Tensor) -> Tensor:
    x.set_(torch.ones(2, 2))
    return x * 2


def set_other(x: Tensor, y: Tensor) -> Tensor:
    x.set_(y)
    return x * 2


def set_data(x: Tensor) -> Tensor:
    x.data = torch.ones(3, 4)
    return x * 2


def resize(x: Tensor) -> Tensor:
    x.resize_(2, 2)
    return x * 2


def resize_larger(x: Tensor) -> Tensor:
    x.resize_(8)
    x.zero_()
    return x + 1


def resize_and_part(x: Tensor) -> Tensor:
    x.resize_(2, 4)
    x[:, 2:] = 1.0
    x[1, :2] = 3.0
    return x * 2


def resize_alone(x: Tensor) -> Tensor:
    y = x * 2
    x.resize_(2, 4)
    return y


def strided_chain(x: Tensor) -> Tensor:
    y = x * 1
    y[:2].as_strided((2,), (2,)).mul_(2)
    return y


def resize_storage(x: Tensor) -> Tensor:
    y = x * 2
    x.untyped_storage().resize_(0)
    return y


def resize_typed_storage(x: Tensor) -> Tensor:
    y = x * 2
    x.storage().resize_(0)
    return y


def resize_storage_of_a_result(x: Tensor) -> Tensor:
    y = x * 2
    y.untyped_storage().resize_(64)
    return y


def copied(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y)
    return x * y


def through_view(x: Tensor) -> Tensor:
    x[0].mul_(2)
    return x.sin()


def view_written_and_returned(x: Tensor) -> Tensor:
    y = x.view(x.shape)
    y.mul_(x.mean())
    return y


def through_slice(x: Tensor) -> Tensor:
    x[:, 1:3] = 0
    return x.cos()


def through_chain(x: Tensor) -> Tensor:
    x.view(-1)[2:6].view(2, 2).t().add_(1)
    return x * x


def by_index_put(x: Tensor, i: Tensor) -> Tensor:
    x[i] = 1.0
    return x * 2


def masked(x: Tensor) -> Tensor:
    x.masked_fill_(x > 0, 0.5)
    return x * 2


def integers(i: Tensor, x: Tensor) -> Tensor:
    i.add_(1)
    return x * i


def nothing_returned(x: Tensor) -> None:
    x.mul_(2)


def view_and_data(x: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return x[0], x.view(-1)


def two(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    y.mul_(x)
    return x + y


def chained(x: Tensor, w: Tensor) -> Tensor:
    x.mul_(w)
    x.sin_()
    return (x * w).sum()


def undone(x: Tensor) -> Tensor:
    x.add_(1)
    x.sub_(1)
    return x * 2


def tree(d: dict[str, Any]) -> Tensor:
    d["a"].mul_(2)
    return d["a"] * d["b"][0]


def out_argument(x: Tensor, y: Tensor) -> Tensor:
    torch.add(x, 1, out=y)
    return y * 2


def dict_of(x: Any, y: Any) -> Any:
    return inputs(lambda gen: {"a": x(gen), "b": [y(gen)]})


class Buffer(nn.Module):
    """A buffer of six numbers and a weight; ``change`` writes to the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.arange(6.0).view(2, 3).clone())
        self.weight = nn.Parameter(torch.randn(3))

    def change(self, x: Tensor) -> None:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        self.change(x)
        return x * self.weight + self.state.sum()


class BufferData(Buffer):
    def change(self, x: Tensor) -> None:
        self.state.add_(x.detach().sum())


class BufferView(Buffer):
    def change(self, x: Tensor) -> None:
        self.state[0].add_(x.detach().mean(0))


class BufferViewChain(Buffer):
    def change(self, x: Tensor) -> None:
        self.state.t()[1:].mul_(2)


class BufferAssigned(Buffer):
    def change(self, x: Tensor) -> None:
        self.state = self.state + x.detach().sum()


class BufferWithGradient(Buffer):
    def change(self, x: Tensor) -> None:
        self.state.mul_(0.5).add_((x * self.weight).sum().detach())


def windows_with_gaps(x: Tensor, y: Tensor) -> Any:
    """One window in a row, windows a step apart, and of one element; the elements between them stay."""
    x.unfold(1, 2, 2).zero_()
    z = y * 2
    z.unfold(0, 2, 3)[1:].mul_(3)
    y.t().unfold(0, 1, 2).add_(1)
    return z, y.unfold(1, 2, 2), y.unfold(0, 3, 4)


class BufferReturned(Buffer):
    def forward(self, x: Tensor) -> Any:
        self.state.add_(1)
        return x * self.weight, self.state


class BufferViewReturned(Buffer):
    def forward(self, x: Tensor) -> Any:
        self.state.add_(1)
        return x * self.weight, self.state[0]


class ParameterUnderNoGrad(nn.Module):
    """Changes its own weight, as weight clipping does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.5, 0.5)
        return x * self.weight


class BufferOfGradient(nn.Module):
    """A buffer that becomes part of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", torch.zeros(3))
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        self.memory.copy_(x.sum(0) * self.weight)
        return (self.memory * x).sum()


def fused(x: Tensor) -> Tensor:
    x[:, :2].addcmul_(x[:, 1:3], x[:, 2:], value=0.1)
    return x.addcdiv_(x, x + 9, value=0.2) * 2


TWO = (Call(1), Call(2), Call(3, training=False, grad=False))


def factors_changed(x: Tensor) -> Tensor:
    y = x.prod(0)
    x.data.add_(0.5)
    return y


def into(function: Any, *args: Any) -> Any:
    """Writes the result of ``function`` to an argument, which eager resizes, and uses it."""

    def call(x: Tensor, out: Tensor) -> Tensor:
        function(x, *args, out=out)
        return out * 2

    return call


def into_intermediate(x: Tensor) -> Any:
    large, none, line = torch.empty(3, 3), torch.empty(0), torch.empty(9)
    torch.mul(x, 3, out=large)
    torch.mm(x, x, out=none)
    torch.sum(x, 0, out=line)
    return large, none.sum(0), x.reshape(none.shape), line


def into_two(x: Tensor, values: Tensor, indices: Tensor) -> Any:
    return torch.max(x, 0, out=(values, indices)), values


def into_view(x: Tensor, out: Tensor) -> Tensor:
    torch.add(x, x, out=out[:1])
    return out


OUT_SIZES: dict[str, tuple[Any, ...]] = {
    "mm, of a larger matrix": (into(torch.mm, torch.eye(2)), (3, 3)),
    "mm, of a longer matrix": (into(torch.mm, torch.eye(2)), (4, 2)),
    "mm, of an empty one": (into(torch.mm, torch.eye(2)), (0,)),
    "sum, broadcast if not resized": (into(torch.sum, 0), (2, 2)),
    "cat": (lambda x, out: torch.cat([x, x], out=out) + 1, (3, 3)),
    "inverse, in its own layout": (into(lambda x, out: torch.linalg.inv(x + 3 * torch.eye(2), out=out)), (3, 3)),
}


def set_to_another(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x * 2, torch.zeros(2)
    z.set_(y)  # type: ignore[call-overload]
    return y, z


def shrunk_after_a_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    row = y[0]
    y.resize_(3)
    return y, row


IN_TYPE_OF_OUT = (
    torch.sum,
    torch.mean,
    torch.nansum,
    torch.nanmean,
    torch.prod,
    torch.cumsum,
    torch.cumprod,
    torch.var,
    torch.std,
    torch.logsumexp,
)
"""Functions that compute in the element type of ``out=``."""


def into_type(function: Any) -> Any:
    def f(x: Tensor) -> Tensor:
        shape = x.shape if function in (torch.cumsum, torch.cumprod) else x.shape[:1]
        out = torch.zeros(shape, dtype=torch.float64)
        function(x, 1, out=out)
        return out

    return f


def into_refused_type(function: Any) -> Any:
    def f(x: Tensor) -> Tensor:
        out = torch.zeros(x.shape, dtype=torch.float64)
        function(x, out)
        return out

    return f


OF_ITS_OWN_TYPE = {
    "softmax": lambda x, out: torch.softmax(x, 0, out=out),
    "tril": lambda x, out: torch.tril(x, out=out),
    "clamp": lambda x, out: torch.clamp(x, 0, 1, out=out),
    "index_select": lambda x, out: torch.index_select(x, 0, torch.tensor([0, 1]), out=out),
    "sort": lambda x, out: torch.sort(x, out=(out, torch.zeros(x.shape, dtype=torch.int64))),
}
"""Eager raises an error if ``out=`` has another type."""


def filled(function: Any) -> Any:
    def call(x: Tensor, out: Tensor) -> Any:
        function(out)
        return x * 2, out

    return call


FILLED: dict[str, Any] = {
    "arange": lambda out: torch.arange(4, out=out),
    "linspace": lambda out: torch.linspace(0, 1, 4, out=out),
    "logspace": lambda out: torch.logspace(0, 1, 4, out=out),
    "range": lambda out: torch.range(0, 3, out=out),
}
"""Eager fills an ``out=`` of as many elements without giving it other sizes."""


def enlarged_and_sliced(x: Tensor) -> Tensor:
    y = x * 2
    y.resize_(20)
    return y[:5]


OUT_REFUSED = {
    "input mutation: an intermediate resized to more elements": r"enlarges a tensor in place.*mutation\.py:\d+: y\.resize_\(20\)",
    **{
        f"input mutation: out= of another type, {name} (eager raises)": r"fails on its example.*mutation\.py:\d+.*error in eager"
        for name in OF_ITS_OWN_TYPE
    },
    **{
        f"input mutation: out= of other sizes, filled by {name}": r"eager keeps the sizes \[2, 2\] of out=.*mutation\.py:\d+"
        for name in FILLED
    },
    "input mutation: out= of other sizes, a view": "resizes a view passed as out=",
    "outputs: an intermediate set to another one": r"set_ changes a tensor that is returned.*mutation\.py:\d+: z\.set_",
    "outputs: an intermediate made smaller after a view": r"resize_ changes a tensor that is.*mutation\.py:\d+: y\.resize_",
}
TWO_OF_TWO = t(2, 2)

CASES: list[Case] = [
    *(case(f"input mutation: out= of other sizes, {name}", f, TWO_OF_TWO, t(*shape)) for name, (f, shape) in OUT_SIZES.items()),
    *(case(f"input mutation: out= of another type, {f.__name__}", into_type(f), t(4, 5)) for f in IN_TYPE_OF_OUT),
    *(
        case(f"input mutation: out= of another type, {name} (eager raises)", into_refused_type(f), TWO_OF_TWO)
        for name, f in OF_ITS_OWN_TYPE.items()
    ),
    *(
        case(f"input mutation: out= of other sizes, filled by {name}", filled(f), TWO_OF_TWO, t(2, 2))
        for name, f in FILLED.items()
    ),
    case("input mutation: out= of other sizes, sum on cpu", into(torch.sum, 0), TWO_OF_TWO, t(2, 2), targets=("cpu",)),
    case("input mutation: out= of other sizes, intermediates", into_intermediate, TWO_OF_TWO),
    case("input mutation: out= of other sizes, two", into_two, TWO_OF_TWO, t(4, 2), ints(2)),
    case("input mutation: out= of other sizes, a view", into_view, TWO_OF_TWO, t(3, 3), methods=("infer",)),
    case("input mutation: an intermediate resized to more elements", enlarged_and_sliced, TWO_OF_TWO),
    case("outputs: an intermediate set to another one", set_to_another, TWO_OF_TWO),
    case("outputs: an intermediate made smaller after a view", shrunk_after_a_view, TWO_OF_TWO),
    case("outputs: an intermediate set to another one, alone", lambda x: set_to_another(x)[1], TWO_OF_TWO),
    case("outputs: a view in memory of its own, twice", lambda x: [(x * 2).as_strided((4,), (1,))] * 2, TWO_OF_TWO),
    case("input mutation: data", data, t(3, 4), calls=TWO),
    case("input mutation: data, next to a leaf that requires grad", data_of_one, t(3, 4), g(4)),
    case("input mutation: data of a non-leaf that feeds the backward", data, n(3, 4)),
    case("input mutation: data of a non-leaf, mutated input in the backward", chained, n(3, 4), g(4)),
    case("input mutation: data of a non-leaf, gradient through the input only", data, n(3, 4), grad_outputs=["args[0]"]),
    case("input mutation: data of a non-leaf, gradient through the output only", data, n(3, 4), grad_outputs=["out"]),
    case("input mutation: data of a leaf that requires grad (eager raises)", data, g(3, 4), calls=(TRAIN,)),
    case(
        "input mutation: data of a non-leaf, called with a leaf that requires grad (eager raises)",
        data,
        n(3, 4),
        calls=(
            TRAIN,
            Call(1, inputs=inputs(g(3, 4)), refused="is a leaf that requires a gradient"),
            Call(1, inputs=inputs(t(3, 4))),
        ),
    ),
    case("input mutation: plain input takes a gradient", data_of_one, t(4), g(4)),
    case("input mutation: plain input becomes part of the graph", lambda x, w: x.mul_(w) + 1, t(3, 4), g(4)),
    case("input mutation: copy_ of a tensor that requires grad", copied, t(4), g(4)),
    case("input mutation: returned", returns_mutated, t(3, 4)),
    case("input mutation: returned, non-leaf", returns_mutated, n(3, 4)),
    case("input mutation: returned twice", returns_mutated_twice, n(3, 4)),
    case("input mutation: metadata only, t_()", metadata, t(3, 4)),
    case("input mutation: in-place with nothing to do", nothing_to_do, t(3), t(3)),
    case("input mutation: metadata of views and of a detached alias", reshaped_views, n(3, 4), t(3, 4), g(3, 4)),
    case("input mutation: metadata of detached aliases, returned with their views", reshaped_alias, n(3, 4)),
    case("input mutation: metadata only, t_(), non-leaf", metadata, n(3, 4)),
    case("input mutation: metadata only, t_(), leaf that requires grad (eager raises)", metadata, g(3, 4)),
    case("input mutation: metadata only, unsqueeze_", metadata_unsqueeze, t(3, 4)),
    case("input mutation: metadata only, transpose_, non-leaf", metadata_transpose, n(3, 4)),
    case("input mutation: metadata only, as_strided_", metadata_as_strided, t(8)),
    case("input mutation: metadata only, returned", returns_metadata, t(3, 4)),
    case("input mutation: metadata only, viewed afterwards", viewed_after, n(3, 4)),
    case("input mutation: metadata only, unsqueeze_, viewed afterwards", viewed_after_unsqueeze, n(3, 4)),
    case("input mutation: metadata only, transpose_, viewed afterwards", viewed_after_transpose, n(3, 4)),
    case("input mutation: metadata only, squeeze_, viewed afterwards", viewed_after_squeeze, n(1, 4)),
    case("input mutation: metadata only, viewed before", viewed_before, n(3, 4), methods=("train",), calls=(TRAIN,)),
    case("input mutation: metadata only, viewed before, no gradient", viewed_before, t(3, 4)),
    case("input mutation: metadata only, detached before", detached_before, n(3, 4)),
    case(
        "input mutation: metadata only, viewed before, of any size",
        viewed_before,
        t(3, 4),
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        calls=tuple(Call(seed, inputs=inputs(t(size, 4))) for seed, size in enumerate((3, 6, 2))),
    ),
    case("input mutation: metadata only, as_strided_, viewed before", viewed_before_strided, t(3, 4)),
    case("input mutation: an intermediate turned, written through a view of before", written_through_an_old_view, n(3, 4)),
    case("input mutation: an intermediate turned, written through a view of after", written_through_a_new_view, n(3, 4)),
    case("input mutation: metadata and data", both, t(3, 4)),
    case("input mutation: metadata and data, as_strided_ with an offset", strided_and_data, t(8)),
    case("input mutation: metadata and data, through a view between", squeezed_slice_and_data, t(8)),
    case("input mutation: metadata only, built at an offset", metadata, at_an_offset(3, 4)),
    case("input mutation: metadata and data, built at an offset", both, at_an_offset(3, 4)),
    case("input mutation: metadata and data, as_strided_, built at an offset", strided_and_data, at_an_offset(8)),
    case(
        "input mutation: metadata only, an offset at call", metadata, t(3, 4), calls=(Call(1, inputs=inputs(at_an_offset(3, 4))),)
    ),
    case(
        "input mutation: metadata and data, an offset at call", both, t(3, 4), calls=(Call(1, inputs=inputs(at_an_offset(3, 4))),)
    ),
    case(
        "input mutation: metadata and data, as_strided_, an offset at call",
        strided_and_data,
        t(8),
        calls=(Call(1, inputs=inputs(at_an_offset(8)), refused="has the storage offset 5, expected 0"),),
    ),
    case(
        "input mutation: metadata only, as_strided_, an offset at call",
        metadata_as_strided,
        t(8),
        calls=(Call(1, inputs=inputs(at_an_offset(8)), refused="has the storage offset 5, expected 0"),),
    ),
    case(
        "input mutation: metadata only, as_strided_, built at an offset, beyond the argument",
        beyond_itself,
        at_an_offset(8),
        calls=(Call(1), Call(2, grad=False, training=False)),
    ),
    case(
        "input mutation: metadata only, as_strided_, of any size, beyond the argument (eager raises where the storage ends)",
        beyond_itself,
        at_an_offset(8),
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
        calls=tuple(Call(seed, inputs=inputs(at_an_offset(size))) for seed, size in enumerate((8, 11, 7, 3))),
    ),
    case(
        "input mutation: metadata only, other strides at call",
        metadata,
        t(3, 4),
        calls=(Call(1, inputs=inputs(other_way_round(3, 4)), refused=r"has the strides \[1, 3\]"),),
    ),
    case(
        "input mutation: metadata and data, other strides at call",
        both,
        t(3, 4),
        calls=(Call(1, inputs=inputs(other_way_round(3, 4)), refused=r"has the strides \[1, 3\]"),),
    ),
    case("input mutation: data, built at an offset", data, at_an_offset(3, 4), calls=(TRAIN, Call(1, inputs=inputs(t(3, 4))))),
    case("input mutation: data, an offset at call", data, t(3, 4), calls=(Call(1, inputs=inputs(at_an_offset(3, 4))),)),
    case("input mutation: metadata and data, non-leaf", both, n(3, 4)),
    case("input mutation: data and metadata", both_data_first, t(3, 4)),
    case("input mutation: data and metadata, non-leaf", both_data_first, n(3, 4)),
    case("input mutation: under no_grad", under_no_grad, t(3, 4)),
    case("input mutation: under no_grad, leaf that requires grad", under_no_grad, g(3, 4)),
    case("input mutation: under no_grad, non-leaf", under_no_grad, n(3, 4)),
    case("input mutation: under no_grad, after use", under_no_grad_data_after_use, g(3, 4), calls=(TRAIN,)),
    case("input mutation: under no_grad, then with gradients, non-leaf", no_grad_then_grad, n(3, 4)),
    case("input mutation: detach().mul_() on a leaf requiring grad", detached, g(3, 4)),
    case("input mutation: detach().mul_() on a non-leaf", detached, n(3, 4)),
    case("input mutation: detach().mul_() on a plain tensor", detached, t(3, 4)),
    case("input mutation: detach().add_(), the leaf returned", detached_and_returned, g(3, 4)),
    case("input mutation: detach().mul_(), then mutated with gradients", detached_then_mutated, n(3, 4)),
    case("input mutation: set_ to a new tensor", set_new, t(2, 2)),
    case("input mutation: set_ to another input", set_other, t(2, 2), t(2, 2)),
    case("input mutation: .data assigned", set_data, t(3, 4)),
    case("input mutation: factors of a product, by .data", factors_changed, g(3, 4)),
    case("input mutation: resize_ smaller", resize, t(3, 4)),
    case("input mutation: resize_ larger", resize_larger, t(4)),
    case("input mutation: resize_ larger and then written in part", resize_and_part, t(4)),
    case("input mutation: resize_ larger and not written", resize_alone, t(4)),
    case("input mutation: an intermediate through a chain of views with as_strided", strided_chain, t(4)),
    case("input mutation: out= argument that grows", out_argument, t(3), t(0)),
    case("input mutation: storage resize_(0)", resize_storage, t(4)),
    *(
        case(f"input mutation: {function.__name__}, {end}", function, t(4), front_ends=(end,))
        for function in (resize_storage, resize_typed_storage, resize_storage_of_a_result)
        for end in ("export", "trace")
    ),
    case("input mutation: through a view", through_view, t(3, 4)),
    case("input mutation: through a view, non-leaf", through_view, n(3, 4)),
    case("input mutation: through a view that is returned", view_written_and_returned, t(3, 4)),
    case(
        "input mutation: through a view that is returned, non-leaf",
        view_written_and_returned,
        n(3, 4),
        calls=(TRAIN,),
        methods=("train",),
    ),
    case("input mutation: through a view that is returned, non-leaf, without gradients", view_written_and_returned, n(3, 4)),
    case("input mutation: through a slice", through_slice, t(3, 4)),
    case("input mutation: through windows with gaps", windows_with_gaps, t(2, 3), t(6, 5)),
    case("input mutation: through windows with gaps, non-leaf", windows_with_gaps, t(2, 3), n(6, 5), calls=(TRAIN,)),
    case("input mutation: through a slice, non-leaf", through_slice, n(3, 4)),
    case("input mutation: through a chain of views, non-leaf", through_chain, n(3, 4)),
    case("input mutation: through windows that end within a step", lambda x: x.unfold(0, 2, 3).mul_(2), t(11)),
    case("input mutation: index_put", by_index_put, t(5, 2), ints(2)),
    case("input mutation: masked_fill_, non-leaf", masked, n(3, 4)),
    case("input mutation: integers", integers, ints(3), g(3)),
    case("input mutation: nothing returned", nothing_returned, t(3)),
    case("input mutation: nothing returned, non-leaf", nothing_returned, n(3)),
    case("input mutation: and views of it returned", view_and_data, t(3, 4)),
    case("input mutation: and views of it returned, non-leaf", view_and_data, n(3, 4)),
    case("input mutation: two inputs of each other", two, t(3), t(3)),
    case("input mutation: two inputs of each other, non-leaf", two, n(3), n(3)),
    case("input mutation: undone again", undone, n(3)),
    case("input mutation: inside a tree", tree, dict_of(t(3), g(3))),
    case("input mutation: inside a tree, non-leaf", tree, dict_of(n(3), g(3))),
    case("input mutation: out= argument", out_argument, t(3), t(3)),
    case("input mutation: zero_", lambda x, w: (x.zero_(), w * 2)[1], t(3), g(3)),
    module_case("buffer mutated", BufferData, g(2, 3), calls=TWO),
    module_case("buffer mutated: view of a buffer", BufferView, g(2, 3), calls=TWO),
    module_case("buffer mutated: chain of views of a buffer", BufferViewChain, g(2, 3), calls=TWO),
    module_case("buffer mutated: assigned anew", BufferAssigned, g(2, 3), calls=TWO),
    module_case("buffer mutated: from a value with gradient, detached", BufferWithGradient, g(2, 3), calls=TWO),
    module_case("buffer mutated: and returned", BufferReturned, g(2, 3)),
    module_case("buffer mutated: and a view of it returned", BufferViewReturned, g(2, 3)),
    module_case("buffer mutated: becomes part of the graph", BufferOfGradient, g(2, 3), calls=(TRAIN,)),
    module_case("parameter mutated under no_grad", ParameterUnderNoGrad, g(2, 3), calls=TWO),
    case("input mutation: polygamma_", lambda x: x.abs_().polygamma_(1) * 2, t(3)),
    case("in place on an intermediate: polygamma_", lambda x: (x.sigmoid() + 1).polygamma_(1), g(3)),
    *(
        case(
            f"input mutation: addcmul_ and addcdiv_ by a number, {target}", fused, t(3, 4, dtype=torch.float64), targets=(target,)
        )
        for target in ("portable", "cpu")
    ),
]
