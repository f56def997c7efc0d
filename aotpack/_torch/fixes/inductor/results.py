"""Fixes of the memory that results of compiled code are in: Inductor returns one tensor, or memory, for several."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch._inductor import ir, virtualized
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.graph import GraphLowering, SubgraphLowering

from ...nodes import without_views
from ..applying import patched, reached, replaced


@contextlib.contextmanager
def copy_shared_results(module: torch.fx.GraphModule, saved: Collection[int]) -> Iterator[None]:
    """Copy results that share memory with an input, or with another result, and do not in the graph.

    Inductor drops what changes no numbers, and looks after memory in the simplest cases only. Outputs that are ``saved`` for a
    backward may share memory with a result.
    """
    memory = _memory_of_results(module.graph)
    finalize = GraphLowering.finalize

    def finalized(lowering: GraphLowering) -> None:
        if not isinstance(lowering, SubgraphLowering):
            _copy_shared(lowering.graph_outputs, memory, saved)
        finalize(lowering)

    with replaced(GraphLowering, "finalize", finalized):
        yield


def _copy_shared(outputs: list[Any], before: Sequence[torch.fx.Node | None], saved: Collection[int]) -> None:
    """Replace outputs that share memory by copies; ``before``: what each was in the memory of, in the graph."""
    owners: dict[str, int] = {}
    for position in sorted(range(len(outputs)), key=lambda position: position in saved):  # results first
        earlier, value = before[position], outputs[position]
        if earlier is None or not isinstance(value, (ir.TensorBox, ir.StorageBox, ir.BaseView)):
            continue
        buffer = buffer_of(value)
        memory = str(value.get_name() if buffer is None else buffer.get_name())
        owner = owners.setdefault(memory, position)
        of_input = memory in virtualized.V.graph.graph_inputs and earlier.op != "placeholder"
        if of_input or not (before[owner] is earlier or owner in saved):
            reached("inductor-results-share-memory")
            copy: ir.IRNode = ir.ExternKernel.copy_input(value)
            if value.get_size():
                copy = ir.ExternKernel.require_exact_strides(copy, value.get_stride())
            outputs[position] = ir.ExternKernel.realize_input(copy)


def _memory_of_results(graph: torch.fx.Graph) -> list[torch.fx.Node | None]:
    """What each output is, or is a view of."""
    outputs: Any = graph.output_node().args[0]
    return [_in_memory_of(value) if isinstance(value, torch.fx.Node) else None for value in outputs]


def _in_memory_of(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of, also one of several, or may be one."""
    whole = without_views(node)
    while whole.target in (torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default) or (
        whole.target is operator.getitem and getattr(whole.all_input_nodes[0].target, "is_view", False)
    ):
        whole = without_views(whole.all_input_nodes[0])
    return whole


def buffer_of(value: Any) -> Any:
    """The buffer that a value is in, through those that are parts of others: values are written where they are concatenated.

    Null if there is none by its name.
    """
    buffer = virtualized.V.graph.try_get_buffer(value.get_name())
    while isinstance(buffer, ir.Buffer) and isinstance(buffer.layout, ir.NonOwningLayout):
        buffer = virtualized.V.graph.try_get_buffer(buffer.layout.view.get_name())
    return buffer


@contextlib.contextmanager
def return_views_apart(saved: Collection[int]) -> Iterator[None]:
    """Return a view of all of another result as a tensor of its own, with the same memory: ``return y, y[:]``.

    Inductor drops such views, and then returns one tensor twice, by the same name or by another handle. Outputs that are
    ``saved`` for a backward may be the results themselves, whose versions tell whether they have changed.
    """
    generate: Callable[[Any, list[str]], None] = CppWrapperCpu.generate_return

    def referred(wrapper: Any) -> list[str]:
        code, names = wrapper.wrapper_call, []
        for index, output in enumerate(wrapper.get_graph_outputs()):
            before = len(code._lines)
            names.append(output.codegen_reference(code))
            if index not in saved:
                _rewrite(code._lines, before, lambda line: _HANDLE.sub(_view_of_all, line))
        return names

    def returned(wrapper: Any, results: list[str]) -> None:
        lines = wrapper.wrapper_call._lines
        before = len(lines)
        generate(wrapper, results)
        _rewrite(lines, before, apart)

    def apart(line: str) -> str:
        indices = set(map(int, re.findall(r"\d+", line)))
        return line if indices & set(saved) else _SAME_RESULT.sub(_view_of_all, line)

    with (
        patched("inductor-view-of-whole-result", CppWrapperCpu, "get_output_refs", referred),
        patched("inductor-view-of-whole-result", CppWrapperCpu, "generate_return", returned),
    ):
        yield


_HANDLE = re.compile(r"AOTI_TORCH_ERROR_CODE_CHECK\(aoti_torch_new_tensor_handle\((?P<whole>\w+), &(?P<view>\w+)\)\);")
_SAME_RESULT = re.compile(r"(?P<view>output_handles\[\d+\]) = (?P<whole>output_handles\[\d+\]);")


def _rewrite(lines: list[Any], first: int, rule: Callable[[str], str]) -> None:
    """Apply a rule to the lines of generated code from ``first`` on; some are objects that write their line later."""
    lines[first:] = [rule(line) if isinstance(line, str) else line for line in lines[first:]]


def _view_of_all(found: re.Match[str]) -> str:
    """The C++ of a tensor of its own that is a view of all of another, where code gave that tensor another name."""
    view, whole = found["view"], found["whole"]
    calls = (
        f"aoti_torch_get_dim({whole}, &rank)",
        f"aoti_torch_get_sizes({whole}, &sizes)",
        f"aoti_torch_get_strides({whole}, &strides)",
        f"aoti_torch__reinterpret_tensor({whole}, rank, sizes, strides, 0, &{view})",
    )
    checked = " ".join(f"AOTI_TORCH_ERROR_CODE_CHECK({call});" for call in calls)
    return f"{{ int64_t rank, *sizes, *strides; {checked} }}"
