"""One step of an optimizer for one parameter, as a module that a build can trace.

The numbers of a group (learning rate, betas) are tensors without dimensions, which the step reads (``item()``). So they
are symbols in the trace, and no constants. A branch on such a number is decided by its value at build, and noted.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from msgspec import structs

from aotpack_loader.errors import CaptureError
from aotpack_loader.format import schema

from .. import origin
from .._torch.api import shape_env
from .._torch.api.traced_optimizers import traced_optimizers
from .asked import AskedOptimizer, Group
from .stepping import step

_NOTHING_AT_ZERO = frozenset({"weight_decay"})
"""Numbers for which a step with 0 computes what the branch for 0 does."""


class Update(torch.nn.Module):
    """Updates ``parameter`` and ``state`` in place.

    A call writes to ``conditions`` what it assumes of each number, by path. (A trace undoes what a module does to its
    attributes, so it is none.) ``capturable`` takes the step that computes with tensors, which some optimizers need.
    """

    def __init__(
        self,
        asked: AskedOptimizer,
        group: Group,
        integers: Sequence[str],
        conditions: dict[str, schema.OptimizerNumber],
        *,
        capturable: bool,
    ) -> None:
        super().__init__()
        self._note, self._known = conditions.__setitem__, conditions.__getitem__
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
        for path in values:
            self._note(path, schema.OptimizerNumber())
        optimizer = self._asked.fresh(self._group.traced(values, **self._others), [parameter])
        held = {name: x.item() if name in self._integers else self._exact(x) for name, x in state.items()}
        optimizer.state[parameter] = {**held}
        parameter.grad = gradient
        try:
            with self._decided(values), traced_optimizers(capturable=bool(self._others)), torch.no_grad():
                step(optimizer)
        finally:
            parameter.grad = None
        after = {name: value for name, value in optimizer.state[parameter].items() if value is not None}
        if after.keys() != state.keys():
            raise CaptureError(
                f"A step of {type(optimizer).__name__} adds or removes state: {sorted(after.keys() ^ state.keys())}."
            )
        for name, value in after.items():
            if name in self._integers:
                state[name].fill_(value)
            elif value is not state[name]:
                state[name].copy_(value)

    def _exact(self, state: torch.Tensor) -> torch.Tensor:
        """A number of the state: in float64 where a step computes with tensors, as eager computes with numbers of Python."""
        return state.double() if self._others and not state.dim() and state.is_floating_point() else state

    @contextlib.contextmanager
    def _decided(self, values: Mapping[str, Any]) -> Iterator[None]:
        """Decide branches on numbers by their values at build."""
        symbols = {value.node.expr: path for path, value in values.items() if isinstance(value, torch.SymFloat)}
        original = torch.SymBool.__bool__

        def truth(expression: torch.SymBool) -> bool:
            if not shape_env.depends_on_data(expression):
                return bool(original(expression))  # type: ignore[no-untyped-call]
            return self._decide(expression.node.expr, symbols)

        with shape_env.symbolic_truths(truth, lambda number: bool(number != 0.0)):
            yield

    def _decide(self, condition: sympy.Basic, symbols: Mapping[sympy.Basic, str]) -> bool:
        """The truth of a condition on a number of the group. The number may only change where it stays true, or false.

        Raises:
            CaptureError: it depends on other values.
        """
        limit, symbol = None, next(iter(condition.free_symbols), None)
        if isinstance(condition, sympy.core.relational.Relational) and condition.free_symbols <= symbols.keys():
            limit = _limit(condition.lhs - condition.rhs, symbol)
        compares = isinstance(condition, (sympy.Eq, sympy.Ne))
        if limit is None:
            raise CaptureError(f"The step of the optimizer branches on a value: {condition}. {origin.current_line()}")
        path = symbols[symbol]
        value, known = self._group.numbers[path], self._known(path)
        holds, at_limit = (bool(condition.subs(symbol, x)) for x in (value, limit))
        if compares and value != limit:
            needless = limit == 0 and path in _NOTHING_AT_ZERO
            found = known if needless else structs.replace(known, excluded=sorted({*known.excluded, limit}))
        else:
            found = _on_its_side(known, value, limit if holds == at_limit else math.nextafter(limit, value))
        self._note(path, found)
        return holds


def _limit(difference: sympy.Expr, symbol: sympy.Symbol) -> float | None:
    """Where a difference is zero; None if it is not linear."""
    slope = difference.coeff(symbol)
    rest = difference - slope * symbol
    return None if rest.free_symbols or not slope.is_number or slope == 0 else float(-rest / slope)


def _on_its_side(known: schema.OptimizerNumber, value: float, limit: float) -> schema.OptimizerNumber:
    """What a number may be that stays on its side of a limit, or on the limit."""
    minimum = limit if value >= limit else None
    maximum = limit if value <= limit else None
    lows = [x for x in (known.minimum, minimum) if x is not None]
    highs = [x for x in (known.maximum, maximum) if x is not None]
    return structs.replace(known, minimum=max(lows, default=None), maximum=min(highs, default=None))
