"""Rejects a custom backward that writes to a shared gradient that it is given (``grad_output``).

Tried on: torch 2.13.0.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.function import BackwardCFunction

from ..api.counting import reached
from ..api.patching import hooked
from ..api.writes import writes_by_name

_OWN, _OWN_BASE = 2, 3
"""Highest use counts of a gradient, and of its base, if only the backward holds it."""


class GradientWriteError(Exception):
    """A custom backward writes to a gradient that is used elsewhere too.

    ``node`` is the node that writes, if Dynamo has traced the backward. Otherwise ``line`` is the
    source line of its definition.
    """

    def __init__(self, function: Any) -> None:
        super().__init__("a custom backward writes to its argument grad_output")
        backward = function.backward
        traced = next((module for module in _closure(backward) if isinstance(module, torch.fx.GraphModule)), None)
        self.node = None if traced is None else _first_write(traced.graph)
        self.line = "" if traced is not None else definition(backward)


@contextlib.contextmanager
def refused_gradient_writes() -> Iterator[None]:
    """While a joint graph is traced, reject a custom backward that writes to a gradient that is
    used elsewhere.

    That is so if the gradient is the caller's tangent, or also goes to other inputs. In eager, the
    order in which autograd runs its nodes decides whether others see the write. A graph makes a new
    value.

    Raises:
        GradientWriteError: has the source line.
    """
    apply: Callable[..., Any] = BackwardCFunction.apply

    def watched(function: Any, *gradients: Any) -> Any:
        reached("aot-gradient-writes")
        shared = [(gradient, _writes_to(gradient)) for gradient in gradients if _is_shared(gradient)]
        result = apply(function, *gradients)
        if any(_writes_to(gradient) != before for gradient, before in shared):
            raise GradientWriteError(function._forward_cls)
        return result

    with hooked("aot-gradient-writes", BackwardCFunction, "apply", watched):
        yield


def _is_shared(gradient: Any) -> bool:
    if not isinstance(gradient, torch.Tensor):
        return False
    count: Callable[[Any], int] = torch.Tensor._use_count  # type: ignore[attr-defined]
    return count(gradient) > _OWN or (gradient._base is not None and count(gradient._base) > _OWN_BASE)


def _writes_to(gradient: torch.Tensor) -> list[int]:
    """How often each plain tensor of a gradient has been mutated."""
    if isinstance(gradient, FunctionalTensor):
        return [torch._functionalize_mutation_counter(gradient.elem)]
    names = gradient.__tensor_flatten__()[0] if hasattr(gradient, "__tensor_flatten__") else []
    return [count for name in names for count in _writes_to(getattr(gradient, name))]


def _closure(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


def _first_write(graph: torch.fx.Graph) -> torch.fx.Node | None:
    """The first node that writes to an input, or to a view of one."""
    for node in graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_method", "call_function") and writes_by_name(name, node.kwargs):
            return node  # type: ignore[no-any-return]
    return None


def definition(function: Any) -> str:
    """The source line of the definition of a forward or backward."""
    code = inspect.unwrap(function).__code__
    line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return f'File "{code.co_filename}", line {code.co_firstlineno}, in {function.__qualname__}: {line}'
