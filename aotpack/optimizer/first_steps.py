"""Runs an optimizer in eager on small tensors, to find out what the graphs of its step must know.

An optimizer of ``torch.optim`` sets up the state of a parameter in its first step. A graph of the step takes the state
as arguments, so the bundle says what it holds before. The answers are checked: a first step from this
state must give what the first step without state gives.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema
from aotpack_loader.format.optimizers import PARAMETER

from .._torch.api.addresses import storage_address
from .asked import AskedOptimizer, Group
from .sparse import sparse_gradients
from .stepping import step

Initial = float | str
"""What every element of a tensor is: a number, or the path of an option. Or ``PARAMETER``."""

_SMALL: Final = 3
_UNLIKE: Final = 0.0123456789
"""A learning rate that no other option has."""
_NO_ARITHMETIC: Final = frozenset({
    "alias", "clone", "copy_", "detach", "empty_like", "fill_", "full_like", "lift_fresh", "ones_like", "zeros_like", "zero_",
    "_to_copy", "_local_scalar_dense", "view_as_real", "view_as_complex", "scalar_tensor", "item", "empty", "full", "zeros",
    "ones",
})  # fmt: skip


@dataclass(frozen=True)
class FirstStep:
    """What a first step sets up.

    ``state`` holds a tensor for each name, as it is after a step on a parameter of the given sizes. ``initial`` is
    what it holds before. ``integers`` are the names of integers of Python. ``first`` are numbers of
    the first step that differ from the group's.
    """

    state: Mapping[str, torch.Tensor]
    initial: Mapping[str, Initial]
    integers: Sequence[str]
    first: Mapping[str, float]


def is_elementwise(asked: AskedOptimizer, group: Group, parameter: torch.Tensor) -> bool:
    """Whether an element's update depends on this element of all tensors alone, and not on the number of dimensions."""
    sizes = torch.Size([min(size, _SMALL) for size in parameter.shape] or [1])  # one element is as good as a scalar
    own = _operators(asked, group, torch.ones(sizes, dtype=parameter.dtype))
    return None not in own and own == _operators(asked, group, torch.ones(sizes.numel(), dtype=parameter.dtype))


def _operators(asked: AskedOptimizer, group: Group, parameter: torch.Tensor) -> list[str | None]:
    """The operators of two steps; None stands for one that is not elementwise."""
    found: list[str | None] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func._schema.name.removeprefix("aten::")
            is_masked = name == "index_put_" and [index.dtype for index in args[1]] == [torch.bool]
            found.append(name if torch.Tag.pointwise in func.tags or name in _NO_ARITHMETIC or is_masked else None)
            return func(*args, **(kwargs or {}))

    optimizer = _ready(asked, group, group.traced({}), parameter)
    try:
        for _ in range(2):
            parameter.grad = torch.ones_like(parameter)
            with Seen():  # type: ignore[no-untyped-call]
                step(optimizer)
    except Exception:  # some optimizers take no parameter of one dimension
        return [None]
    return found


def first_step(asked: AskedOptimizer, group: Group, parameter: torch.Tensor) -> FirstStep:
    """What the first step sets up for a parameter of these sizes.

    Raises:
        UnsupportedError: a first step does something else than further ones do, or eager's own step fails.
    """
    numbers = {**group.numbers, **({"lr": _UNLIKE} if "lr" in group.numbers else {})}
    start, gradient = torch.randn_like(parameter), torch.randn_like(parameter)

    def stepped(numbers: Mapping[str, float], state: Mapping[str, Any] | None) -> tuple[torch.Tensor, dict[str, Any]]:
        """A parameter and its state after one step from ``state``; None: from none."""
        changed = start.clone()
        optimizer = _ready(asked, group, group.traced(numbers), changed)
        if state is not None:
            optimizer.state[changed] = {name: copy.deepcopy(value) for name, value in state.items()}
        changed.grad = gradient.clone()
        _step(asked, optimizer, parameter.shape)
        return changed, {name: value for name, value in optimizer.state[changed].items() if value is not None}

    with _Created() as created:
        after, state = stepped(numbers, None)
    initial = {name: _candidate(value, created.tensors, numbers, start) for name, value in state.items()}
    others = [{}, {"dampening": 0.0}] if "dampening" in numbers else [{}]
    for first in others:
        before = {name: _filled(value, initial[name], numbers, start) for name, value in state.items()}
        again, replayed = stepped({**numbers, **first}, before)
        if _same(again, after) and all(_same(replayed.get(name), value) for name, value in state.items()):
            integers = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
            return FirstStep({name: torch.as_tensor(value) for name, value in state.items()}, initial, integers, first)
    raise UnsupportedError(
        f"The first step of {type(asked.optimizer).__name__} cannot be in a bundle.",
        [Problem(name, "holds other values before the first step than one number or the parameter") for name in state],
        hint="Create the state of a parameter with one value in all its elements (torch.zeros_like), or as its copy.",
    )


def check_alone(asked: AskedOptimizer, group: Group, parameter: torch.Tensor) -> None:
    """Check that steps compute each parameter from the parameter, its gradient and its state alone.

    Two steps of two parameters are compared with steps of each by an optimizer of its own, to which only the state passes on.

    Raises:
        UnsupportedError: they do not.
    """
    options = group.traced({"lr": _UNLIKE} if "lr" in group.numbers else {})
    sizes = [min(size, _SMALL) for size in parameter.shape]
    begun, *gradients = ([torch.randn(sizes, dtype=parameter.dtype) for _ in range(2)] for _ in range(3))
    both = [x.clone() for x in begun]
    together = asked.fresh(options, both)
    together.state.update({x: _ready(asked, group, options, x).state[x] for x in both} if asked.constructs else {})
    for values in gradients:
        for x, value in zip(both, values, strict=True):
            x.grad = value.clone()
        _step(asked, together, sizes)
    for i, x in enumerate(begun):
        state = None
        for values in gradients:
            alone = _ready(asked, group, options, x)
            if state is not None:
                alone.state[x] = state
            x.grad = values[i].clone()
            _step(asked, alone, sizes)
            state = alone.state[x]
        if not _same(x, both[i]):
            raise UnsupportedError(
                f"A step of {type(asked.optimizer).__name__} computes a parameter from more than its gradient and its state.",
                hint="The step of a bundle knows no other parameters, and nothing that it changes elsewhere, and draws nothing.",
            )


def _step(asked: AskedOptimizer, optimizer: torch.optim.Optimizer, sizes: Sequence[int]) -> None:
    try:
        step(optimizer)
    except Exception as error:
        problems = [Problem("", f"{type(error).__name__}: {error}")]
        name = type(asked.optimizer).__name__
        raise UnsupportedError(f"A step of {name} fails in eager for a parameter of sizes {[*sizes]}.", problems) from error


def takes_sparse(asked: AskedOptimizer, group: Group, dtype: torch.dtype) -> schema.Sparse:
    """Whether an elementwise update takes sparse gradients of parameters of a type."""

    def ready(parameter: torch.Tensor, own: bool) -> torch.optim.Optimizer:
        return _ready(asked, group, group.traced({}), parameter, own=own)

    return sparse_gradients(ready, dtype)


def _ready(
    asked: AskedOptimizer, group: Group, options: Mapping[str, Any], parameter: torch.Tensor, *, own: bool = False
) -> torch.optim.Optimizer:
    """An optimizer of one parameter, with the state that its constructor makes."""
    optimizer = asked.fresh(options, [parameter], own=own)
    given = group.parameters[0]
    if asked.constructs and (state := asked.optimizer.state.get(given)):
        optimizer.state[parameter] = {name: _resized(value, given, parameter) for name, value in state.items()}
    return optimizer


def _resized(value: Any, given: torch.Tensor, parameter: torch.Tensor) -> Any:
    """A state of ``given`` for another parameter."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.full_like(parameter, value.reshape(-1)[0].item()) if value.shape == given.shape else value.clone()


class _Created(TorchDispatchMode):
    """Keeps a copy of each tensor as it is when it is first seen."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: dict[int, torch.Tensor] = {}
        self._alive: list[torch.Tensor] = []  # so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            self._keep(tensor)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self._keep(tensor)
        return result

    def _keep(self, tensor: object) -> None:
        if isinstance(tensor, torch.Tensor) and (address := storage_address(tensor)) not in self.tensors:
            self.tensors[address] = tensor.clone()
            self._alive.append(tensor)


def _candidate(value: Any, created: Mapping[int, torch.Tensor], numbers: Mapping[str, float], parameter: torch.Tensor) -> Initial:
    """What a state may have held before the step: what it was created with, if that is one number or the parameter, else 0."""
    if not isinstance(value, torch.Tensor):
        return float(value - 1)
    begun = created[storage_address(value)]
    if begun.is_complex() == parameter.is_complex() and _same(begun, parameter.to(begun.dtype)):
        return PARAMETER
    elements = begun.reshape(-1)
    if not elements.numel() or not bool((elements == elements[0]).all()) or complex(elements[0].item()).imag:
        return 0.0
    found = complex(elements[0].item()).real
    if found in (0.0, 1.0):
        return found
    return next((path for path, number in numbers.items() if torch.tensor(number, dtype=value.dtype).item() == found), found)


def _filled(value: Any, initial: Initial, numbers: Mapping[str, float], parameter: torch.Tensor) -> Any:
    """A state before the first step, of the type and sizes of ``value``."""
    if initial == PARAMETER:
        return parameter.to(value.dtype, copy=True)
    number = numbers[initial] if isinstance(initial, str) else initial
    return torch.full_like(value, number) if isinstance(value, torch.Tensor) else type(value)(number)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, where NaN equals NaN."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
    return bool(one == other)
