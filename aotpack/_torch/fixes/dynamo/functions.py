"""Fixes how Dynamo traces an ``autograd.Function``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch._C._functorch import get_interpreter_stack
from torch._dynamo.variables import TensorVariable, TupleVariable
from torch._dynamo.variables.misc import AutogradFunctionContextVariable, AutogradFunctionVariable
from torch.autograd import forward_ad

from ...api.patching import Replacing, patched
from ...refusals.lost_gradients import LostGradientError
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


def refuse_functions_in_transforms() -> Replacing:
    """Refuse a function in a transform of ``torch.func``; another front end traces the model.

    Dynamo asks whether an argument requires a gradient. In a transform it does not, or not yet, so
    Dynamo traces ``forward`` alone.
    """
    apply = AutogradFunctionVariable.call_apply

    def applied(self: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if _is_transformed():
            name = self.fn_cls.__qualname__
            raise LostGradientError(
                f"calls the autograd.Function {name} in a transform of torch.func, where Dynamo traces its forward alone"
            )
        return apply(self, tx, args, kwargs)

    return patched("dynamo-functions-in-transforms", AutogradFunctionVariable, "call_apply", applied)


def refuse_functions_that_write() -> Replacing:
    """Refuse a function that marks an argument as dirty; another front end traces the model.

    Dynamo traces the function as if its result were not the argument that it writes to. So the
    gradient of the function is left out where the argument is used afterwards.
    """
    look_up = AutogradFunctionContextVariable.var_getattr

    def looked_up(self: Any, tx: Any, name: str) -> Any:
        if name == "mark_dirty":
            raise LostGradientError("calls mark_dirty in an autograd.Function, whose gradient Dynamo leaves out")
        return look_up(self, tx, name)

    return patched("dynamo-functions-that-write", AutogradFunctionContextVariable, "var_getattr", looked_up)


def _is_transformed() -> bool:
    """Whether what Dynamo traces is transformed. Dynamo enters the transforms itself."""
    return bool(get_interpreter_stack()) or forward_ad._current_level >= 0
