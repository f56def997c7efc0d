"""One step of an optimizer for one parameter, as a module that a build can trace.

The numbers of a group (learning rate, betas) are tensors without dimensions, which the step reads (``item()``). So they
are symbols in the trace, and no constants. A branch on such a number is decided by its value at build, and noted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import sympy
import torch

from aotpack_loader.errors import CaptureError

from .. import origin
from .._torch.api import shape_env
from .._torch.api.symbolic_extremes import symbolic_extremes
from .asked import AskedOptimizer, Group, step

Condition = Literal["any", "zero", "nonzero"]
"""What a number must stay, as the graph of a step assumes it."""

_NOTHING_AT_ZERO = frozenset({"weight_decay"})
"""Numbers for which a step with 0 computes what the branch for 0 does."""


class BranchError(CaptureError):
    """A step branches on the values of its state."""


class Update(torch.nn.Module):
    """Updates ``parameter`` and ``state`` in place. ``conditions`` holds by path what the last call assumed of its numbers.

    ``capturable`` takes the step that computes with tensors, which some optimizers need.
    """

    def __init__(self, asked: AskedOptimizer, group: Group, integers: Sequence[str], *, capturable: bool) -> None:
        super().__init__()
        self.conditions: dict[str, Condition] = {}
        self._asked, self._group, self._integers = asked, group, integers
        self._others = {"capturable": True} if capturable else {}

    def forward(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: dict[str, torch.Tensor],
        numbers: dict[str, torch.Tensor],
    ) -> None:
        """Args:
        parameter: of any type and sizes that the optimizer takes.
        gradient: of the same type and sizes.
        state: by name, as the optimizer keeps it for a parameter.
        numbers: by path, float64, without dimensions.
        """
        values = {path: number.item() for path, number in numbers.items()}
        self.conditions = dict.fromkeys(values, "any")
        optimizer = self._asked.fresh(self._group.traced(values, **self._others), [parameter])
        held = {name: x.item() if name in self._integers else x for name, x in state.items()}
        optimizer.state[parameter] = {**held}
        parameter.grad = gradient
        try:
            with self._decided(values), symbolic_extremes(), torch.no_grad():
                step(optimizer)
        finally:
            parameter.grad = None
        after = {name: value for name, value in optimizer.state[parameter].items() if value is not None}
        if after.keys() != state.keys():
            raise CaptureError(f"A step of {type(optimizer).__name__} adds or removes state: {sorted(after.keys() ^ state.keys())}.")
        for name, value in after.items():
            if name in self._integers:
                state[name].fill_(value)
            elif value is not state[name]:
                state[name].copy_(value)

    @contextlib.contextmanager
    def _decided(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Decide branches on numbers by their values at build."""
        symbols = {value.node.expr: path for path, value in values.items() if isinstance(value, torch.SymFloat)}
        original = torch.SymBool.__bool__

        def truth(expression: torch.SymBool) -> bool:
            if not shape_env.depends_on_data(expression):
                return original(expression)  # type: ignore[no-untyped-call]
            return self._decide(expression.node.expr, symbols)

        with shape_env.symbolic_truths(truth, lambda number: bool(number != 0.0)):
            yield

    def _decide(self, condition: sympy.Basic, symbols: Mapping[sympy.Basic, str]) -> bool:
        """The truth of a condition on numbers of the group.

        Raises:
            BranchError: it depends on other values.
            CaptureError: it compares numbers with anything but 0.
        """
        where = origin.current_line()
        if not condition.free_symbols <= symbols.keys():
            raise BranchError(f"The step branches on values of its state: {where}")
        operands = sorted(condition.args, key=lambda operand: bool(operand.free_symbols))
        if len(operands) != 2 or operands[1] not in symbols or float(operands[0]) != 0 or not isinstance(condition, (sympy.Eq, sympy.Ne)):
            raise CaptureError(f"The step compares an option with something other than 0: {condition} at {where}")
        path = symbols[operands[1]]
        is_zero = self._group.numbers[path] == 0
        if is_zero or path not in _NOTHING_AT_ZERO:
            self.conditions[path] = "zero" if is_zero else "nonzero"
        return is_zero == isinstance(condition, sympy.Eq)
