"""Finds the operator where a wrong result begins, for the error of a check.

For compiled code the graph's own values are the measure: its halves run once interpreted and once
compiled on the same inputs. Where the graph itself is wrong, each value that eager computes is
looked for among the values of the graph.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.overrides import TorchFunctionMode

from aotpack_loader.runtime.autograd import Executable
from aotpack_loader.runtime.call import MethodCall

from ..capture import source_lines
from ..graph import computed_from, source_line

Values = list[Any]
_TOLERANCE = 1e-3


class Recorder:
    """Records what the graphs of a method take and return, by half (``forward``, ``backward``)."""

    def __init__(self, call: MethodCall) -> None:
        self.inputs: dict[str, Values] = {}
        self.outputs: dict[str, Values] = {}
        call.forward = self._recorded("forward", call.forward)
        if (bridge := call.differentiable) is not None:
            bridge.forward = call.forward
            bridge.backward = self._recorded("backward", bridge.backward)
            bridge.retaining = self._recorded("backward", bridge.retaining)

    def _recorded(self, half: str, executable: Executable) -> Executable:
        def run(values: Values) -> Values:
            self.inputs.setdefault(half, _copies(values))
            outputs = executable(values)
            self.outputs.setdefault(half, _copies(outputs))
            return outputs

        return run


def executables(call: MethodCall) -> dict[str, Executable]:
    """The code of a method by half."""
    found = {"forward": call.forward}
    if call.differentiable is not None:
        found["backward"] = call.differentiable.backward
    return found


def in_compiled_code(recorded: Recorder, compiled: dict[str, Executable], graphs: dict[str, GraphModule]) -> str:
    """Where compiled code begins to differ from its graph, or an empty string.

    That is among the operators behind the first wrong output that are not behind a right one.
    """
    for half, inputs in recorded.inputs.items():
        with torch.no_grad():
            outputs = compiled[half](_copies(inputs))
        returned = list(graphs[half].graph.output_node().args[0])  # type: ignore[arg-type]
        right: set[Node] = set()
        wrong: list[Node] = []
        for node, ours, theirs in zip(returned, recorded.outputs[half], outputs, strict=True):
            if not isinstance(node, Node):
                continue
            if _are_close(ours, theirs):
                right |= computed_from([node])
            else:
                wrong.append(node)
        if wrong:
            order = {node: i for i, node in enumerate(graphs[half].graph.nodes)}
            first = min(wrong, key=order.__getitem__)
            nodes = sorted((node for node in computed_from([first]) - right if node.op == "call_function"), key=order.__getitem__)
            return _described(half, nodes or [first])
    return ""


def in_graph(graphs: dict[str, GraphModule], recorded: Recorder, run_eager: Callable[[], object]) -> str:
    """Eager's first operator whose value, or whose gradient, no node of the graph has; or an empty string."""
    computed = _Computed()
    with computed:
        run_eager()
    for half, eager in (("forward", computed.values), ("backward", list(reversed(computed.gradients)))):
        if half not in recorded.inputs:
            continue
        known = _Known(graphs[half], recorded.inputs[half])
        for name, line, value in eager:
            if value.is_floating_point() and value.numel() and not known.has(value):
                what = "result" if half == "forward" else "gradient"
                return f"the {what} of {name}{f' at {line}' if line else ''}"
    return ""


def of_gradient(backward: GraphModule, position: int) -> str:
    """The operator of the backward graph that returns a gradient."""
    node = backward.graph.output_node().args[0][position]  # type: ignore[index]
    return _described("backward", [node]) if isinstance(node, Node) else ""


class _Computed(TorchFunctionMode):
    """Keeps what torch's functions return in eager, and its gradients, with the user's lines."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[tuple[str, str, torch.Tensor]] = []
        self.gradients: list[tuple[str, str, torch.Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.grad_fn is not None:
            name, line = getattr(func, "__name__", str(func)), source_lines.of_stack(traceback.extract_stack())
            with torch._C.DisableTorchFunction():
                self.values.append((name, line, result.detach().clone()))
                result.register_hook(lambda gradient: self.gradients.append((name, line, gradient.detach().clone())))
        return result


class _Known:
    """The values of a graph's nodes."""

    def __init__(self, graph: GraphModule, inputs: Values) -> None:
        self._values: dict[int, list[torch.Tensor]] = {}
        keep = self._values

        class _Keeping(Interpreter):
            def run_node(self, node: Node) -> Any:
                result = super().run_node(node)
                for value in result if isinstance(result, (tuple, list)) else (result,):
                    if isinstance(value, torch.Tensor):
                        keep.setdefault(value.numel(), []).append(value.detach().clone())
                return result

        with torch.no_grad():
            _Keeping(graph).run(*_copies(inputs))

    def has(self, value: torch.Tensor) -> bool:
        """Whether a node has this value, in any shape."""
        flat = value.flatten().sort().values
        return any(
            _are_close(flat, other.flatten().to(flat.dtype).sort().values) for other in self._values.get(value.numel(), ())
        )


def _described(half: str, nodes: Sequence[Node]) -> str:
    ends = [f"{node.name} ({node.target})" + (f" at {line}" if (line := source_line(node)) else "") for node in nodes]
    if len(ends) == 1:
        return f"{half}: {ends[0]}"
    return f"{half}: between {ends[0]} and {ends[-1]}"


def _are_close(a: Any, b: Any) -> bool:
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return torch.equal(a, b)
    scale = float(a.double().abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() and a.is_floating_point() else 1.0
    return torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * min(scale, 1e30), equal_nan=True)


def _copies(values: Sequence[Any]) -> Values:
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value for value in values]
