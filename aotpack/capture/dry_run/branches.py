"""Follows Python branches on tensor values as the example takes them, with assertions in the graph.

A trace contains only one side of an ``if``. With ``branches="example"``, the model runs once on
copies of its example inputs. While tracing, Python reads the same values as in that run, and the
graphs assert them:

- truth values of tensors (``if tensor:``, ``tensor.all().item()``), and lists of them
  (``mask.tolist()``);
- truth values of comparisons of numbers from tensors (``if tensor.item() < 5:``, :mod:`.numbers`);
- whole numbers that Python itself makes from tensors (``int(tensor)``, ``range(tensor)``).

A call with another value fails before anything is written.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

from aotpack_loader.runtime.branches import BRANCH_MESSAGE

from ... import origin
from ..._torch.api.constants import KnownConstants
from ..._torch.tracing.state_assignments import SideEffectError
from . import numbers
from .eager import run_on_copies


@dataclass(frozen=True)
class Branch:
    """A value that Python read from a tensor, and the ``file:line: source`` that read it.

    The source line is the user's or a library's.
    """

    value: bool | int | float
    where: str


def observe(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Branch]:
    """Run the model on copies of the example inputs and the state.

    Return the values that Python reads, in order.
    """
    found: list[Branch] = []

    def read(function: _Read, tensor: torch.Tensor) -> Any:
        found.append(Branch(function(tensor), origin.current_line()))
        return found[-1].value

    def report(value: bool, where: str) -> None:
        found.append(Branch(value, where))

    constants = KnownConstants()
    with constants, _Numbers(constants, numbers.numbered(report)), _Reads(constants, read):
        run_on_copies(model, args, kwargs)
    return found


def follow(model: torch.nn.Module, branches: Sequence[Branch], *, of_numbers: bool = True) -> list[Branch]:
    """Make later runs of ``model`` read the values of ``branches`` and assert them.

    Returns a list that holds the branches read by the last run. A model may omit some reads while
    it is traced, so each source line has its own queue. The wrapper is set as the ``forward``
    attribute of the instance. With ``of_numbers`` false, a run fails at its first comparison of a
    number.
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
                raise SideEffectError(f"{where}: reads a value of a tensor that the run on the example inputs did not read")
            taken.append(left[where].popleft())
            return taken[-1]

        def read(function: _Read, tensor: torch.Tensor) -> Any:
            branch = take(origin.current_line())
            assert_taken(tensor, branch)
            return branch.value

        def decide(expression: torch.SymBool, frame: FrameType) -> bool:
            where = origin.line_of(frame)
            if not of_numbers:
                raise SideEffectError(
                    f"{where}: compares a number read from a tensor; only the direct front end can check it at each call"
                )
            branch = take(where)
            assert_decided(expression, branch)
            return bool(branch.value)

        constants = KnownConstants()
        with constants, numbers.decided(decide), _Reads(constants, read):
            return forward(*args, **kwargs)

    model.forward = followed
    return taken


def assert_taken(tensor: torch.Tensor, branch: Branch) -> None:
    """Assert in the graph that Python would read the value of ``branch`` from a tensor with one element."""
    torch.ops.aten._assert_async.msg(_is(tensor, branch.value), _message(branch))


def assert_decided(expression: torch.SymBool, branch: Branch) -> None:
    """Assert in the graph that a comparison of numbers read from tensors has the value of ``branch``."""
    expected = expression if branch.value else torch.sym_not(expression)
    torch.ops.aten._assert_scalar.default(expected, _message(branch))


def _is(tensor: torch.Tensor, value: bool | int | float) -> torch.Tensor:
    """Return a tensor that says whether Python would read ``value`` from a tensor with one element."""
    if isinstance(value, bool):
        return (tensor.bool() == value).reshape(())
    whole = tensor.trunc() if tensor.is_floating_point() else tensor
    return (whole == value).reshape(())


def _message(branch: Branch) -> str:
    return f"{branch.where} [{branch.value}]: {BRANCH_MESSAGE}"


class _Numbers(TorchFunctionMode):
    """Passes the numbers that Python reads from tensors through ``made``, except those from ``constants``."""

    def __init__(self, constants: KnownConstants, made: Callable[[Any], Any]) -> None:
        super().__init__()
        self._constants = constants
        self._made = made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.Tensor.item, torch.Tensor.tolist) or self._constants.knows(args[0]):
            return result
        return pytree.tree_map_only((int, float), self._made, result)


_Read = Callable[[torch.Tensor], bool | int | float]


class _Reads(TorchFunctionMode):
    """Calls ``read(function, tensor)`` in place of Python's own reads of tensors.

    These are reads of truth values and of whole numbers.
    """

    def __init__(self, constants: KnownConstants, read: Callable[[_Read, torch.Tensor], Any]) -> None:
        super().__init__()
        self._constants = constants
        self._read = read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if reads_truth(func, args):
            return self._read(func, args[0])
        if func in _WHOLE and not self._constants.knows(args[0]) and not _gives_fraction(func, args[0]):
            return self._read(func, args[0])
        if func is torch.Tensor.tolist and args[0].dtype == torch.bool and not self._constants.knows(args[0]):
            return self._list(args[0])
        if func in _COMPARED:
            return self._compared(_COMPARED[func], *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _list(self, tensor: torch.Tensor) -> Any:
        """Return truth values as a list. Each of them is read."""
        return [self._list(part) for part in tensor] if tensor.dim() else self._read(torch.Tensor.item, tensor)

    def _compared(
        self, elementwise: Callable[..., torch.Tensor], one: torch.Tensor, other: torch.Tensor, *rest: Any, **named: Any
    ) -> bool:
        """Return whether two tensors are equal or close.

        Different sizes are not equal. A tensor with NaN is neither equal nor close to itself.
        """
        if elementwise is torch.eq and one.shape != other.shape:
            return False
        return bool(self._read(torch.Tensor.__bool__, elementwise(one, other, *rest, **named).all()))


_COMPARED: dict[Callable[..., Any], Callable[..., torch.Tensor]] = {
    torch.equal: torch.eq,
    torch.Tensor.equal: torch.eq,
    torch.allclose: torch.isclose,
    torch.Tensor.allclose: torch.isclose,
}

_TRUTHS = frozenset({torch.Tensor.__bool__, torch.Tensor.is_nonzero})
_WHOLE = frozenset({torch.Tensor.__int__, torch.Tensor.__index__, torch.Tensor.__float__})


def reads_truth(function: Any, args: Sequence[Any]) -> bool:
    """Whether a function of torch with these arguments gives Python the truth value of a tensor."""
    return function in _TRUTHS or (function is torch.Tensor.item and args[0].dtype == torch.bool)


def _gives_fraction(function: Any, tensor: torch.Tensor) -> bool:
    """Whether ``float(tensor)`` is a fraction.

    It differs at nearly every call, so asserting it is of no use.
    """
    return function is torch.Tensor.__float__ and tensor.is_floating_point()
