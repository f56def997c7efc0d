"""Identity of inputs: duplicates, aliases, non-leaves, inputs without gradients, other patterns at call."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from devtools.harness import TRAIN, Call, Case, Given, case, g, inputs, n, t, together

SHARED = "shar|same|alias|memory"


def add(x: Tensor, y: Tensor) -> Tensor:
    return x * 2 + y * 3


def mutate_first(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x + y


def mutate_first_no_grad(x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x * y


class Unchanged(torch.autograd.Function):
    """It returns its argument as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class Swapped(torch.autograd.Function):
    """It returns both its arguments."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return y, x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return right * 2, left * 3


class Dirty(torch.autograd.Function):
    """It writes to its argument and returns it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 5


def dirty_intermediate(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return Dirty.apply(y), y


def mutate_both(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    y.add_(1)
    return x.sum() + y.sum()


def return_both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, y


def only_first_differentiable(x: Tensor, y: Tensor) -> Tensor:
    return (x * 2).sum() + y.detach().sum()


def first_unused(x: Tensor, y: Tensor) -> Tensor:
    return y * 2


def compared(x: Tensor, y: Tensor) -> Tensor:
    return x * (1.0 if x is y else 2.0) + y


def by_id(x: Tensor, y: Tensor) -> Tensor:
    return x * (1.0 if id(x) == id(y) else 2.0) + y


def by_operator(x: Tensor, y: Tensor) -> Tensor:
    return x * (1.0 if operator.is_(x, y) else 2.0) + y


def by_dictionary(x: Tensor, y: Tensor) -> Tensor:
    return x * len({x: 1, y: 2}) + y


def same(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(4, generator=gen)
    return x, x


def same_leaf(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(4, generator=gen).requires_grad_()
    return x, x


def same_nonleaf(gen: torch.Generator) -> tuple[Any, ...]:
    x = n(4)(gen)
    return x, x


def overlapping(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(8, generator=gen)
    return x[:4], x[2:6]


def disjoint(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(8, generator=gen)
    return x[:4], x[4:]


def base_and_view(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(4, generator=gen)
    return x, x.view(4)


def views_of_nonleaf(gen: torch.Generator) -> tuple[Any, ...]:
    x = n(8)(gen)
    left, right = x[:4], x[2:6]
    left.source = x.source  # type: ignore[attr-defined]
    return left, right


def base_and_view_of_nonleaf(gen: torch.Generator) -> tuple[Any, ...]:
    x = n(4)(gen)
    return x, x.view(4)


def storage_only(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(4, generator=gen)
    return x, x.detach()


def detached_of_nonleaf(gen: torch.Generator) -> tuple[Any, ...]:
    x = n(4)(gen)
    return x, x.detach()


def detached_of_leaf(gen: torch.Generator) -> tuple[Any, ...]:
    x = g(4)(gen)
    return x.detach(), x


def data_of_plain(gen: torch.Generator) -> tuple[Any, ...]:
    """Storage only, and each with a version counter of its own."""
    x = torch.randn(6, generator=gen)
    return x[1:5].data, x[2:6]


def by_set(x: Tensor) -> Tensor:
    """A tensor over the storage of ``x`` that autograd relates to nothing."""
    return torch.empty(0).set_(x.untyped_storage(), 0, (4,), (1,))  # type: ignore[call-overload]


def view_and_detached(gen: torch.Generator) -> tuple[Any, ...]:
    x = n(6)(gen)
    view = x.view(6)[:4]
    view.source = x.source  # type: ignore[attr-defined]
    return view, x.detach()[:4]


def view_and_set(gen: torch.Generator) -> tuple[Any, ...]:
    view, _ = view_and_detached(gen)
    return view, by_set(view)


def view_of_leaf_and_detached(gen: torch.Generator) -> tuple[Any, ...]:
    x = g(6)(gen)
    return x.view(6)[:4], x.detach()[:4]


def set_and_plain(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(4, generator=gen)
    return x, by_set(x)


def set_and_weight(gen: torch.Generator) -> tuple[Any, ...]:
    return *set_and_plain(gen), g(4)(gen)


def set_and_leaf(gen: torch.Generator) -> tuple[Any, ...]:
    x = g(4)(gen)
    return by_set(x), x


def view_of_leaf(gen: torch.Generator) -> tuple[Any, ...]:
    return g(6)(gen)[:4], torch.randn(4, generator=gen)


def offset_views(gen: torch.Generator) -> tuple[Any, ...]:
    """As ``overlapping``, elsewhere in a larger storage."""
    x = torch.randn(20, generator=gen)
    return x[7:11], x[9:13]


def columns(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(4, 2, generator=gen)
    return x[:, 0], x[:, 1]


def transposed(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(3, 4, generator=gen)
    return x.t(), x[1:, ::2].t()


def transposed_nonleaf(gen: torch.Generator) -> tuple[Any, ...]:
    x = n(3, 4)(gen)
    left, right = x.t(), x[1:, ::2].t()
    left.source = x.source  # type: ignore[attr-defined]
    return left, right


def three(gen: torch.Generator) -> tuple[Any, ...]:
    """A chain of overlaps, one of them given twice, and one that is apart."""
    x = torch.randn(10, generator=gen)
    first, second, third = x[:4], x[2:6], x[4:8]
    return first, second, third, first, torch.randn(4, generator=gen)


def weighted(gen: torch.Generator) -> tuple[Any, ...]:
    """Plain views of one tensor, and a weight that requires a gradient."""
    x = torch.randn(8, generator=gen)
    return x[:4], x[2:6], g(4)(gen)


def weighted_by_storage(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(4, generator=gen)
    return x, x.detach(), g(4)(gen)


def of_other_bases(gen: torch.Generator) -> tuple[Any, ...]:
    """Both require a gradient, share memory, and are no views of one tensor."""
    x = torch.randn(6, generator=gen)
    left, right = x[:4].detach().requires_grad_(), x[2:].detach().requires_grad_()
    return left.view(4), right.view(4)  # results of earlier computation, over the leaves' memory


def other_type(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(4, generator=gen)
    return x, x.view(torch.int32)


def weighted_twice(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    x.mul_(w)
    return (y * w).sum() + x


def mutate_second(x: Tensor, y: Tensor) -> Tensor:
    before = x * 2
    y.mul_(3)
    return before + x.sin() + y


def mutate_and_return(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.add_(1)
    return x, y, x[1:], y.view(-1), x * y


def mutate_matrix(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x.sum(0) * 2 + y.sum()


def mutate_of_five(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> Any:
    b.add_(a * 2)
    d.mul_(2)
    return {"sum": a + b + c + d + e, "same": (a, d), "part": c[1:]}


def reshape_first(x: Tensor, y: Tensor) -> Tensor:
    x.unsqueeze_(0)
    return x + y


def reshape_and_write(x: Tensor, y: Tensor) -> Tensor:
    x.unsqueeze_(0)
    y.mul_(2)
    return x + y


def in_tree(x: dict[str, Any], *, y: list[Tensor]) -> Tensor:
    x["a"].mul_(2)
    return x["a"] + y[0]


def tree_of_views(gen: torch.Generator) -> Any:
    x = torch.randn(8, generator=gen)
    return ({"b": 1, "a": x[:4]},), {"y": [x[2:6]]}


def pair(build: Any) -> Any:
    return together(build)


def graph_of_input_is_untouched(model: Any, args: Any, kwargs: Any) -> Any:
    """The input that needs no gradient has a history that a backward must not walk."""
    walked = []
    args[1].register_hook(lambda grad: walked.append(1))
    model(*args).sum().backward()
    return len(walked)


def freed_history(model: Any, args: Any, kwargs: Any) -> Any:
    """A second backward through the first input's history would raise: it has been freed."""
    args[1].exp().sum().backward()
    model(*args).sum().backward()
    return "worked"


def freed(gen: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(4, generator=gen).requires_grad_()
    leaf = torch.randn(4, generator=gen).requires_grad_()
    return x, leaf.exp()


def no_grad_pattern(*specs: Any) -> Call:
    return Call(3, inputs=inputs(*specs))


CASES: list[Case] = [
    case("identity: a model that asks where its argument begins", lambda x: x * (1 + x.storage_offset()), t(3)),
    case("identity: same tensor twice at build and call", add, pair(same)),
    case("identity: same leaf twice at build and call", add, pair(same_leaf)),
    case("identity: same non-leaf twice at build and call", add, pair(same_nonleaf)),
    case("identity: same tensor twice, one mutated", mutate_first, pair(same)),
    case("identity: same non-leaf twice, one mutated", mutate_first, pair(same_nonleaf)),
    case("identity: same tensor twice, both returned", return_both, pair(same)),
    case("identity: same leaf twice, both returned", return_both, pair(same_leaf)),
    case(
        "identity: duplicated at build, distinct at call",
        add,
        pair(same_leaf),
        calls=(Call(1, inputs=inputs(g(4), g(4))),),
    ),
    case(
        "identity: the model compares its duplicated inputs, distinct at call",
        compared,
        pair(same),
        calls=(Call(1, inputs=inputs(t(4), t(4)), refused=SHARED),),
    ),
    case(
        "identity: the model compares its distinct inputs, same at call",
        compared,
        t(4),
        t(4),
        calls=(TRAIN, Call(1, inputs=pair(same), refused=SHARED)),
    ),
    *[
        case(
            f"identity: the model looks at identity by {how}, other patterns at call",
            function,
            pair(same),
            calls=(TRAIN, Call(1, inputs=inputs(t(4), t(4)), refused=SHARED)),
        )
        for how, function in (("id()", by_id), ("operator.is_", by_operator), ("a dictionary", by_dictionary))
    ],
    case(
        "identity: the model compares its inputs, as it does other things",
        lambda x, y: x * 2 if x is None or type(y) is int else x + y,
        t(4),
        t(4),
        calls=(TRAIN, Call(1, inputs=pair(same))),
    ),
    case("identity: distinct at build, same at call", add, g(4), g(4), calls=(TRAIN, Call(2, inputs=pair(same_leaf)))),
    case(
        "identity: distinct at build, same at call, both returned",
        return_both,
        t(4),
        t(4),
        calls=(TRAIN, Call(2, inputs=pair(same))),
    ),
    case(
        "identity: distinct at build, same at call, one mutated",
        mutate_first,
        t(4),
        t(4),
        calls=(TRAIN, Call(2, inputs=pair(same), refused=SHARED)),
    ),
    case(
        "identity: distinct at build, overlapping at call, one mutated",
        mutate_first,
        t(4),
        t(4),
        calls=(TRAIN, Call(2, inputs=pair(overlapping), refused=SHARED)),
    ),
    case(
        "identity: distinct at build, same storage but disjoint at call, one mutated",
        mutate_first,
        t(4),
        t(4),
        calls=(TRAIN, Call(2, inputs=pair(disjoint))),
    ),
    case("identity: aliasing inputs, none mutated", add, pair(overlapping)),
    case("identity: aliasing inputs, one mutated, overlapping", mutate_first, pair(overlapping)),
    case("identity: aliasing inputs, one mutated, disjoint", mutate_first, pair(disjoint)),
    case("identity: aliasing inputs, one mutated, base and view", mutate_first, pair(base_and_view)),
    case("identity: aliasing inputs, one mutated, differentiable views", mutate_first, pair(views_of_nonleaf)),
    case("identity: aliasing inputs, one mutated, differentiable base and view", mutate_first, pair(base_and_view_of_nonleaf)),
    case("identity: aliasing inputs, both mutated", mutate_both, pair(overlapping)),
    case("identity: aliasing inputs, both mutated, differentiable", mutate_both, pair(views_of_nonleaf)),
    case("identity: aliasing inputs by storage only, one mutated", mutate_first, pair(storage_only)),
    case("identity: aliasing inputs, mutated under no_grad", mutate_first_no_grad, pair(overlapping)),
    case("identity: aliasing inputs, mutated under no_grad, differentiable", mutate_first_no_grad, pair(views_of_nonleaf)),
    case("identity: aliasing inputs, the other mutated", mutate_second, pair(overlapping)),
    case("identity: aliasing inputs, the other mutated, differentiable", mutate_second, pair(views_of_nonleaf)),
    case("identity: aliasing inputs, a detached alias mutated", mutate_second, pair(detached_of_nonleaf)),
    case("identity: aliasing inputs, a detached alias of a leaf mutated", mutate_first, pair(detached_of_leaf)),
    case("identity: aliasing inputs, written by alias and used by the tensor", mutate_second, pair(storage_only)),
    case("identity: aliasing inputs, separate version counters", mutate_both, pair(data_of_plain)),
    case("identity: aliasing inputs by set_, one mutated", mutate_first, pair(view_and_set)),
    case("identity: aliasing inputs by set_, the one of set_ mutated", mutate_second, pair(view_and_set)),
    case("identity: aliasing inputs by set_, of a leaf", mutate_first, pair(set_and_leaf)),
    case("identity: aliasing inputs by set_, weighted", weighted_twice, pair(set_and_weight)),
    case("identity: aliasing inputs by set_, without gradients", mutate_second, pair(set_and_plain)),
    case(
        "identity: aliasing inputs, detached at build, by set_ at call",
        mutate_second,
        pair(view_and_detached),
        calls=(
            TRAIN,
            Call(2, inputs=pair(view_and_set), refused="does not count as a write"),
        ),
    ),
    case(
        "identity: aliasing inputs, one of a detached alias mutated, views of a leaf at call",
        mutate_first,
        pair(view_and_detached),
        calls=(TRAIN, Call(2, inputs=pair(view_of_leaf_and_detached), refused="is a view of a leaf that requires a gradient")),
    ),
    case(
        "identity: distinct at build, a view of a leaf at call, mutated",
        mutate_first,
        n(4),
        t(4),
        calls=(TRAIN, Call(2, inputs=pair(view_of_leaf), refused="is a view of a leaf that requires a gradient")),
    ),
    case("identity: aliasing inputs, mutated and returned", mutate_and_return, pair(overlapping)),
    case("identity: aliasing inputs, mutated and returned, differentiable", mutate_and_return, pair(views_of_nonleaf)),
    case("identity: aliasing inputs, mutated and returned, base and view", mutate_and_return, pair(base_and_view)),
    case(
        "identity: aliasing inputs, mutated and returned, differentiable base and view",
        mutate_and_return,
        pair(base_and_view_of_nonleaf),
    ),
    case("identity: aliasing inputs, mutated and returned, by storage only", mutate_and_return, pair(storage_only)),
    case("identity: aliasing inputs, transposed and strided", mutate_matrix, pair(transposed)),
    case("identity: aliasing inputs, transposed and strided, differentiable", mutate_matrix, pair(transposed_nonleaf)),
    case("identity: aliasing inputs, columns that share no byte", mutate_first, pair(columns)),
    case("identity: aliasing inputs, three in a chain, one twice", mutate_of_five, pair(three)),
    case("identity: aliasing inputs, made part of the graph", weighted_twice, pair(weighted)),
    case("identity: aliasing inputs, made part of the graph, by storage only", weighted_twice, pair(weighted_by_storage)),
    case("identity: aliasing inputs, of other bases", mutate_first, pair(of_other_bases)),
    case("identity: aliasing inputs, of another element type", lambda x, y: (x.mul_(2), y + 1)[1], pair(other_type)),
    case("identity: aliasing inputs, in a tree", in_tree, Given(tree_of_views)),
    case("identity: aliasing inputs, sizes changed in place", reshape_first, pair(base_and_view)),
    case("identity: aliasing inputs, sizes changed in place and written", reshape_and_write, pair(base_and_view)),
    # A10: who shares what with whom is checked at every call.
    case(
        "identity: aliasing inputs, elsewhere in a larger storage at call",
        mutate_first,
        pair(overlapping),
        calls=(TRAIN, Call(2, inputs=pair(offset_views)), Call(3, training=False, grad=False, inputs=pair(offset_views))),
    ),
    case(
        "identity: aliasing inputs, other patterns at call",
        mutate_first,
        pair(overlapping),
        calls=(
            TRAIN,
            Call(2, inputs=inputs(t(4), t(4)), refused=r"\b[xy]\b.*\b[xy]\b"),
            Call(3, inputs=pair(same), refused=r"\b[xy]\b.*\b[xy]\b"),
            Call(4, inputs=pair(disjoint), refused=r"\b[xy]\b.*\b[xy]\b"),
        ),
    ),
    case(
        "identity: aliasing inputs, other patterns at call, differentiable",
        mutate_first,
        pair(views_of_nonleaf),
        calls=(
            TRAIN,
            Call(2, inputs=inputs(n(4), n(4)), refused=r"\b[xy]\b.*\b[xy]\b"),
            Call(3, inputs=pair(detached_of_nonleaf), refused=r"\b[xy]\b.*\b[xy]\b"),
        ),
    ),
    case(
        "identity: same tensor twice, one mutated, distinct at call",
        mutate_first,
        pair(same),
        calls=(TRAIN, Call(2, inputs=inputs(t(4), t(4)), refused=r"\b[xy]\b.*\b[xy]\b")),
    ),
    case("identity: same tensor twice, sizes changed in place", reshape_first, pair(same)),
    case(
        "identity: distinct at build, same at call, sizes changed in place",
        reshape_first,
        t(4),
        t(4),
        calls=(TRAIN, Call(2, inputs=pair(same), refused=r"\b[xy]\b.*\b[xy]\b")),
    ),
    case(
        "identity: distinct at build, columns of one matrix at call, one mutated",
        mutate_first,
        pair(columns),
        calls=(TRAIN, Call(2, inputs=pair(columns))),
    ),
    case("identity: aliasing inputs, returned", return_both, pair(base_and_view)),
    case("identity: non-leaf inputs", add, n(4), n(4)),
    case("identity: a leaf and a non-leaf", add, g(4), n(4)),
    case("identity: built from leaves, called with non-leaves", add, g(4), g(4), calls=(no_grad_pattern(n(4), n(4)),)),
    case("identity: built from non-leaves, called with leaves", add, n(4), n(4), calls=(no_grad_pattern(g(4), g(4)),)),
    case("identity: an input that never needs a gradient is detached", only_first_differentiable, g(4), n(4)),
    case(
        "identity: backward does not walk the history of a detached input",
        only_first_differentiable,
        g(4),
        n(4),
        calls=(Call(1, act=graph_of_input_is_untouched),),
    ),
    case(
        "identity: the history of a detached input may be gone",
        only_first_differentiable,
        pair(freed),
        calls=(Call(1, act=freed_history),),
    ),
    case("identity: an unused input", first_unused, g(4), g(4)),
    case("identity: gradient wanted on a subset at build", add, g(4), t(4)),
    case(
        "identity: gradient pattern at call: fewer than at build",
        add,
        g(4),
        g(4),
        calls=(TRAIN, no_grad_pattern(g(4), t(4)), no_grad_pattern(t(4), g(4)), no_grad_pattern(t(4), t(4))),
    ),
    case(
        "identity: gradient pattern at call: fewer, a result of each input",
        lambda x, y: (x * y, x.sin(), y.cos()),
        g(4),
        g(4),
        calls=(TRAIN, no_grad_pattern(g(4), t(4)), no_grad_pattern(t(4), g(4)), no_grad_pattern(t(4), t(4))),
    ),
    case(
        "identity: gradient pattern at call: more than at build",
        add,
        g(4),
        t(4),
        calls=(TRAIN, Call(3, inputs=inputs(g(4), g(4)), refused="requires a gradient")),
    ),
    case(
        "identity: gradient pattern at call: none at build",
        add,
        t(4),
        t(4),
        calls=(TRAIN, Call(3, inputs=inputs(g(4), t(4)), refused="requires a gradient")),
    ),
    case(
        "identity: gradient pattern at call: swapped",
        add,
        g(4),
        t(4),
        calls=(TRAIN, Call(3, inputs=inputs(t(4), g(4)), refused="requires a gradient")),
    ),
    case(
        "identity: gradient pattern at call: fewer, with a mutated non-leaf",
        mutate_first,
        n(4),
        g(4),
        calls=(TRAIN, no_grad_pattern(t(4), g(4)), no_grad_pattern(n(4), t(4)), no_grad_pattern(t(4), t(4))),
    ),
    case(
        "identity: gradient pattern at call: fewer, outputs that alias",
        lambda x, y: (x.view(2, 2), (y * 2).view(2, 2), y + 1),
        g(4),
        g(4),
        calls=(TRAIN, no_grad_pattern(g(4), t(4)), no_grad_pattern(t(4), g(4)), no_grad_pattern(t(4), t(4))),
    ),
    case(
        "identity: more gradients than at build, under no_grad",
        add,
        g(4),
        t(4),
        calls=(Call(3, training=False, grad=False, inputs=inputs(g(4), g(4))),),
    ),
    case("identity: an autograd.Function returns its argument", lambda x: Unchanged.apply(x), g(2, 2)),
    case("identity: an autograd.Function returns its argument, non-leaf", lambda x: Unchanged.apply(x), n(2, 2)),
    case("identity: an autograd.Function returns its argument, no gradient", lambda x: Unchanged.apply(x), t(2, 2)),
    case("identity: an autograd.Function returns two arguments", lambda x, y: Swapped.apply(x, y), n(2, 2), t(2, 2)),
    case("identity: an autograd.Function writes to an intermediate", dirty_intermediate, n(2, 2)),
    case("identity: an autograd.Function writes to an argument", lambda x: Dirty.apply(x), n(2, 2)),
]
