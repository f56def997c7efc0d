"""Buffers that a model replaces by assignment: the old tensor keeps its values, and the new one may share memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from devtools.harness import INFER, TRAIN, Call, Case, case, g, module_case, n


def buffers(forward: Callable[[Any, Tensor], Any]) -> Callable[[], nn.Module]:
    """A module with two buffers and this ``forward``."""

    class Assigning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("a", torch.ones(3))
            self.register_buffer("b", torch.arange(3.0))

        def forward(self, x: Tensor) -> Any:
            return forward(self, x)

    return Assigning


def reads_the_old_one(self: Any, x: Tensor) -> Tensor:
    """The backward needs the old values, too."""
    old = self.b
    self.b = x.detach().sum(0)
    return x * old + self.b


def writes_to_the_old_one(self: Any, x: Tensor) -> Tensor:
    old = self.b
    self.b = x.detach().sum(0)
    old.add_(5)
    return x * old + self.b


def distance_to_the_last(self: Any, x: Tensor) -> Tensor:
    last = self.b
    self.b = x.detach().mean(0)
    return ((x.mean(0) - last) ** 2).sum()


def power_iteration(self: Any, x: Tensor) -> Tensor:
    u = self.b
    v = F.normalize(x.detach().t() @ x.detach() @ (u + 1), dim=0)
    self.b = v.clone()
    return (x @ v) * u.sum()


def swapped(self: Any, x: Tensor) -> Tensor:
    self.a, self.b = self.b, self.a
    return x * self.a + self.b


def several_times(self: Any, x: Tensor) -> Tensor:
    for row in x.detach():
        self.b = self.b * 0.5 + row
    self.b.mul_(2)
    return x * self.b.clone()


def only_assigned(self: Any, x: Tensor) -> Tensor:
    self.b = x.detach().sum(0) * 2
    return x.sin()


def a_view_of_the_old_one(self: Any, x: Tensor) -> Tensor:
    self.b = self.b.view(3, 1).t().squeeze(0)
    return x * self.b


def an_argument(self: Any, x: Tensor) -> Tensor:
    self.b = x.detach()[0]
    return x * 2


def another_buffer(self: Any, x: Tensor) -> Tensor:
    self.a = self.b
    return x * self.a


def a_result(self: Any, x: Tensor) -> Any:
    self.b = x.detach().sum(0)
    return self.b, x * 2


def returns_the_old_one(self: Any, x: Tensor) -> Any:
    old = self.b
    self.b = x.detach().sum(0)
    return x * 2, old


def without_setattr(self: Any, x: Tensor) -> Tensor:
    self._buffers["b"] = self.b + 1
    return x * 2


class Nested(nn.Module):
    """Calls a module twice that replaces its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = buffers(distance_to_the_last)()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.layer(x)) + self.inner(x)  # type: ignore[no-any-return]


def hooked(before: Callable[[Any, Any], Any] | None = None, after: Callable[[Any, Any, Any], Any] | None = None) -> Any:
    """Makes a module that scales by a buffer, with hooks of its own."""

    def made() -> nn.Module:
        module = buffers(lambda self, x: x * self.b)()
        if before is not None:
            module.register_forward_pre_hook(before)
        if after is not None:
            module.register_forward_hook(after)
        return module

    return made


def assigned_before(self: Any, args: Any) -> None:
    self.b = self.b * 0.5 + args[0].detach().mean(0)


def assigned_after(self: Any, args: Any, result: Tensor) -> Tensor:
    """The call and the hook have read the old values, and the backward needs them."""
    old, self.b = self.b, self.b * 0.5 + result.detach().mean(0)
    return result * old + self.b


class Untied(nn.Module):
    """Two names of one buffer; the model assigns to one, which has its own values from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.ones(3))
        self.inner = buffers(reads_the_old_one)()
        self.inner.b = self.a

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.a  # type: ignore[no-any-return]


class BothAssigned(Untied):
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        self.a = self.a * 2
        return y * self.a  # type: ignore[no-any-return]


class Unregistered(nn.Module):
    """Assigns to a buffer of a module that is no submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.ones(3))
        self.others = [buffers(only_assigned)()]

    def forward(self, x: Tensor) -> Tensor:
        return self.others[0](x) * self.others[0].b + self.a  # type: ignore[no-any-return]


WORKS = (
    reads_the_old_one,
    writes_to_the_old_one,
    distance_to_the_last,
    power_iteration,
    swapped,
    several_times,
    only_assigned,
    a_view_of_the_old_one,
    an_argument,
    another_buffer,
    a_result,
    returns_the_old_one,
)
_LINE = r"[at .*cases/assignments.py:\d+"
REFUSED = {
    "without_setattr": "assigns a new tensor to a buffer or parameter",
    "of no submodule": rf"assigns a new tensor to a buffer or parameter.*\{_LINE}",
    "both of two names": rf"assigns a new tensor to the buffer '(inner\.b|a)', which shared memory with .*\{_LINE}",
    "one of two names": rf"assigns a new tensor to the buffer 'inner.b', which shared memory with a.*\{_LINE}",
}
REFUSED = {f"assigned buffers: {name}": text for name, text in REFUSED.items()} | {
    "assigned buffers: an argument detached in place": r"detach_\(\) on an argument.*use detach\(\).*assignments.py:\d+"
}
CALLS = (TRAIN, Call(2), INFER, Call(3))


def detached_in_place(x: Tensor) -> Tensor:
    x.detach_()
    return x * 2


CASES: list[Case] = [
    *(module_case(f"assigned buffers: {f.__name__}", buffers(f), g(4, 3), calls=CALLS) for f in WORKS),
    module_case("assigned buffers: without_setattr", buffers(without_setattr), g(4, 3)),
    *(
        module_case(f"assigned buffers: in a module called twice, {end}", Nested, g(4, 3), calls=CALLS, front_ends=(end,))
        for end in ("export", "trace")
    ),
    module_case("assigned buffers: in a pre-hook of the model", hooked(before=assigned_before), g(4, 3), calls=CALLS),
    module_case("assigned buffers: in a hook of the model", hooked(after=assigned_after), g(4, 3), calls=CALLS),
    module_case("assigned buffers: in both hooks of the model", hooked(assigned_before, assigned_after), g(4, 3), calls=CALLS),
    module_case("assigned buffers: one of two names", Untied, g(4, 3), calls=CALLS),
    module_case("assigned buffers: both of two names", BothAssigned, g(4, 3), calls=CALLS),
    module_case("assigned buffers: of no submodule", Unregistered, g(4, 3), calls=CALLS),
    case("assigned buffers: an argument detached in place", detached_in_place, n(3)),
]
