"""Rejects writes to a gradient (``grad_output``) that autograd has also passed to an input, or whose
elements share memory.

Custom backwards and hooks write to gradients. A write to a tangent of the caller is traced, and the
bundle does it too.
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

from ..api.backward_writers import BackwardWriters
from ..api.counting import count_call
from ..api.fake_tensors import overlaps_itself
from ..api.patching import caller, hooked
from ..api.tensor_hooks import note_hook
from ..api.writes import writes_by_name

_AOT_AUTOGRAD = "torch._functorch._aot_autograd.graph_capture_wrappers"
"""The module that computes the gradients of a joint graph."""
"""The sequence number of what autograd runs first."""


class GradientWriteError(Exception):
    """A custom backward or a hook writes to a gradient that a graph cannot write to as eager does.

    ``writer`` says which of the two, and ``gradient`` what is special about the gradient. ``node`` is
    the node that writes, if Dynamo has traced the backward. Otherwise ``line`` is the source line of
    the definition; empty if it is not known.
    """

    def __init__(self, function: Any = None, gradient: str = "that is also used elsewhere") -> None:
        is_own = isinstance(function, type) and issubclass(function, torch.autograd.Function)
        self.gradient = gradient
        self.writer = "an autograd.Function whose backward" if is_own else "a hook that"
        super().__init__(
            "a custom backward writes to its argument grad_output" if is_own else "a hook writes to the gradient that it is given"
        )
        code = function.backward if is_own else function
        traced = next(_graphs(code), None)
        self.node = None if traced is None else _first_write(traced.graph)
        self.line = "" if traced is not None else definition(code)


@contextlib.contextmanager
def refused_gradient_writes() -> Iterator[BackwardWriters]:
    """While a joint graph is traced, reject a write to a gradient that an input has already got, or
    whose elements share memory.

    In eager the input is a parameter, which keeps the gradient from before, or another result,
    whose backward sees the write. A graph has one value for both. Eager refuses to write to an
    expanded gradient, or writes to all elements that share an address; a graph writes to a copy.
    Yields what writes to the model's state.

    Raises:
        GradientWriteError: has the source line.
    """
    apply: Callable[..., Any] = BackwardCFunction.apply
    grad: Callable[..., Any] = torch.autograd.grad
    register: Callable[..., Any] = torch.Tensor.register_hook
    writers: dict[int, Any] = {}
    watched_hooks: list[Callable[[Any], Any]] = []
    state = BackwardWriters(_writes_to)

    def checked(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if caller().f_globals.get("__name__") != _AOT_AUTOGRAD:
            return grad(outputs, inputs, *args, **kwargs)
        passed: list[tuple[torch.Tensor, list[int]]] = []
        state.begin(caller().f_locals["primals"], outputs)
        hooks = [register(x, lambda gradient: passed.append((gradient, _writes_to(gradient)))) for x in inputs if x.requires_grad]
        found = grad(outputs, inputs, *args, **kwargs)
        for hook in hooks:
            hook.remove()
        for gradient, before in passed:
            if _writes_to(gradient) != before:
                raise GradientWriteError(writers.get(_memory(gradient)))
        return found

    def watched(function: Any, *gradients: Any) -> Any:
        count_call("aot-gradient-writes")
        return noted(function._forward_cls, function, gradients, lambda: apply(function, *gradients))

    def registered(tensor: Any, hook: Callable[[Any], Any]) -> Any:
        def watched_hook(gradient: Any) -> Any:
            return noted(hook, tensor, [gradient], lambda: hook(gradient))

        if hook in watched_hooks:  # register_hook of a tensor subclass calls itself again
            return register(tensor, hook)
        note_hook(tensor)
        watched_hooks.append(watched_hook)
        return register(tensor, watched_hook)

    def noted(writer: Any, function: Any, gradients: Any, run: Callable[[], Any]) -> Any:
        before = [(gradient, _writes_to(gradient)) for gradient in gradients if isinstance(gradient, torch.Tensor)]
        with state.watch(function):
            result = run()
        written = [gradient for gradient, count in before if _writes_to(gradient) != count]
        if any(map(overlaps_itself, written)):
            raise GradientWriteError(writer, "whose elements share memory, as the backward of sum() makes it")
        writers.update({_memory(gradient): writer for gradient in written})
        return result

    with (
        hooked("aot-gradient-writes", BackwardCFunction, "apply", watched),
        hooked("aot-gradient-writes", torch.autograd, "grad", checked),
        hooked("aot-gradient-writes", torch.Tensor, "register_hook", registered),
    ):
        yield state


def _memory(gradient: torch.Tensor) -> int:
    """A number that views of one tensor have in common."""
    plain = gradient.elem if isinstance(gradient, FunctionalTensor) else gradient
    return int(plain.untyped_storage()._cdata)


def _writes_to(gradient: torch.Tensor) -> list[int]:
    """How often each plain tensor of a gradient has been mutated."""
    if isinstance(gradient, FunctionalTensor):
        return [torch._functionalize_mutation_counter(gradient.elem)]
    names = gradient.__tensor_flatten__()[0] if hasattr(gradient, "__tensor_flatten__") else []
    return [count for name in names for count in _writes_to(getattr(gradient, name))]


def _graphs(function: Any, depth: int = 3) -> Iterator[torch.fx.GraphModule]:
    """The graphs that a function of torch's closes over, or that functions in its closure do."""
    for cell in getattr(function, "__closure__", None) or ():
        if isinstance(cell.cell_contents, torch.fx.GraphModule):
            yield cell.cell_contents
        elif depth:
            yield from _graphs(cell.cell_contents, depth - 1)


def _first_write(graph: torch.fx.Graph) -> torch.fx.Node | None:
    """The first node that writes to an input, or to a view of one."""
    for node in graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_method", "call_function") and writes_by_name(name, node.kwargs):
            return node  # type: ignore[no-any-return]
    return None


def definition(function: Any) -> str:
    """The source line of the definition of a forward, backward or hook; empty for an object without code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
    return f'File "{code.co_filename}", line {code.co_firstlineno}, in {function.__qualname__}: {line}'
