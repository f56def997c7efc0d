"""Which memory the results of compiled code are in: Inductor (torch 2.13) returns one tensor, or memory, for several.

What there is to each is in tests/conformance or tests/test_cpu_target.py, as a case that fails without.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._inductor import ir, virtualized
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu


def results_in_own_memory(outputs: list[Any], before: Sequence[torch.fx.Node | None], saved: Collection[int]) -> None:
    """Copy outputs that share memory with an input, or with a result, and did not ``before``: what they were in the memory of.

    Inductor (torch 2.13) drops what changes no numbers, and looks after memory in the simplest cases only: ``torch.compile``
    returns ``x`` itself for ``torch.cat(x.split(2))``, and its memory for ``x * torch.ones(3)``.
    """
    owners: dict[str, int] = {}
    for position in sorted(range(len(outputs)), key=lambda position: position in saved):  # what is saved may share with the like
        earlier, value = before[position], outputs[position]
        if earlier is None or not isinstance(value, (ir.TensorBox, ir.StorageBox, ir.BaseView)):
            continue
        buffer = buffer_of(value)
        memory = str(value.get_name() if buffer is None else buffer.get_name())
        owner = owners.setdefault(memory, position)
        of_input = memory in virtualized.V.graph.graph_inputs and earlier.op != "placeholder"
        if of_input or not (before[owner] is earlier or owner in saved):
            copy: ir.IRNode = ir.ExternKernel.copy_input(value)
            if value.get_size():
                copy = ir.ExternKernel.require_exact_strides(copy, value.get_stride())
            outputs[position] = ir.ExternKernel.realize_input(copy)


def buffer_of(value: Any) -> Any:
    """The buffer that a value is in, through those that are parts of others: values are written where they are concatenated.

    Null if there is none by its name.
    """
    buffer = virtualized.V.graph.try_get_buffer(value.get_name())
    while isinstance(buffer, ir.Buffer) and isinstance(buffer.layout, ir.NonOwningLayout):
        buffer = virtualized.V.graph.try_get_buffer(buffer.layout.view.get_name())
    return buffer


@contextlib.contextmanager
def results_apart(saved: Collection[int]) -> Iterator[None]:
    """Return a view of all of another result as a tensor of its own, with the same memory: ``return y, y[:]``.

    Inductor drops such views, and then returns one tensor twice (torch 2.13), by the same name or by another handle. Outputs that
    are ``saved`` for a backward may be the results themselves, whose versions tell whether they have changed.
    """
    generate: Callable[[Any, list[str]], None] = CppWrapperCpu.generate_return

    def referred(wrapper: Any) -> list[str]:
        code, names = wrapper.wrapper_call, []
        for place, output in enumerate(wrapper.get_graph_outputs()):
            before = len(code._lines)
            names.append(output.codegen_reference(code))
            if place not in saved:
                _rewrite(code._lines, before, lambda line: _HANDLE.sub(_view_of_all, line))
        return names

    def returned(wrapper: Any, results: list[str]) -> None:
        lines = wrapper.wrapper_call._lines
        before = len(lines)
        generate(wrapper, results)
        _rewrite(lines, before, apart)

    def apart(line: str) -> str:
        places = {int(place) for place in re.findall(r"\d+", line)}
        return line if places & set(saved) else _SAME_RESULT.sub(_view_of_all, line)

    with (
        mock.patch.object(CppWrapperCpu, "get_output_refs", referred),
        mock.patch.object(CppWrapperCpu, "generate_return", returned),
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
