"""Invalid vectors for special kinds of bundles: views, bases, tensor subclasses, control flow, code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from aotpack_loader.archive import compression
from aotpack_loader.format import media_types

from .documents import Documents, dump
from .invalid import Invalid, _graph, _method, _set, _state
from .targets import lose_graph, mark_copied

Json = Any

_AT_TWO = {"base": "views", "backward": True}
_ARRAY = {"dtype": "float32", "shape": [4]}
_SUBCLASS = {"base": "subclass", "backward": True}
_SPARSE = {"base": "sparse_gradients", "backward": True}
_WRITES = {"base": "tangent_writes", "backward": True}
_STATE = {"base": "state_writes", "backward": True}
_SOURCES = {"base": "result_sources", "backward": True}


def _sparse(edit: Callable[[Json], object]) -> Callable[[Documents], object]:
    return _method(lambda m: edit(m["backward"]["sparse"]))


def _writes(edit: Callable[[Json], object]) -> Callable[[Documents], object]:
    return _method(lambda m: edit(m["backward"]["tangent_writes"]))


def _buffers(edit: Callable[[Json], object]) -> Callable[[Documents], object]:
    return _method(lambda m: edit(m["backward"]["state_writes"]))


def _sources(edit: Callable[[Json], object]) -> Callable[[Documents], object]:
    return _method(lambda m: edit(m["backward"]["result_sources"]))


def _deep(levels: int) -> Json:
    tree: Json = {"type": "leaf"}
    for _ in range(levels):
        tree = {"type": "tuple", "items": [tree]}
    return tree


def _deep_graph(documents: Documents) -> None:
    inner = graph = documents.forward
    for _ in range(65):
        inner["subgraphs"] = {"inner": {"inputs": [], "input_values": [], "nodes": [], "outputs": []}}
        inner = inner["subgraphs"]["inner"]
    documents.forward = graph
    documents.set_forward()


def _branch(graph: Json) -> Json:
    node = next(node for node in graph["nodes"] if node["op"] == "higher_order.cond")
    return graph["subgraphs"][node["args"][1]["name"]]


def _name_of_one(graph: Json) -> Json:
    return {"type": "graph", "name": next(iter(graph["subgraphs"]))}


def _with_clone(graph: Json, kwargs: Json, op: str = "aten.clone.default") -> None:
    """Replace the first node by a call with these named arguments."""
    node = graph["nodes"][0]
    node.update(op=op, args=node["args"][:1], kwargs=kwargs)


def _with_copy(graph: Json, kwargs: Json) -> None:
    _with_clone(graph, kwargs, "aten._to_copy.default")


def _aliased(method: Json) -> Json:
    return next(result for result in method["results"] if result["type"] == "alias")


def _shared(method: Json) -> Json:
    return next(result["shared"] for result in method["results"] if "shared" in result)


def _base(method: Json) -> Json:
    return next(primal for primal in method["primals"] if "base" in primal["type"])


def _two_named(name: str) -> Json:
    items = [{"type": "leaf"}, {"type": "tuple", "items": []}]
    return {"type": "dict", "keys": [name, name], "items": items}


def _record(field: str, kind: str = "object") -> Json:
    return {"type": "record", "name": "Record", "fields": [field], "items": [{"type": "leaf"}], "kind": kind}


def _constant(shape: list[int]) -> Callable[[Documents], object]:
    """Give the constant another shape, in each method."""
    return _method(lambda m: _set(next(primal for primal in m["primals"] if primal["type"] == "constant"), "shape", shape))


def _function_unnamed(documents: Documents) -> None:
    documents.program["features"] = ["functions"]
    documents.method["function"] = "no name"


def _array_code(**fields: Any) -> Json:
    return {"parameters": [], "results": [], "outputs": [{"type": "value", "index": 0}], **fields}


def _donating(documents: Documents) -> None:
    whole = {"code": documents.method["forward"], "inputs": [{"type": "value", "index": 0}], "outputs": [0], "donated": [0]}
    documents.target["executables"] = {"infer.forward": whole}


def _with_a_kernel(documents: Documents) -> None:
    _donating(documents)
    whole = documents.target["executables"]["infer.forward"]
    del whole["donated"]
    kernel = documents.add_blob(media_types.CODE_CUBIN, compression.compress(b"\x7fELF"), b"\x7fELF")
    documents.manifest["layers"].append(kernel)
    whole["kernels"] = {"../kernel": {"code": kernel}}


def _second_serves(documents: Documents) -> None:
    methods = documents.program["methods"]
    second = next(
        method["backward"]["second"]["method"] for method in methods.values() if method.get("backward", {}).get("second")
    )
    methods[second]["serves"] = [{"training": False, "grad": True}]


def _many_items(documents: Documents) -> None:
    """A graph of 20 KB that holds 4,000,001 empty lists."""
    raw = b'{"nodes":[' + b"[]," * 4_000_000 + b"[]]}"
    documents.replace(documents.method["forward"], compression.compress(raw), raw)


def _unlisted(graph: Json) -> None:
    """Call an operator on packed data, which no rule can check."""
    node = graph["nodes"][0]
    node.update(op="aten._mkldnn_transpose.default", args=[node["args"][0], 0, 0], kwargs={})


def _other_class(documents: Documents) -> None:
    text = dump(documents.program).replace(b"aotpack_vectors.TwoPart", b"elsewhere.Unknown")
    documents.program = json.loads(text)
    documents.method = documents.program["methods"]["train"]


def _long_document(documents: Documents) -> None:
    raw = b" " * (64 << 20) + dump(documents.forward)
    documents.replace(documents.method["forward"], compression.compress(raw), raw)


def _not_copied(documents: Documents) -> None:
    mark_copied(documents, "")
    lose_graph(documents)


MORE_INVALID: dict[str, Invalid] = {
    "leaf_size_too_large": Invalid("C3", "C3:", _method(lambda m: _set(m["leaves"][0], "shape", [2**62 + 1]))),
    "leaf_stride_length": Invalid("C3", "C3:", _method(lambda m: _set(m["leaves"][0], "stride", [1, 1]))),
    "tree_key_twice": Invalid("C15", "C15:", _method(lambda m: _set(m, "outputs", _two_named("a")))),
    "tree_too_deep": Invalid("C15", "C15:", _method(lambda m: _set(m, "outputs", _deep(66)))),
    "record_field_no_attribute": Invalid("C40", "C40:", _method(lambda m: _set(m, "outputs", _record("not a name")))),
    "record_field_of_a_tuple": Invalid("C40", "C40:", _method(lambda m: _set(m, "outputs", _record("_field", kind="tuple")))),
    "symbol_without_values": Invalid(
        "C13", "C13: the maximum", _method(lambda m: _set(m["symbols"][0], "maximum", 1)), base="dynamic_batch"
    ),
    "sparse_indices_beyond": Invalid("C14", "C14:", _sparse(lambda s: _set(s[0], "indices", 9)), **_SPARSE),
    "integer_with_gradient": Invalid("C16", "C16:", _state(dtype="int32")),
    "shared_with_later": Invalid("C17", "C17:", _method(lambda m: _set(_shared(m), "result", 9)), **_AT_TWO),
    "shared_other_steps": Invalid("C17", "C17:", _method(lambda m: _set(_shared(m), "steps", 9)), **_AT_TWO),
    "base_of_one": Invalid(
        "C18", "C18:", _method(lambda m: _base(m)["members"].pop()), backward=True, base="base_without_gradients"
    ),
    "base_too_small": Invalid(
        "C18", "C18:", _method(lambda m: _set(_base(m), "size", 3)), backward=True, base="base_without_gradients"
    ),
    "output_symbol_twice": Invalid(
        "C24", "C24:", _method(lambda m: m["output_symbols"].append(m["output_symbols"][0])), backward=True, base="sizes_of_data"
    ),
    "specialization_without_symbols": Invalid(
        "C25",
        "C25:",
        lambda d: d.target.update(kind="xla", specializations={"infer": [{"sizes": {}, "forward": _array_code()}]}),
    ),
    "donated_argument": Invalid(
        "C26",
        "C26:",
        lambda d: _set(
            d.target, "xla", {"infer.forward": _array_code(parameters=[{"type": _ARRAY, "input": 0}], donated=[0])}
        ),
    ),
    "donated_primal": Invalid("C27", "C27:", _donating),
    "kernel_that_is_no_file": Invalid("C44", "C44:", _with_a_kernel),
    "copy_that_is_written": Invalid(
        "C28",
        "C28:",
        _method(lambda m: _set(m, "mutations", [{"primal": 0, "output": 0}])),
        backward=True,
        base="layout_of_results",
    ),
    "second_that_serves": Invalid("C31", "C31:", _second_serves, backward=True, base="second_derivatives"),
    "sparse_with_gradient": Invalid(
        "C32", "C32:", _method(lambda m: _set(m["results"][0], "requires_grad", True)), backward=True, base="sparse"
    ),
    "sparse_gradient_unsaid": Invalid("C38", "needs the feature", lambda d: d.program["features"].clear(), **_SPARSE),
    "sparse_gradient_of_nothing": Invalid("C38", "C38: primal 9", _sparse(lambda s: _set(s[0], "primal", 9)), **_SPARSE),
    "sparse_gradient_twice": Invalid("C38", "described twice", _sparse(lambda s: s.append(dict(s[0]))), **_SPARSE),
    "indices_that_are_a_gradient": Invalid("C38", "holds a gradient", _sparse(lambda s: _set(s[0], "indices", 0)), **_SPARSE),
    "sparse_gradient_of_a_subclass": Invalid(
        "C38",
        "no subclass beside",
        _method(lambda m: _set(m["backward"], "sparse", [{"primal": 0, "indices": 9}])),
        backward=True,
        base="subclass_parameter",
    ),
    "tangent_write_unsaid": Invalid("C39", "needs the feature", lambda d: d.program["features"].clear(), **_WRITES),
    "tangent_write_of_nothing": Invalid("C39", "no tangent 9", _writes(lambda w: _set(w[0], "tangent", 9)), **_WRITES),
    "tangent_write_twice": Invalid("C39", "written to twice", _writes(lambda w: w.append(dict(w[0]))), **_WRITES),
    "tangent_write_of_a_gradient": Invalid("C39", "another meaning", _writes(lambda w: _set(w[0], "output", 0)), **_WRITES),
    "tangent_write_of_a_subclass": Invalid(
        "C39",
        "is a subclass",
        _method(lambda m: _set(m["backward"], "tangent_writes", [{"tangent": 0, "output": 9}])),
        backward=True,
        base="subclass",
    ),
    "tangent_write_with_second": Invalid(
        "C39",
        "no second derivative",
        _method(lambda m: _set(m["backward"], "tangent_writes", [{"tangent": 0, "output": 9}])),
        backward=True,
        base="second_derivatives",
    ),
    "state_write_unsaid": Invalid("C45", "needs the feature", lambda d: d.program["features"].clear(), **_STATE),
    "state_write_of_a_parameter": Invalid("C45", "is no buffer", _buffers(lambda w: _set(w[0], "primal", 0)), **_STATE),
    "state_write_twice": Invalid("C45", "written to twice", _buffers(lambda w: _set(w[1], "primal", w[0]["primal"])), **_STATE),
    "state_write_of_a_gradient": Invalid("C45", "another meaning", _buffers(lambda w: _set(w[0], "output", 0)), **_STATE),
    "state_write_by_nothing": Invalid("C45", "nothing writes", _buffers(lambda w: w[0]["writers"].clear()), **_STATE),
    "state_write_for_no_tangent": Invalid(
        "C45", "tangents and", _buffers(lambda w: _set(w[0]["writers"][0], "tangents", [9])), **_STATE
    ),
    "sources_of_fewer_results": Invalid("C41", "one entry for each", _sources(lambda s: s.pop()), **_SOURCES),
    "source_of_itself": Invalid("C41", "no other result 0", _sources(lambda s: s[0].append(0)), **_SOURCES),
    "source_that_is_no_result": Invalid("C41", "no other result 9", _sources(lambda s: s[0].append(9)), **_SOURCES),
    "source_that_is_a_constant": Invalid(
        "C41",
        "is no tensor",
        _method(lambda m: _set(m["results"], 2, {"type": "constant", "value": 1})),
        **_SOURCES,
    ),
    "alias_of_two": Invalid("C9", "C9:", _method(lambda m: _aliased(m).update(primal=0, output=0)), **_AT_TWO),
    "identical_alone": Invalid("C7", "C7:", _method(lambda m: _set(m, "identical", [[0]]))),
    "touched_out_of_range": Invalid("C8", "C8:", _method(lambda m: _set(m, "touched", [9]))),
    "depends_count": Invalid("C10", "C10:", _method(lambda m: _set(m["backward"], "depends", [[0]])), backward=True),
    "replaced_storage": Invalid(
        "R1",
        "replaces the storage",
        _method(lambda m: _set(m, "mutations", [{"primal": 1, "output": 0, "kind": "storage"}])),
        kind="UnsupportedVersionError",
    ),
    "real_expression": Invalid("E4", "real number", _method(lambda m: _set(m, "constraints", ["1 / 2"]))),
    "subclass_size_too_large": Invalid(
        "C3", "C3:", _method(lambda m: _set(m["leaves"][0]["subclass"]["parts"][0], "shape", [2**62 + 1, 3])), **_SUBCLASS
    ),
    "subclass_size_negative": Invalid(
        "C3", "C3:", _method(lambda m: _set(m["leaves"][0]["subclass"]["parts"][0], "stride", [-1, 1])), **_SUBCLASS
    ),
    "attribute_twice": Invalid(
        "K1", "K1:", _method(lambda m: _set(m["leaves"][0]["subclass"], "attributes", ["a", "a"])), **_SUBCLASS
    ),
    "undeclared_class": Invalid("K2", "K2:", lambda d: d.program["requirements"].pop("subclasses"), **_SUBCLASS),
    "storage_of_a_subclass": Invalid("K3", "K3:", _state(storage="weight"), backward=True, base="subclass_parameter"),
    "subclass_count": Invalid("K4", "K4:", _method(lambda m: m["subclasses"].append(None)), **_SUBCLASS),
    "part_of_a_plain_tensor": Invalid(
        "K5", "K5:", _method(lambda m: _set(m["backward"]["saved"][0], "part", 0)), backward=True
    ),
    "class_not_brought": Invalid("K6", "elsewhere.Unknown", _other_class, kind="SubclassError", **_SUBCLASS),
    "modules_out_of_order": Invalid("N1", "N1:", lambda d: d.program["modules"].reverse(), base="modules"),
    "module_class_unknown": Invalid("N1", "N1:", lambda d: _set(d.program["modules"][0], "kind", 99), base="modules"),
    "module_within_itself": Invalid("N2", "N2:", lambda d: _set(d.program["modules"][2], "same_as", ""), base="modules"),
    "state_in_no_module": Invalid("N3", "N3:", lambda d: d.program["modules"].pop(3), base="modules"),
    "flag_of_no_module": Invalid("N4", "N4:", _method(lambda m: _set(m, "flags", {"nothing": True}))),
    "assigned_parameter": Invalid("N6", "N6:", lambda d: _set(d.program, "assigned", ["weight"]), base="assigned"),
    "undeclared_flags": Invalid("V4", "needs the feature", lambda d: d.program["features"].clear(), base="declared_flags"),
    "undeclared_sources": Invalid("V4", "needs the feature", lambda d: d.program["features"].clear(), base="declared_sources"),
    "subgraph_arity": Invalid(
        "G7", "G7:", _graph(lambda g: _branch(g)["outputs"].pop()), base="control_flow"
    ),
    "subgraph_output": Invalid("G7", "G7:", _graph(lambda g: g["outputs"].append(_name_of_one(g))), base="control_flow"),
    "subgraphs_too_deep": Invalid("G8", "G8:", _deep_graph),
    "in_place_operator": Invalid("G6", "may not use", _graph(lambda g: _set(g["nodes"][0], "op", "aten.mul_.Tensor"))),
    "operator_with_out": Invalid("G9", "may not use", _graph(lambda g: _set(g["nodes"][0], "op", "aten.mul.out"))),
    "integer_as_memory_format": Invalid("G11", "G11:", _graph(lambda g: _with_clone(g, {"memory_format": 4}))),
    "string_as_device": Invalid("G11", "G11:", _graph(lambda g: _with_copy(g, {"device": "meta"}))),
    "view_with_an_integer_as_dtype": Invalid(
        "G11",
        "G11:",
        _method(lambda m: _aliased(m)["view"][0].update(op="aten.view.dtype", args=[-1], kwargs={})),
        backward=True,
        base="only_views",
    ),
    "container_of_itself": Invalid(
        "C36",
        "C36: a container would hold itself",
        _method(lambda m: m["updates"][0]["tree"]["items"].__setitem__(0, {"type": "given", "path": m["updates"][0]["path"]})),
        base="containers",
    ),
    "function_unnamed": Invalid("C43", "C43:", _function_unnamed),
    "constant_too_small": Invalid("W8", "W8:", _constant([2, 3]), base="stored"),
    "constant_in_part": Invalid("W8", "W8:", _constant([1, 2]), base="stored"),
    "many_items": Invalid("S4", "items", _many_items),
    "unlisted_operator": Invalid("S5", "_mkldnn_transpose", _graph(_unlisted), kind="TrustError"),
    "long_document": Invalid("D5", "the limit is 67108864", _long_document),
    "lost_layer": Invalid("M7", "it is missing", lose_graph),
    "target_not_copied": Invalid("M7", "was not pulled into this copy", _not_copied, kind="TargetError"),
    "view_that_is_none": Invalid(
        "C37",
        "view",
        _method(lambda m: _set(_aliased(m)["view"][0], "op", "aten.clone.default")),
        backward=True,
        base="only_views",
    ),
}  # fmt: skip
