"""Fixes how Dynamo traces an ``autograd.Function``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch._dynamo.variables import TensorVariable, TupleVariable
from torch._dynamo.variables.misc import AutogradFunctionVariable

from ...api.patching import patched
from ...refusals.undefined_gradients import UndefinedGradientError, asks_for_none


@contextlib.contextmanager
def separate_results_from_arguments() -> Iterator[None]:
    """If a function returns an argument unchanged, return another tensor, as eager does.

    Eager returns ``x.detach()`` if the argument requires a gradient, else a view of the argument.
    If gradients are recorded, Dynamo traces an operator, whose results are never its arguments.
    """
    apply = AutogradFunctionVariable.call_apply

    def applied(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        result = apply(self, tx, args, kwargs).realize()
        if type(result) is TupleVariable and asks_for_none(self.fn_cls):
            differentiable = [item for item in result.items if getattr(item.realize(), "requires_grad", False)]
            if len(differentiable) > 1:
                raise UndefinedGradientError(self.fn_cls)
        values = [value.realize() for value in (*args, *kwargs.values())]
        proxies = {value.as_proxy().node for value in values if isinstance(value, TensorVariable)}
        if type(result) is TupleVariable:
            return TupleVariable([_copied_if_input(tx, item.realize(), proxies) for item in result.items])
        return _copied_if_input(tx, result, proxies)

    with patched("dynamo-results-of-functions", AutogradFunctionVariable, "call_apply", applied):
        yield


def _copied_if_input(tx: Any, result: Any, proxies: set[Any]) -> Any:
    if not isinstance(result, TensorVariable) or result.as_proxy().node not in proxies:
        return result
    if result.requires_grad:
        return result.call_method(tx, "detach", [], {})
    return result.call_method(tx, "view_as", [result], {})
