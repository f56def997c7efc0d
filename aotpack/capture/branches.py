"""Python branches on truth values of tensors: traced the way they go on the example inputs, with a check of it in the graph.

A trace follows one way of an ``if``. Where the user agrees (``branches="example"``), the model is run once on copies of its
example inputs. The truth values that Python reads of tensors there (``if tensor:``, ``tensor.all().item()``), and of comparisons
of their numbers (``if tensor.item() < 5:``, :mod:`.numbers`), are taken for given while tracing. The graphs assert them: a call
on which a branch would go another way fails before anything is written.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

from aotpack_loader.runtime.branches import ANOTHER_WAY

from .._torch_compat import SideEffectError
from .._torch_compat.constants import KnownConstants
from . import numbers, places
from .eager import run_on_copies


@dataclass(frozen=True)
class Branch:
    """A truth value that was read, and the ``file:line: source`` that read it, be it the user's own or a library's."""

    value: bool
    where: str


def observe(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Branch]:
    """The truth values that Python reads in one run on copies of the example inputs and of the state, in order."""
    found: list[Branch] = []

    def read(function: Callable[..., Any], tensor: torch.Tensor) -> bool:
        found.append(Branch(function(tensor), places.here()))
        return found[-1].value

    def note(value: bool, where: str) -> None:
        found.append(Branch(value, where))

    constants = KnownConstants()
    with constants, _Numbers(constants, numbers.numbered(note)), _Reads(read):
        run_on_copies(model, args, kwargs)
    return found


def follow(model: torch.nn.Module, branches: Sequence[Branch], *, of_numbers: bool = True) -> list[Branch]:
    """From now on, runs of ``model`` read the values of ``branches``, and assert them; gives those that the last run read.

    A model that knows that it is traced may leave out some that it read on the example inputs, so each line has its own queue.
    Set as an attribute of the instance. ``of_numbers``: also those of numbers; else the run fails at the first one.
    """
    forward = model.forward
    taken: list[Branch] = []

    @functools.wraps(forward)  # front ends ask for its parameters
    def followed(*args: Any, **kwargs: Any) -> Any:
        taken.clear()
        left: dict[str, deque[Branch]] = defaultdict(deque)
        for branch in branches:
            left[branch.where].append(branch)

        def take(where: str) -> Branch:
            if not left[where]:
                raise SideEffectError(f"{where}: reads a truth value that it did not read when it ran on the example inputs")
            taken.append(left[where].popleft())
            return taken[-1]

        def read(function: Callable[..., Any], tensor: torch.Tensor) -> bool:
            branch = take(places.here())
            torch.ops.aten._assert_async.msg((tensor.bool() == branch.value).reshape(()), _message(branch))
            return branch.value

        def decide(expression: torch.SymBool, where: str) -> bool:
            if not of_numbers:
                raise SideEffectError(f"{where}: compares a number that is read off a tensor, which only direct tracing asserts")
            branch = take(where)
            message = _message(branch).replace("\\", "/").replace('"', "'")  # Inductor writes it into C++ as it is
            torch.ops.aten._assert_scalar.default(expression if branch.value else torch.sym_not(expression), message)
            return branch.value

        with numbers.decided(decide), _Reads(read):
            return forward(*args, **kwargs)

    model.forward = followed
    return taken


def _message(branch: Branch) -> str:
    return f"{branch.where} [{branch.value}]: {ANOTHER_WAY}"


class _Numbers(TorchFunctionMode):
    """Lets ``made`` make the numbers that Python reads off tensors, but not off ``constants``."""

    def __init__(self, constants: KnownConstants, made: Callable[[Any], Any]) -> None:
        super().__init__()
        self._constants = constants
        self._made = made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.Tensor.item, torch.Tensor.tolist) or self._constants.knows(args[0]):
            return result
        return pytree.tree_map_only((int, float), self._made, result)


class _Reads(TorchFunctionMode):
    """Lets ``read(function, tensor)`` answer where Python reads a tensor's truth value."""

    def __init__(self, read: Callable[[Callable[..., Any], torch.Tensor], bool]) -> None:
        super().__init__()
        self._read = read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.__bool__, torch.Tensor.is_nonzero) or (
            func is torch.Tensor.item and args[0].dtype == torch.bool
        ):
            return self._read(func, args[0])
        if func in _COMPARED:
            return self._compared(_COMPARED[func], *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _compared(
        self, elementwise: Callable[..., torch.Tensor], one: torch.Tensor, other: torch.Tensor, *rest: Any, **named: Any
    ) -> bool:
        """Whether two tensors are equal: of other sizes they are not, and one is equal to itself."""
        if one is other:
            return True
        if elementwise is torch.eq and one.shape != other.shape:
            return False
        return self._read(torch.Tensor.__bool__, elementwise(one, other, *rest, **named).all())


_COMPARED: dict[Callable[..., Any], Callable[..., torch.Tensor]] = {
    torch.equal: torch.eq,
    torch.Tensor.equal: torch.eq,
    torch.allclose: torch.isclose,
    torch.Tensor.allclose: torch.isclose,
}
