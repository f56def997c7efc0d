"""View replay: rebuild an aliased result from its base, so that autograd and storage relations are eager's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..devices import operators
from ..errors import CorruptBundleError
from ..format import expressions, schema

Environment = Mapping[str, int]


def replayer(
    steps: list[schema.ViewStep], *, requires_grad: bool, history: bool
) -> Callable[[torch.Tensor, Environment], torch.Tensor]:
    """Compile view steps into a function of the base and the symbols.

    ``requires_grad`` is the alias's own in the original: an alias may be detached from a base that requires a gradient.
    ``history`` false replays with gradients off, as the original took the view.
    """
    compiled = [_step(step) for step in steps]

    def run(base: torch.Tensor, environment: Environment) -> torch.Tensor:
        value = base
        for step in compiled:
            value = step(value, environment)
        return value

    def replay(base: torch.Tensor, environment: Environment) -> torch.Tensor:
        if not history:
            with torch.no_grad():
                return run(base, environment).requires_grad_(requires_grad)
        value = run(base, environment)
        if base.requires_grad and not requires_grad:
            return value.detach()
        if value is base:
            return value.view(value.shape)
        return value

    return replay


def _step(step: schema.ViewStep) -> Callable[[torch.Tensor, Environment], Any]:
    function = operators.resolve(step.op)
    declared = function._schema if isinstance(function, torch._ops.OpOverload) else None
    if declared is None or not declared.arguments or declared.arguments[0].alias_info is None or declared.is_mutable:
        raise CorruptBundleError(f"{step.op} is no view operation.")
    args, kwargs, select = step.args, step.kwargs, step.select

    def run(value: torch.Tensor, environment: Environment) -> Any:
        filled = [_argument(arg, environment) for arg in args]
        result = function(value, *filled, **{key: _argument(arg, environment) for key, arg in kwargs.items()})
        return result if select is None else result[select]

    return run


def _argument(arg: Any, environment: Environment) -> Any:
    if isinstance(arg, list):
        return [_argument(item, environment) for item in arg]
    if isinstance(arg, schema.ExprArg):
        return expressions.evaluate(arg.value, environment)
    return operators.literal(arg)
