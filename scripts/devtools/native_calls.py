"""Calls portable graphs through native code, so that tests of calls cover both paths without compiling a graph."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch

import aotpack
from aotpack._torch.fixes.register import minor
from aotpack.targets.cpu.call_library import library_bytes
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices.call_library import CallLibrary, import_library
from aotpack_loader.format import schema
from aotpack_loader.module.program import LoadedProgram
from aotpack_loader.runtime import native


@functools.cache
def has_library() -> bool:
    """Whether this torch's headers can compile the call library: 2.13 and later. Older ones call in Python."""
    here: tuple[int, int] = minor(str(torch.__version__))
    return here >= (2, 13)


@functools.cache
def library() -> CallLibrary:
    """The call library that bundles contain."""
    code = library_bytes()
    assert code is not None
    with tempfile.TemporaryDirectory(prefix="aotpack-call-") as folder:
        path = Path(folder) / "call.so"
        path.write_bytes(code)
        return import_library(path)  # which stays mapped


def load_native(path: Path, **options: Any) -> LoadedProgram:
    """Load for the portable target, with calls in native code where possible. ``aotpack.calls`` records it."""
    loaded = aotpack.load(path, backend="portable", **options)
    bundle = Bundle.open(path)
    for name, method in loaded.aotpack.program.methods.items():
        served = [*loaded._aotpack_calls.values()]
        served += [call for by_mode in loaded._aotpack_functions.values() for several in by_mode.values() for call in several]
        for call in {id(call): call for call in served if call.method is method}.values():
            parts: list[tuple[Any, schema.Descriptor]] = [(call.forward, method.forward)]
            if call.differentiable is not None and method.backward is not None:
                parts.append((call.differentiable.backward, method.backward.graph))
            for executable, graph in parts:
                executable.returns_tensors = _only_tensors(bundle.graph(graph))
            if call.differentiable is not None and method.backward is not None:
                sizes = [i for i, saved in enumerate(method.backward.saved) if isinstance(saved, schema.SavedSize)]
                if sizes:
                    call.differentiable.backward = WithSizes(call.differentiable.backward, sizes)
            loaded.aotpack.calls[name] = native.use(call, library())  # type: ignore[index]
    return loaded


class WithSizes:
    """A graph that takes integers. Native code passes a tensor of the shape [size, 0] in place of each."""

    def __init__(self, graph: Any, positions: list[int]) -> None:
        self._graph, self._positions = graph, positions
        self.returns_tensors = graph.returns_tensors

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the graph."""
        for position in self._positions:
            if isinstance(inputs[position], torch.Tensor):
                inputs[position] = inputs[position].shape[0]
        return list(self._graph(inputs))


def _only_tensors(graph: schema.Graph) -> bool:
    values = dict(zip(graph.inputs, graph.input_values, strict=True)) | {node.name: node.value for node in graph.nodes}
    returned = [values[item.name] if isinstance(item, schema.ValueRef) else None for item in graph.outputs]
    return all(isinstance(value, schema.TensorValue) for value in returned)
