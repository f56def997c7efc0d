"""Invalid vectors: each is one edit of a valid vector that breaks one rule, with all digests updated."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

from aotpack_loader.format import media_types

from .documents import Documents, blob_name, digest_of, dump, tar, update

Json = Any


class Invalid(NamedTuple):
    """An invalid vector: the rule it breaks, the error, and the edit of the documents or of the bytes.

    ``backward``: the edit needs the method ``train``. Other edits use ``infer``, which takes half
    the space. ``base``: the valid vector that is edited. If it is not ``scale``, all of it is kept.
    """

    constraint: str
    contains: str
    edit: Callable[[Documents], object] | None = None
    damage: Callable[[bytes, Documents], bytes] | None = None
    kind: str = "CorruptBundleError"
    backward: bool = False
    base: str = "scale"
    more: Json = MappingProxyType({})


def _set(node: Json, key: Json, value: Json) -> None:
    node[key] = value


def _flip(descriptor: Callable[[Documents], Json], offset: int) -> Callable[[bytes, Documents], bytes]:
    """Flip one bit of a blob, which is located in the file by its name."""

    def damage(data: bytes, documents: Documents) -> bytes:
        digest = descriptor(documents)["digest"]
        name = blob_name(digest).encode()
        at = data.index(name) + 512 + offset % descriptor(documents)["size"]
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return damage


def _flip_header(data: bytes, documents: Documents) -> bytes:
    at = data.index(b"oci-layout\0") + 136  # its time, which readers ignore
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _graph(edit: Callable[[Json], object]) -> Callable[[Documents], object]:
    def apply(documents: Documents) -> None:
        edit(documents.forward)
        documents.set_forward()

    return apply


def _method(edit: Callable[[Json], object]) -> Callable[[Documents], object]:
    return lambda documents: edit(documents.method)


def _state(**fields: Any) -> Callable[[Documents], object]:
    return lambda documents: documents.program["state"][0].update(fields)


def _weights(change: Callable[[Json], object], extra: bytes = b"") -> Callable[[Documents], object]:
    return lambda documents: documents.set_weights(change, extra)


def _second(entry: Json, **fields: Any) -> Json:
    return {**entry, **fields}


def _everywhere(documents: Documents, descriptor: Json, fields: Json) -> None:
    for document in (documents.program, documents.manifest):
        update(document, descriptor["digest"], fields)


def _second_program(documents: Documents) -> None:
    def add(document: Json, media_type: str) -> Json:
        data = dump(document)
        documents.others[blob_name(digest_of(data))] = data
        return {"mediaType": media_type, "digest": digest_of(data), "size": len(data)}

    program = add({**documents.program, "name": "other"}, media_types.PROGRAM)
    manifest = add({**documents.manifest, "config": program}, media_types.OCI_MANIFEST)
    documents.index["manifests"].append(manifest)


def _misaligned(header: Json) -> None:
    header["__aotpack_padding.0"] = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
    header["scale"]["data_offsets"] = [2, 18]


def _drop_layer(documents: Documents, descriptor: Json) -> None:
    kept = [layer for layer in documents.manifest["layers"] if layer["digest"] != descriptor["digest"]]
    documents.manifest["layers"] = kept


def _other_name(primal: Json) -> Json:
    return {**primal, "name": "other"} if primal["type"] == "parameter" else primal


def _executable(documents: Documents) -> Json:
    return {"code": documents.method["forward"], "inputs": [{"type": "value", "index": 99}], "outputs": [0]}


def _with_given_argument(method: Json) -> None:
    """Make the only result an argument's own object, and add another such argument."""
    method["inputs"]["items"][0]["items"].append({"type": "given", "path": [0, 0]})


def _with_update(method: Json, kind: str, path: list[int]) -> None:
    """Declare that a dictionary of the caller is changed, or that another result is the caller's object."""
    if kind == "given":
        method["outputs"] = {"type": "tuple", "items": [method["outputs"], {"type": "given", "path": path}]}
    else:
        method["updates"] = [{"path": path, "tree": {"type": "dict", "keys": [], "items": []}}]


_PARAMETER = {"name": "x", "kind": "keyword_only", "optional": True}
_UNEVEN = {"type": "mapping", "keys": ["a", "b"], "items": [1]}


INVALID: dict[str, Invalid] = {
    # container
    "truncated": Invalid("T6", "truncated", damage=lambda data, _: data[: len(data) // 2]),
    "no_end_marker": Invalid("T6", "end marker", damage=lambda data, _: data[:-512]),
    "data_after_end": Invalid("T6", "after the end marker", damage=lambda data, _: data + b"x" * 512),
    "link_entry": Invalid(
        "T1", "only files and directories", damage=lambda data, _: data[:-1024] + tar([("blobs/link", b"")], tarfile.SYMTYPE)
    ),
    "foreign_entry": Invalid("T2", "which no bundle has", damage=lambda data, _: data[:-1024] + tar([("../evil", b"x")])),
    "duplicate_entry": Invalid("T3", "second entry", damage=lambda data, _: data[:-1024] + tar([("index.json", b"{}")])),
    "bad_checksum": Invalid("T4", "checksum", damage=_flip_header),
    "padding_not_zero": Invalid("T5", "is not zero", damage=lambda data, _: data[:-1025] + b"x" + data[-1024:]),
    "layout_version": Invalid("T7", "imageLayoutVersion", lambda d: _set(d.others, "oci-layout", b'{"imageLayoutVersion":"9"}')),
    # descriptors
    "malformed_digest": Invalid("D1", "is not a valid", lambda d: _set(d.program["weights"][0], "digest", "md5:00")),
    "wrong_size": Invalid("D2", "bytes, expected", lambda d: _everywhere(d, d.program["weights"][0], {"size": 1})),
    "flipped_program": Invalid("D3", "has digest", damage=_flip(lambda d: d.manifest["config"], 40)),
    "flipped_graph": Invalid("D3", "has digest", damage=_flip(lambda d: d.method["forward"], 20)),
    "flipped_weights": Invalid("D3", "has digest", damage=_flip(lambda d: d.program["weights"][0], -1)),
    "flipped_integer": Invalid(
        "W9", "has digest", damage=_flip(lambda d: d.program["weights"][0], -1), base="batchnorm", backward=True
    ),
    "graph_media_type": Invalid(
        "D4", "not a graph", lambda d: _everywhere(d, d.method["forward"], {"mediaType": "application/json"})
    ),
    "no_raw_size": Invalid("D5", "does not say its size", lambda d: d.method["forward"].pop("annotations")),
    "wrong_raw_size": Invalid(
        "D5", "declares", lambda d: _set(d.method["forward"]["annotations"], media_types.ANNOTATION_RAW_SIZE, "7")
    ),
    "huge_raw_size": Invalid(
        "D5", "the limit is", lambda d: _set(d.method["forward"]["annotations"], media_types.ANNOTATION_RAW_SIZE, str(1 << 40))
    ),
    "unlisted_blob": Invalid("D7", "is not a layer", lambda d: _drop_layer(d, d.method["forward"])),
    # manifests
    "two_images": Invalid(
        "M1", "exactly one", lambda d: d.top["manifests"].append(d.top["manifests"][0]), kind="NotABundleError"
    ),
    "other_artifact": Invalid(
        "M2", "not of an aotpack bundle", lambda d: _set(d.index, "artifactType", "text/plain"), kind="NotABundleError"
    ),
    "manifest_artifact": Invalid("M3", "artifactType", lambda d: _set(d.manifest, "artifactType", "text/plain")),
    "config_type": Invalid("M3", "not a program", lambda d: _set(d.manifest["config"], "mediaType", "application/json")),
    "two_programs": Invalid("M4", "not of one program", _second_program),
    "no_target_layer": Invalid("M5", "is not a target", lambda d: _set(d.manifest["layers"][0], "mediaType", "application/json")),
    "target_annotation": Invalid(
        "M6", "annotated as another", lambda d: _set(d.manifest["annotations"], media_types.ANNOTATION_TARGET, "other")
    ),
    # version
    "unknown_major": Invalid(
        "V1", "format version 2.0", lambda d: _set(d.program, "format", {"major": 2, "minor": 0}), kind="UnsupportedVersionError"
    ),
    "unknown_feature": Invalid(
        "V2", "time_travel", lambda d: _set(d.program, "features", ["time_travel"]), kind="UnsupportedVersionError"
    ),
    # the program
    "sets_requires_grad_alone": Invalid(
        "C33", "C33:", _method(lambda method: method["leaves"][0].update(requires_grad=False, sets_requires_grad=True))
    ),
    "name_twice": Invalid("C1", "C1:", lambda d: d.program["state"].append(d.program["state"][0])),
    "reserved_name": Invalid("C2", "C2:", _state(name="aotpack.scale")),
    "name_below_name": Invalid(
        "C2", "C2:", lambda d: d.program["state"].append(_second(d.program["state"][0], name="scale.scale"))
    ),
    "stride_length": Invalid("C3", "C3:", _state(stride=[1, 1])),
    "tied_to_nothing": Invalid("C4", "C4:", _state(tied_to="other")),
    "mode_served_twice": Invalid(
        "C5", "C5:", lambda d: _set(d.program["methods"]["infer"], "serves", d.method["serves"]), backward=True
    ),
    "no_methods": Invalid("C5", "C5:", lambda d: _set(d.program, "methods", {})),
    "leaf_count": Invalid("C6", "C6:", _method(lambda m: _set(m, "outputs", {"type": "tuple", "items": []}))),
    "unknown_parameter": Invalid("C7", "C7:", _method(lambda m: _set(m, "primals", [_other_name(p) for p in m["primals"]]))),
    "mutated_primal": Invalid("C8", "C8:", _method(lambda m: _set(m, "mutations", [{"primal": 9, "output": 0}]))),
    "result_out_of_range": Invalid("C9", "C9:", _method(lambda m: _set(m["results"][0], "output", 99))),
    "gradient_count": Invalid("C10", "C10:", _method(lambda m: m["backward"]["gradients"].append(None)), backward=True),
    "saved_out_of_range": Invalid(
        "C11", "C11:", _method(lambda m: _set(m["backward"]["saved"], 0, {"type": "primal", "primal": 99})), backward=True
    ),
    "tangent_of_nothing": Invalid(
        "C12", "C12:", _method(lambda m: _set(m["backward"]["tangents"][0], "output", 99)), backward=True
    ),
    "bad_expression": Invalid("C13", "C13:", _method(lambda m: _set(m, "constraints", ["s0 +"]))),
    "unknown_symbol": Invalid("C13", "C13: unknown symbols", _method(lambda m: _set(m, "constraints", ["s0 == 4"]))),
    "expression_too_deep": Invalid(
        "E2", "nested too deeply", _method(lambda m: _set(m, "constraints", ["(" * 101 + "1" + ")" * 101]))
    ),
    "expression_calls": Invalid("E1", "unexpected", _method(lambda m: _set(m, "constraints", ["__import__('os')"]))),
    "graph_arity": Invalid("C14", "C14:", _method(lambda m: _set(m, "num_outputs", m["num_outputs"] + 1))),
    "executable_arity": Invalid("C14", "C14:", lambda d: _set(d.target, "executables", {"infer.forward": _executable(d)})),
    "given_argument": Invalid("C36", "C36: an argument", _method(_with_given_argument)),
    "given_nowhere": Invalid("C36", "C36: no argument is at", _method(lambda m: _with_update(m, "given", [0, 7]))),
    "update_of_a_tensor": Invalid("C36", "C36: no such container", _method(lambda m: _with_update(m, "dict", [0, 0]))),
    "containers_unsaid": Invalid("C36", "needs the feature", _method(lambda m: _with_update(m, "given", [0, 0]))),
    "inputs_not_args_kwargs": Invalid("A1", "keyword arguments", _method(lambda m: _set(m, "inputs", {"type": "leaf"}))),
    "unbound_symbol": Invalid("A2", "determines", _method(lambda m: _set(m, "symbols", [{"name": "s0", "minimum": 2}]))),
    # graphs
    "input_values": Invalid("G1", "G1:", _graph(lambda g: g["input_values"].pop())),
    "value_twice": Invalid("G2", "G2:", _graph(lambda g: g["nodes"].append(g["nodes"][0]))),
    "undefined_value": Invalid("G3", "G3:", _graph(lambda g: _set(g, "outputs", [{"type": "value", "name": "nothing"}]))),
    "undefined_subgraph": Invalid(
        "G4", "G4:", _graph(lambda g: g["nodes"][0]["args"].append({"type": "graph", "name": "nothing"}))
    ),
    "unknown_builtin": Invalid("G5", "no built-in", _graph(lambda g: _set(g["nodes"][0], "op", "builtin.exec"))),
    "undeclared_namespace": Invalid("G6", "may not use", _graph(lambda g: _set(g["nodes"][0], "op", "prim.Print.default"))),
    "file_operator": Invalid("G6", "may not use", _graph(lambda g: _set(g["nodes"][0], "op", "aten.from_file.default"))),
    "unknown_operator": Invalid(
        "G6", "does not have", _graph(lambda g: _set(g["nodes"][0], "op", "aten.nothing.default")), kind="UnsupportedVersionError"
    ),
    # data for tools
    "signature_of_no_data": Invalid(
        "N5", "one item for each key", lambda documents: documents.program.update(signature=[{**_PARAMETER, "default": _UNEVEN}])
    ),
    "embeddings_nowhere": Invalid(
        "N5", "is no module", lambda documents: documents.program.update(pretrained={"input_embeddings": "wte"})
    ),
    # weights
    "weights_header": Invalid("W1", "three fields", _weights(lambda h: h["scale"].pop("shape"))),
    "weights_hole": Invalid("W2", "the blob at", _weights(lambda h: None, extra=bytes(4))),
    "weights_offsets": Invalid("W2", "does not fit its offsets", _weights(lambda h: _set(h["scale"], "shape", [5]))),
    "weights_dtype": Invalid("W3", "is stored as", _state(dtype="int32", requires_grad=False)),
    "weights_out_of_range": Invalid("W4", "is needed", _state(offset=1)),
    "weights_misaligned": Invalid("W6", "not a multiple of", _weights(_misaligned, extra=bytes(2))),
    "weights_missing": Invalid("W5", "none of", _state(storage="other")),
}
