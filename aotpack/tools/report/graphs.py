"""Counts what graphs do and save."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from aotpack_loader.errors import AotpackError
from aotpack_loader.format import expressions, schema, subclasses

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle

_BYTES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4}
_BYTES |= {"float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex32": 4, "complex64": 8, "complex128": 16}


def operators(graph: schema.Graph) -> Counter[str]:
    """How often a graph has each operator, its subgraphs included."""
    found = Counter(node.op for node in graph.nodes)
    for inner in graph.subgraphs.values():
        found += operators(inner)
    return found


def saved_bytes(bundle: Bundle, method: schema.Method) -> int | None:
    """Return the bytes of the activations that a forward saves, at the sizes of the example.

    None: the graph is not in this copy, or a size depends on data.
    """
    if method.backward is None:
        return 0
    if not bundle.has(method.forward):
        return None
    graph = bundle.graph(method.forward)
    values = {node.name: node.value for node in graph.nodes} | dict(zip(graph.inputs, graph.input_values, strict=True))
    positions = subclasses.part_positions(subclasses.of_outputs(method))
    hints = {symbol.name: symbol.hint for symbol in method.symbols if symbol.hint is not None}
    total = 0
    for saved in method.backward.saved:
        if not isinstance(saved, schema.SavedOutput):
            continue
        part = positions[saved.output]
        for output in graph.outputs[part.start : part.stop]:
            value = values.get(output.name) if isinstance(output, schema.ValueRef) else None
            if isinstance(value, schema.TensorValue):
                size = _size(value, hints)
                if size is None:
                    return None
                total += size
    return total


def element_size(dtype: str) -> int:
    """Return the bytes of one element."""
    return _BYTES.get(dtype, 1)


def _size(value: schema.TensorValue, hints: dict[str, int]) -> int | None:
    try:
        elements = math.prod(expressions.evaluate(size, hints) for size in value.shape)
    except (AotpackError, KeyError):  # a size without a hint
        return None
    return elements * element_size(value.dtype)
