"""Writes one graph of a bundle as an ONNX file for viewers such as Netron.

Its operators keep their own names, in the domain ``aotpack``, and it holds no weights: ONNX Runtime cannot run it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from aotpack_loader.errors import AotpackError

from .operations import GraphView, Operation
from .text import size_text, visible

_DOMAIN = "aotpack"
_TYPE = re.compile(r"(\w+)\[(.*)\]")
_ELEMENTS = {
    "float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "bool": "BOOL",
    "complex64": "COMPLEX64", "complex128": "COMPLEX128",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def as_onnx(view: GraphView) -> bytes:
    """Return a graph as an ONNX model.

    A node has the operator's name, the path of its module, and its source line. A type that ONNX lacks is left out.

    Raises:
        AotpackError: the package onnx is missing, or the graph is larger than a file of ONNX may be.
    """
    try:
        import onnx
    except ImportError as error:
        raise AotpackError("ONNX needs the package onnx.", hint="Install it: pip install aotpack[onnx].") from error

    used = {name for operation in view.operations for name in operation.inputs}
    names = _names(view)
    inputs = [_value(onnx, names[item.name], item.type, item.kind) for item in view.inputs if item.name in used]
    sources = {output.source: f"{output.kind} {output.label}".rstrip() for output in view.outputs if output.source in names}
    types = {item.name: item.type for item in view.inputs} | {item.name: item.type for item in view.operations}
    outputs = [_value(onnx, names[name], types[name], label) for name, label in sources.items()]
    inner = [_value(onnx, names[item.name], item.type) for item in view.operations if item.name not in sources]
    nodes = [_node(onnx, operation, names) for operation in view.operations]
    graph = onnx.helper.make_graph(nodes, visible(view.key), inputs, outputs, value_info=inner)
    model = onnx.helper.make_model(graph, producer_name="aotpack", opset_imports=[onnx.helper.make_opsetid(_DOMAIN, 1)])
    return bytes(model.SerializeToString())


def _names(view: GraphView) -> dict[str, str]:
    """The name of each value: the user's for an input (``features.0.weight``), unless another value has it."""
    names = {name: visible(name) for name in (*(item.name for item in view.inputs), *(item.name for item in view.operations))}
    taken = set(names.values())
    for item in view.inputs:
        label = visible(item.label)
        if label and label not in taken:
            names[item.name] = label
            taken.add(label)
    return names


def _node(onnx: Any, operation: Operation, names: Mapping[str, str]) -> Any:
    name = "/".join(visible(part) for part in (*filter(None, operation.module.split(".")), operation.name))
    facts = {"operator": operation.op, "module": operation.module, "line": operation.line}
    if operation.size is not None:
        facts["memory"] = size_text(operation.size)
    shown = {key: visible(value) for key, value in facts.items() if value}
    kind = visible(".".join(operation.op.split(".")[1:2]) or operation.op)  # viewers show what follows the last dot
    inputs = [names[one] for one in operation.inputs if one in names]
    node = onnx.helper.make_node(kind, inputs, [names[operation.name]], name=name, domain=_DOMAIN)
    onnx.helper.set_metadata_props(node, shown)
    return node


def _value(onnx: Any, name: str, text: str, label: str = "") -> Any:
    """A value by name. Sizes that vary are names of sizes; what is no single tensor has no type."""
    found = _TYPE.fullmatch(text)
    kind = _ELEMENTS.get(found[1]) if found else None
    if found is None or kind is None:
        return onnx.helper.make_empty_tensor_value_info(name)
    sizes = [size.strip() for size in found[2].split(",") if size.strip()]
    shape = [int(size) if size.isdecimal() else visible(size) for size in sizes]
    return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape, visible(label))
