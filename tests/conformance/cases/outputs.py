"""Outputs: every alias class, views replayed, containers and values that are no tensors."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn import functional as F

from devtools.harness import INFER, TRAIN, Call, Case, case, g, ints, laid_out, module_case, n, t

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Result:
    """A user's dataclass."""

    loss: Tensor
    extra: Any = None


pytree.register_dataclass(Result)


@dataclass
class Unregistered:
    """A user's dataclass that pytree does not know."""

    loss: Tensor
    name: str = "x"


def inplace_on_output(model: Any, args: Any, kwargs: Any) -> Any:
    """In place on the first result, then a gradient through what is left."""
    result = model(*args, **kwargs)
    first, *rest = result if isinstance(result, tuple) else (result,)
    first.mul_(3)
    first.add_(1)
    roots = [r for r in pytree.tree_leaves((first, rest)) if r.requires_grad]
    if roots:
        sum(r.sum() for r in roots).backward()
    return first, *rest


def inplace_no_grad(model: Any, args: Any, kwargs: Any) -> Any:
    """In place on the first result where there are no gradients."""
    result = model(*args, **kwargs)
    first, *rest = result if isinstance(result, tuple) else (result,)
    first.mul_(3)
    return first, *rest


MUTATED = (Call(1, act=inplace_on_output), Call(2, training=False, grad=False, act=inplace_no_grad))


def base_and_views(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    return y, y[0], y.view(-1)


def views_base_saved(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y[0], y.view(-1)


def view_base_last(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y[0], y


def views_of_two(x: Tensor) -> tuple[Tensor, ...]:
    y, z = x * 2, x.sin()
    return z[0], y[0], z.t(), y.view(-1)


def same_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y, y


def input_twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x, x * 2, x


def view_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.view(-1)
    return y, y


def part_of_transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Views, one with gaps in memory and one without; Inductor alone would lay them out otherwise."""
    return (x.t() * 2)[1:], (x.t() + 1).select(1, 0)


def mutated_view_of_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    v = y[0]
    v.mul_(3)
    return v, y


def written_transposed(x: Tensor) -> Tensor:
    y = x * 2
    y.t().mul_(3)
    return y


def views_of_a_copy(x: Tensor) -> Any:
    """Every reader of the copy, once it is written to, is traced as one that reshapes."""
    diagonal = x.flatten()[:9].reshape(3, 3).diagonal()
    every = diagonal[::2]
    every.mul_(2)
    return every, diagonal


def written_transposed_with_views(x: Tensor) -> Any:
    y, z = x * 2, x.sin()
    y.t().mul_(3)
    z.t().mul_(3)
    return y, y.t(), z[0], z.t(), y


def views_without_gradient(x: Tensor) -> Any:
    """Of results, of values nobody sees, several of one operator, one twice, and those of a value that is trained."""
    given = x.detach()
    first, second, third = given * 2, given * 3, x * 4
    largest, indices = given.max(0)
    with torch.no_grad():
        untrained = third.t()
    halves, row, coordinates = second.chunk(2), given.sin()[0], torch.unravel_index(indices, (2, 2))
    return first, first.view_as(first), first[0], halves, row, row, coordinates, largest[:2], largest[1:], third, untrained


CONSTANT, OTHER = torch.ones(2, 3), torch.arange(4.0)


def constants_with_views(x: Tensor) -> Any:
    return CONSTANT, CONSTANT[0], CONSTANT.t(), OTHER[:2], OTHER[2:], x * 2


def detached_with_views(x: Tensor) -> Any:
    """The argument, or a part of it, detached: one tensor with its views, one that nobody sees, and one that is there later."""
    whole, part, unseen, later = x.detach(), x[0].detach(), x.detach(), x[1].detach()
    return whole, whole[0], part[1:], part, x[0], x, whole[None], unseen[0], unseen[1], whole, later[:2], later[1:]


def turned_between_views(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 3
    before = y[:1]
    y.t_()
    return before, y, y[:1]


def detached_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.detach(), y


def view_and_detached(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 2).view(-1)
    return y, y.detach()


def detached_and_its_view(x: Tensor) -> Any:
    y = (x * 2).view(3, 2)
    return y.detach(), y.t(), y, y.detach()[0], y.detach()


def no_grad_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    with torch.no_grad():
        z = y.view(-1)
    return z, y


def no_grad_view_of_input(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.view(-1)


def detached_intermediate_views(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 2).detach()
    return y.view(-1), y[0]


def view_under_grad_of_detached(x: Tensor) -> Any:
    y = x * 2
    return y[0].detach(), y.view(-1), y.detach()[1]


def detached_and_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.detach()
    return y, y.view(-1)


def views_of_a_view(x: Tensor) -> Any:
    y = x.view(-1)
    return y[1:], y[:2].detach(), y, y[1:][1:], x.t()


def views_of_a_hidden_detached(x: Tensor) -> Any:
    y = x.detach()
    return y.view(-1), y[0], y.unbind(0)[1], x.detach()[1]


def hidden_no_grad_view(x: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        z = y.view(-1)
        return z[1:], z, y


def only_no_grad_view(x: Tensor) -> Tensor:
    return no_grad_view(x)[0]


def no_grad_view_beside(x: Tensor) -> Any:
    return no_grad_view(x)[0], x.cos()


def no_grad_view_of_what_is_used(x: Tensor) -> Any:
    z, y = no_grad_view(x.view(3, 2).exp())
    return z[1:], y.sin()


def one_of_unbound_under_no_grad(x: Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        return y.unbind(0)[1], x.cos()


def unbound(x: Tensor) -> Any:
    rows = x.unbind(0)
    return (*rows, rows[0].view(-1), x.unbind(0)[0])


def unbound_intermediate(x: Tensor) -> Any:
    y = x * 2
    return (*y.unbind(0), y[0], y.t())


def hooked_view(model: Any, args: Any, kwargs: Any) -> Any:
    """A gradient that reaches a view through another one, seen by a hook and retained."""
    tail, whole = model(*args)
    seen: list[Tensor] = []
    whole.register_hook(lambda grad: (seen.append(grad.clone()), grad * 3)[1])
    whole.retain_grad()
    tail.sin().sum().backward()
    return seen, whole.grad


def view_and_tail(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.view(-1)
    return y[1:], y


def descriptions(x: Tensor) -> Any:
    return x * 2, x.device, x.layout, torch.channels_last, [torch.int64, complex(0, float("inf"))]


@dataclass
class Nested:
    """Unregistered, in one another and in lists."""

    inner: Any
    size: torch.Size
    sums: list[Tensor]


def complex_views(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.view_as_complex(x), x.sum()


def real_views(x: Tensor) -> tuple[Tensor, ...]:
    return torch.view_as_real(x), x.real, x.imag


def complex_of_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return torch.view_as_complex(y), y


def nested(x: Tensor) -> Any:
    return {"b": [x * 2, (x + 1, {"deep": x.sum()})], "a": x.view(-1), "none": None}


def many_kinds(x: Tensor) -> Any:
    return [x * 2, None, 1, 2.5, "text", True, (), [], {}, x.shape[0], float("inf")]


def number_from_shape(x: Tensor) -> Any:
    return x * 2, x.shape, x.numel(), tuple(x.shape)


def ordered(x: Tensor) -> Any:
    return OrderedDict([("z", x * 2), ("a", x.sum())])


def default(x: Tensor) -> Any:
    found: Any = defaultdict(list)
    found["z"].append(x * 2)
    return found


def slices(x: Tensor) -> Any:
    return x[1:], x[:, ::2], x[..., None], x[1, 2]


def multi_output_of_intermediate(x: Tensor) -> Any:
    return (x * 2).chunk(2)


def multi_output_and_base(x: Tensor) -> Any:
    y = x * 2
    return (*y.unbind(0), y)


def mixed_multi_and_single(x: Tensor) -> Any:
    y = x * 2
    return (*y.split(1), y.view(-1))


def argmax(x: Tensor) -> Any:
    return x.argmax(-1), x.topk(2).indices, x > 0, x.sum()


class ReturnsState(nn.Module):
    """A parameter and a buffer among the results."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("mean", torch.randn(3))

    def forward(self, x: Tensor) -> Any:
        return x @ self.weight, self.weight, self.mean, self.weight.t(), self.mean.view(1, 3)


class ReturnsParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Any:
        return x @ self.weight, self.weight


class ReturnsConstant(nn.Module):
    """A tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.arange(3.0)

    def forward(self, x: Tensor) -> Any:
        return x + self.table, self.table


def fresh_constant(x: Tensor) -> Any:
    return torch.ones(3), torch.tensor([1, 2]), x * 2


def requires_grad_changed(x: Tensor) -> Any:
    y = x.detach().requires_grad_()
    return x * 2, y


def changes_requires_grad_of_input(x: Tensor) -> Any:
    x.requires_grad_()
    return x * 2


def sparse_beside_differentiable(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x.relu()
    return h * 2, h.detach().to_sparse()


def sparse_then_written(x: Tensor) -> tuple[Tensor, Tensor]:
    sparse = x.to_sparse(1)
    x.add_(1)
    return sparse, x * 2


def sparse_three_ways(x: Tensor) -> tuple[Tensor, ...]:
    return x.to_sparse(1), x.to_sparse(), x.t().to_sparse(layout=torch.sparse_coo), x.sum().to_sparse()


def sparse_twice(x: Tensor) -> tuple[Tensor, Tensor]:
    sparse = x.to_sparse()
    return sparse, sparse


VARYING = {"x": {0: torch.export.Dim.DYNAMIC}}


def products_and_views(x: Tensor) -> Any:
    """Products that torch decomposes into views, and views of them."""
    attended = F.scaled_dot_product_attention(x.mT, x, x)
    products = (x @ x, torch.linalg.matrix_power(x, 3), attended, F.max_pool1d(x[0], 2))
    return [(product, product[:1], product.mT) for product in products]


def changed_and_views(x: Tensor) -> Any:
    """Results whose sizes were changed in place, and views of them."""
    y, z = x * 2, x.sin()
    y.t_()
    z.unsqueeze_(0).transpose_(1, 2)
    quantile = x.quantile(0.5, 1)
    return y, y[:1], z, z[0], z[0][1:], quantile, quantile[:1]


def computed_twice(x: Tensor, y: Tensor) -> Any:
    """A result that is found equal to what the backward keeps a view of: it is not to be overwritten there."""
    result, again = F.layer_norm(x, x.shape[-1:]), F.layer_norm(x, x.shape[-1:])
    return result, F.conv2d(y[None, None], again.flatten()[:9].reshape(1, 1, 3, 3)), again.t() @ y[:4]


def unsafely_split(x: Tensor) -> Any:
    """Parts in the memory of an argument, of which autograd does not know."""
    return x.unsafe_chunk(2), x.unsafe_split_with_sizes((1, 3), 1)


CASES: list[Case] = [
    case("outputs: sparse", lambda x: x.relu().to_sparse(), t(3, 4)),
    case("outputs: sparse, beside a differentiable one, cpu", sparse_beside_differentiable, g(3, 4), targets=("cpu",)),
    case("outputs: sparse, beside a differentiable one", sparse_beside_differentiable, g(3, 4)),
    case("outputs: sparse, the argument is written to afterwards", sparse_then_written, t(2, 3)),
    case("outputs: sparse, with dense dimensions too, expanded, of no dimension", sparse_three_ways, t(2, 3)),
    case("outputs: sparse, of an expanded argument", lambda x: x.expand(2, 3).to_sparse(), t(3, dtype=torch.bfloat16)),
    case("outputs: sparse, of other sizes", lambda x: x.to_sparse(), t(2, 3), dynamic_shapes=VARYING),
    case("outputs: sparse, one twice", sparse_twice, t(2, 3)),
    case("outputs: sparse, with a gradient", lambda x: x.to_sparse(), g(2, 3)),
    case("outputs: sparse, computed with", lambda x: (x.to_sparse() * 2).to_dense(), t(2, 3)),
    case("outputs: sparse, of compressed rows", lambda x: x.to_sparse_csr(), t(2, 3)),
    case("outputs: fresh", lambda x: x * 2, g(2, 3)),
    case("outputs: fresh, in place afterwards", lambda x: x * 2, g(2, 3), calls=MUTATED),
    case("outputs: fresh, several, in place afterwards", lambda x: (x * 2, x + 1), g(2, 3), calls=MUTATED),
    case("outputs: fresh, saved for backward, in place afterwards (eager raises)", lambda x: x.exp(), g(3), calls=MUTATED[:1]),
    case("outputs: fresh, tanh saved, in place afterwards (eager raises)", lambda x: (x.tanh(), x + 1), g(3), calls=MUTATED[:1]),
    case("outputs: sigmoid of a non-contiguous input", lambda x: x.t().sigmoid(), g(2, 3)),
    case("outputs: non-contiguous fresh", lambda x: (x * 2).t().contiguous().t() + 1, g(2, 3)),
    case("outputs: channels last", lambda x: x.contiguous(memory_format=torch.channels_last) * 2, g(2, 3, 4, 4)),
    *(
        case(f"outputs: part of what is transposed, {given}, {target}", part_of_transposed, spec(4, 6), targets=(target,))
        for given, spec in (("plain", t), ("leaf", g))
        for target in ("portable", "cpu")
    ),
    case("outputs: expanded", lambda x: x.expand(4, 3), g(3)),
    case("outputs: expanded intermediate", lambda x: (x * 2).expand(4, 3), g(3)),
    case("outputs: is the input", lambda x: x, t(3)),
    case("outputs: is the input, leaf", lambda x: x, g(3)),
    case("outputs: is the input, non-leaf", lambda x: x, n(3)),
    case("outputs: is the input, twice, and fresh", input_twice, g(3)),
    case("outputs: is the input, non-leaf, in place afterwards", lambda x: (x, x * 2), n(3), calls=MUTATED),
    case("outputs: alias of input", lambda x: x.view(-1), t(2, 3)),
    case("outputs: alias of input, leaf", lambda x: x.view(-1), g(2, 3)),
    case("outputs: alias of input, non-leaf", lambda x: x.view(-1), n(2, 3)),
    case("outputs: alias of input, same view twice", view_twice, n(2, 3)),
    case("outputs: alias of input, views of a view", views_of_a_view, n(2, 3)),
    case("outputs: alias of input, views of a view, plain", views_of_a_view, t(2, 3)),
    case("outputs: alias of input, views of a view, leaf", views_of_a_view, g(2, 3)),
    case("outputs: alias of input, views of a view, in place afterwards (eager raises)", views_of_a_view, n(2, 3), calls=MUTATED),
    case(
        "outputs: alias of input, hook on a view of which another is", view_and_tail, n(2, 3), calls=(Call(1, act=hooked_view),)
    ),
    case("outputs: views of a detached view that is not returned", views_of_a_hidden_detached, g(2, 3)),
    case("outputs: views of a detached view that is not returned, plain", views_of_a_hidden_detached, t(2, 3)),
    case("outputs: view of a view under no_grad", hidden_no_grad_view, g(2, 3)),
    case("outputs: a view under no_grad, alone", only_no_grad_view, g(2, 3)),
    case("outputs: a view under no_grad, beside another result", no_grad_view_beside, g(2, 3)),
    case("outputs: a view of a view under no_grad, of what is used", no_grad_view_of_what_is_used, g(2, 3)),
    case("outputs: multi-output views, one under no_grad", one_of_unbound_under_no_grad, g(2, 3)),
    case("outputs: multi-output views, unbind twice and a view of one", unbound, n(3, 2)),
    case("outputs: multi-output views, unbind, in place afterwards (eager raises)", unbound, n(3, 2), calls=MUTATED[:1]),
    case("outputs: multi-output views of an intermediate, unbind and others", unbound_intermediate, g(3, 2)),
    case("outputs: alias of input, chain", lambda x: x.t()[1:].unsqueeze(0), n(2, 3)),
    case("outputs: alias of input, slices", slices, n(3, 4)),
    case("outputs: alias of input, view with an equal shape", lambda x: x.view(2, 3), n(2, 3)),
    case("outputs: alias of input, x[:]", lambda x: x[:], g(2, 3)),
    case("outputs: alias of input, detached", lambda x: x.detach(), g(2, 3)),
    case("outputs: alias of input, detached, and differentiable", lambda x: (x.detach(), x * 2), g(2, 3)),
    case(
        "outputs: alias of input, narrow, select, diagonal", lambda x: (x.narrow(0, 0, 1), x.select(1, 1), x.diagonal()), n(3, 3)
    ),
    case(
        "outputs: alias of input, in place afterwards, non-leaf (eager raises)",
        lambda x: (x.view(-1), x * 2),
        n(2, 3),
        calls=MUTATED,
    ),
    case("outputs: alias of input, in place afterwards", lambda x: (x.view(-1), x * 2), t(2, 3), calls=MUTATED),
    case(
        "outputs: alias of input, in place afterwards on a leaf's view (eager raises)",
        lambda x: (x.view(-1), x * 2),
        g(2, 3),
        calls=MUTATED[:1],
    ),
    case("outputs: alias of input, as_strided", lambda x: x.as_strided((2, 2), (1, 2)), n(6)),
    case("outputs: alias of input, unfold", lambda x: x.unfold(0, 2, 1), n(6)),
    case("outputs: alias of input, view as another dtype", lambda x: x.view(torch.int32), t(4)),
    case("outputs: alias of intermediate, base saved", lambda x: (x * 2).view(-1), g(2, 3)),
    case("outputs: alias of intermediate, base saved, in place afterwards", lambda x: (x * 2).view(-1), g(2, 3), calls=MUTATED),
    case("outputs: alias of intermediate, two views of one base", views_base_saved, g(2, 3)),
    case("outputs: alias of intermediate, two views of one base, in place afterwards", views_base_saved, g(2, 3), calls=MUTATED),
    case("outputs: alias of intermediate, base also output", base_and_views, g(2, 3)),
    case("outputs: alias of intermediate, base also output, in place afterwards", base_and_views, g(2, 3), calls=MUTATED),
    case("outputs: alias of intermediate, base is output after the view", view_base_last, g(2, 3)),
    case("outputs: alias of intermediate, base is output after the view, in place", view_base_last, g(2, 3), calls=MUTATED),
    case("outputs: alias of intermediate, two bases", views_of_two, g(2, 3)),
    case("outputs: alias of intermediate, one view only gets a gradient", views_base_saved, g(2, 3), grad_outputs=["out[1]"]),
    case("outputs: alias of intermediate, base only gets a gradient", base_and_views, g(2, 3), grad_outputs=["out[0]"]),
    case("outputs: alias of intermediate, view only gets a gradient", base_and_views, g(2, 3), grad_outputs=["out[2]"]),
    case("outputs: alias of intermediate, view mutated inside", mutated_view_of_intermediate, g(2, 3)),
    case(
        "outputs: alias of intermediate, view mutated inside, in place afterwards",
        mutated_view_of_intermediate,
        g(2, 3),
        calls=MUTATED,
    ),
    case("outputs: written through a transposed view", written_transposed, g(2, 3)),
    case("outputs: written through a transposed view, in place afterwards", written_transposed, g(2, 3), calls=MUTATED),
    case("outputs: written through a transposed view, with views", written_transposed_with_views, g(2, 3)),
    case("outputs: written through a transposed view, with views, without gradients", written_transposed_with_views, t(2, 3)),
    case(
        "outputs: written through a transposed view, with views, in place afterwards",
        written_transposed_with_views,
        g(2, 3),
        calls=MUTATED,
    ),
    *(
        case(f"outputs: detached with views, {given}, {target}", detached_with_views, spec(2, 3), targets=(target,))
        for given, spec in (("plain", t), ("non-leaf", n))
        for target in ("portable", "cpu")
    ),
    *(
        case(f"outputs: constants with views, {method}, {target}", constants_with_views, t(2, 3), **options, targets=(target,))
        for method, options in (
            ("train", {"methods": ("train",)}),
            ("infer", {"methods": ("infer",), "calls": (INFER,)}),
        )
        for target in ("portable", "cpu")
    ),
    case("outputs: views of a copy by reshape, written to, without gradients", views_of_a_copy, laid_out(t(4, 3), (6, 2))),
    case("outputs: views before and after t_() of what they are of", turned_between_views, n(2, 4)),
    case("outputs: views without gradients", views_without_gradient, g(2, 3)),
    case("outputs: views without gradients, in place afterwards", views_without_gradient, g(2, 3), calls=MUTATED),
    case("outputs: views without gradients, cpu", views_without_gradient, g(2, 3), targets=("cpu",)),
    case(
        "outputs: views without gradients, cpu, inference",
        views_without_gradient,
        t(2, 3),
        targets=("cpu",),
        methods=("infer",),
        calls=(INFER,),
    ),
    case("outputs: alias of intermediate without gradients", views_base_saved, t(2, 3)),
    case("outputs: alias of intermediate without gradients, base also output", base_and_views, t(2, 3)),
    case("outputs: the same twice", same_twice, g(2, 3)),
    case("outputs: the same twice, in place afterwards", same_twice, g(2, 3), calls=MUTATED),
    case("outputs: the same twice, without gradients", same_twice, t(2, 3)),
    case("outputs: multi-output views, chunk of the input", lambda x: x.chunk(2), g(4, 3)),
    case("outputs: multi-output views, chunk of a non-leaf", lambda x: x.chunk(2), n(4, 3)),
    case("outputs: multi-output views, unbind", lambda x: x.unbind(0), n(2, 3)),
    case("outputs: multi-output views, split, unequal", lambda x: x.split([1, 2]), n(3, 3)),
    case("outputs: multi-output views, one element", lambda x: x.unbind(0)[1], n(3, 3)),
    case("outputs: multi-output views, tensor_split", lambda x: x.tensor_split(2), n(3, 3)),
    case("outputs: multi-output views of an intermediate", multi_output_of_intermediate, g(4, 3)),
    case("outputs: multi-output views of an intermediate, unbind and base", multi_output_and_base, g(2, 3)),
    case("outputs: multi-output views of an intermediate, split and view", mixed_multi_and_single, g(2, 3)),
    case(
        "outputs: multi-output views, in place afterwards (eager raises)",
        multi_output_of_intermediate,
        g(4, 3),
        calls=MUTATED[:1],
    ),
    case("outputs: multi-output views of a plain input, in place afterwards", lambda x: x.chunk(2), t(4, 3), calls=MUTATED),
    case("outputs: views that change requires_grad, detach of an intermediate", detached_view, g(2, 3)),
    case("outputs: views that change requires_grad, view under no_grad", no_grad_view, g(2, 3)),
    case("outputs: views that change requires_grad, view of the input under no_grad", no_grad_view_of_input, g(2, 3)),
    case("outputs: views that change requires_grad, mixed", view_under_grad_of_detached, g(2, 3)),
    case("outputs: views that change requires_grad, a view and it detached", view_and_detached, g(2, 3)),
    case("outputs: views that change requires_grad, views and several detached", detached_and_its_view, g(2, 3)),
    case("outputs: views of a detached intermediate", detached_intermediate_views, g(2, 3)),
    case("outputs: a detached input and a view of it", detached_and_view, t(2, 3)),
    case("outputs: requires_grad_() of a detached input", requires_grad_changed, g(3)),
    case("outputs: requires_grad_() on an input inside", changes_requires_grad_of_input, t(3)),
    case("outputs: complex/real views, view_as_complex of the input", complex_views, n(3, 2)),
    case("outputs: complex/real views, view_as_real of the input", real_views, g(3, dtype=torch.complex64)),
    case("outputs: complex/real views of an intermediate", complex_of_intermediate, g(3, 2)),
    case("outputs: complex/real views, conj", lambda x: x.conj(), g(3, dtype=torch.complex64)),
    case("outputs: complex/real views, conj of an intermediate", lambda x: (x * 2).conj(), g(3, dtype=torch.complex64)),
    case(
        "outputs: lazy conjugate of an argument passed on",
        lambda x, y: torch.vdot(x, y),
        g(3, dtype=torch.complex64),
        lambda generator: torch.randn(3, generator=generator, dtype=torch.complex64).conj(),
    ),
    case("outputs: complex/real views, imag of conj", lambda x: x.conj().imag, g(3, dtype=torch.complex64)),
    case("outputs: complex, fresh", lambda x: x * x + 1j, g(3, dtype=torch.complex64)),
    case("outputs: complex, plain", lambda x: (x.real * 2, x.abs()), t(3, dtype=torch.complex64)),
    case("outputs: integers and bools", argmax, g(3, 4)),
    case("outputs: integers, in place afterwards", lambda x: (x.argmax(-1), x * 2), g(3, 4), calls=MUTATED),
    case("outputs: integers only", lambda i: i + 1, ints(3)),
    case("outputs: None only", lambda x: None, t(3)),
    case("outputs: None, numbers, strings, empty containers", many_kinds, g(2, 3)),
    case("outputs: a dtype", lambda x: (x * 2, x.dtype), g(2)),
    case("outputs: a complex number", lambda x: (x * 2, 1 + 2j), g(2)),
    case("outputs: numbers only", lambda x: (1, "two", 3.0), t(2)),
    case("outputs: sizes", number_from_shape, g(2, 3)),
    case("outputs: nested containers", nested, g(2, 3)),
    case("outputs: nested containers, one gets a gradient", nested, g(2, 3), grad_outputs=["out['b'][1][0]"]),
    case("outputs: OrderedDict", ordered, g(2, 3)),
    case("outputs: defaultdict", default, g(2, 3)),
    case("outputs: dataclass", lambda x: Result(x.sum(), {"k": x * 2}), g(3)),
    case("outputs: dataclass with None", lambda x: Result(x.sum()), g(3)),
    case("outputs: dataclass that pytree does not know", lambda x: Unregistered(x.sum()), g(3)),
    case(
        "outputs: dataclass that pytree does not know, nested",
        lambda x: {"a": [Nested(Unregistered(x.view(-1), "y"), x.shape, [x.sum(), x])]},
        g(2, 3),
    ),
    case("outputs: an object of a class of the user's", lambda x: (x * 2, {1, 2}), g(3)),
    case("outputs: a NumPy array", lambda x: (x * 2, [x.detach().numpy()]), g(3)),
    case("outputs: through NumPy", lambda x: x * 2 + torch.from_numpy(x.detach().numpy() * 3), g(3), front_ends=("dynamo",)),
    case("outputs: quantized inside", lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), g(3)),
    case("outputs: a device, a layout, a memory format", descriptions, g(2)),
    case("outputs: sizes, dynamic", number_from_shape, g(4, 3), dynamic_shapes={"x": {0: torch.export.Dim("batch")}}),
    *(
        case(
            f"outputs: sizes that depend on data, {end}",
            lambda x: {"a": [x.nonzero().shape, x.sin()], "b": (tuple(x.shape), x.shape)},
            g(4, 3),
            front_ends=(end,),
        )
        for end in ("dynamo", "export", "trace")
    ),
    case("outputs: namedtuple", lambda x: Pair(x * 2, [x.sum()]), g(3)),
    case("outputs: torch.return_types", lambda x: x.max(0), g(3, 2)),
    case("outputs: torch.return_types sort", lambda x: torch.sort(x), g(3)),
    case("outputs: empty tensor", lambda x: (x[:0], x.new_zeros(0, 3), x.sum()), g(2, 3)),
    case("outputs: scalar", lambda x: x.sum(), g(2, 3)),
    case("outputs: fresh constants", fresh_constant, g(3)),
    case("outputs: products of batches and views of them", products_and_views, g(2, 2, 4, 4)),
    case("outputs: products of batches and views of them, plain", products_and_views, t(2, 2, 4, 4)),
    case("outputs: changed in shape, and views of them", changed_and_views, g(3, 4)),
    case("outputs: changed in shape, and views of them, plain", changed_and_views, t(3, 4)),
    *(
        case(f"outputs: unsafely split, {name}, {target}", function, n(4, 4), targets=(target,))
        for target in ("portable", "cpu")
        for name, function in (("parts", unsafely_split), ("all of it", lambda x: x.unsafe_split(9)))
    ),
    *(
        case(f"outputs: computed twice, {target}", computed_twice, t(4, 8), g(8, 8), targets=(target,))
        for target in ("portable", "cpu")
    ),
    case("outputs: closed-over requires no grad", lambda x: x * torch.full((3,), 2.0), g(3)),
    module_case("outputs: parameters, buffers and views of them", ReturnsState, g(2, 3), calls=(TRAIN,)),
    module_case("outputs: a parameter itself", ReturnsParameter, g(2, 3)),
    module_case("outputs: a constant of the model", ReturnsConstant, g(2, 3)),
    module_case("outputs: Identity", nn.Identity, g(2, 3)),
    module_case("outputs: Flatten of the input", nn.Flatten, g(2, 3, 2)),
    module_case(
        "outputs: eval-mode dropout returns the input itself",
        lambda: nn.Dropout(0.5),
        g(2, 3),
        calls=(Call(2, training=False, grad=False),),
    ),
]

if find_spec("transformers"):  # the environment of the XLA target is without
    from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

    def returns_model_output(x: Tensor) -> Any:
        return SequenceClassifierOutput(loss=x.sum(), logits=x * 2, hidden_states=(x + 1, x.view(-1)))

    def returns_base_model_output(x: Tensor) -> Any:
        return BaseModelOutput(last_hidden_state=x * 2)

    CASES += [
        case("outputs: ModelOutput", returns_model_output, g(2, 3)),
        case("outputs: ModelOutput with one field", returns_base_model_output, g(2, 3)),
    ]
