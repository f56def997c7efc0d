"""Makes outputs that share memory views of one result: XLA returns each result in memory of its
own.

AOTAutograd describes views that take part in a backward. For all others it relies on the memory
that a graph's operators return.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import GraphModule, Node

from aotpack_loader.devices.xla_views import unsupported_view
from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema

from ...graph import source_line
from ...graph.views import root, steps_between
from ..nested import copy_of

Views = dict[int, list[schema.ViewStep]]
"""Maps an output to the view steps that lead to it from the returned value."""


_UNSAFE = {"aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default"}
"""They return views, although their schemas do not say so."""


def refuse_shared_results(module: GraphModule, method: schema.Method) -> None:
    """Refuse results in memory that only strides or operators describe, which XLA's tensors do not have.

    Raises:
        UnsupportedError: lists the user's lines. Such a result is in an argument's memory, is one of
            several parts of ``unsafe_split``, or is an ``as_strided`` view of a turned result.
    """
    returned: list[object] = list(module.graph.output_node().args[0])  # type: ignore[arg-type]
    inputs = zip(module.graph.find_nodes(op="placeholder"), method.primals, strict=False)
    constants = {node for node, primal in inputs if isinstance(primal, schema.ConstantPrimal)}
    problems: list[Problem] = []
    for result in method.results:
        if isinstance(result, (schema.FreshResult, schema.AliasResult)) and result.output is not None:
            node = returned[result.output]
            if isinstance(node, Node) and root(node) not in constants and (reason := _reason(node, result)):
                problems.append(Problem(source_line(node) or node.name, reason))
    if problems:
        raise UnsupportedError(
            "XLA devices cannot return results that share memory in this way.", problems, hint="Return copies (clone())."
        )


def _reason(node: Node, result: schema.FreshResult | schema.AliasResult) -> str:
    base = root(node)
    if base.target is operator.getitem and isinstance(base.args[0], Node) and str(base.args[0].target) in _UNSAFE:
        return "is a part of a tensor that was split unsafely"
    if isinstance(result, schema.FreshResult):
        return "is in the memory of an argument, without being a view of it" if base.op == "placeholder" else ""
    turned = any(step.op == "aten.as_strided.default" for step in result.view) and not node.meta["val"].is_contiguous()
    return "has an as_strided view, and is not contiguous" if turned else ""


def shared_outputs(module: GraphModule, private: frozenset[int], *, parts: bool = False) -> tuple[GraphModule, Views]:
    """A copy of ``module`` that returns one value for all visible outputs in its memory, and the
    view steps to each of them. So it does for a result that is lazily conjugated or negated.

    ``private`` are the outputs that only the backward reads. ``parts``: inputs or outputs are parts
    of tensor subclasses; for these it is not known which are views of which.

    Raises:
        UnsupportedError: such a view depends on a value, or a part is in an input's memory.
    """
    copied = copy_of(module)
    output = copied.graph.output_node()
    returned = list(output.args[0])  # type: ignore[arg-type]
    together: dict[Node, list[int]] = {}
    for i, node in enumerate(returned):
        if isinstance(node, Node) and i not in private:
            together.setdefault(root(node), []).append(i)
    if parts and (
        affected := [returned[i] for base, positions in together.items() if base.op == "placeholder" for i in positions]
    ):
        problems = [Problem(source_line(node) or node.name, "is in the memory of an argument") for node in affected]
        raise UnsupportedError(
            "XLA devices cannot return parts of tensor subclasses in this way.", problems, hint="Return copies (clone())."
        )
    views: Views = {}
    for base, positions in together.items():
        is_several = len({returned[i] for i in positions}) > 1
        if base.op != "placeholder" and (is_several or any(_is_lazy(returned[i]) for i in positions)):
            views |= {i: _steps(base, returned[i]) for i in positions if returned[i] is not base}
            for i in positions:
                returned[i] = base
    output.args = (returned,)
    return copied, views


def _is_lazy(node: Node) -> bool:
    """Whether a tensor has other numbers than its memory, which is shared: of a conjugate or of an imaginary part of one."""
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def _steps(base: Node, view: Node) -> list[schema.ViewStep]:
    steps = steps_between(base, view, None)
    reason = "a view of another result that depends on a value" if steps is None else unsupported_view(steps)
    if steps is None or reason:
        problem = Problem(source_line(view) or view.name, f"is {reason}")
        raise UnsupportedError("XLA devices cannot return results that share memory in this way.", [problem])
    return steps
