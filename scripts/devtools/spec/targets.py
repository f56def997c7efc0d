"""Targets of every kind for the vector ``targets``. Their code is fake, and no machine has their architecture."""

from __future__ import annotations

import json
from typing import Any

from aotpack_loader.archive import compression
from aotpack_loader.format import media_types
from aotpack_loader.format.versions import OWN_GRAPHS

from .documents import blob_name, digest_of, dump

Json = Any
NOWHERE = "vector"


def add_targets(documents: Any, imports: list[str] | None = None) -> None:
    """Add a target of each kind to a bundle of one linear layer with a dynamic batch."""
    method = documents.program["methods"]["train"]
    symbol = method["symbols"][0]["name"]
    machine = {"architecture": NOWHERE, "torch": "==2.13.*", "toolchain": {"compiler": "none"}}
    writer = {"aotpack": "0.1.0", "torch": "2.13.0"}
    native = machine | {"name": "cpu:vector", "kind": "aoti", "device": "cpu", "producer": writer}
    native |= {"instruction_set": "vector-v1", "cpu_features": ["none_has_this"], "constraints": {"train": [f"{symbol} < 9"]}}
    native |= {"imports": imports} if imports else {}
    blobs: list[Json] = []
    native |= _compiled(documents, blobs)
    platform = {"architecture": NOWHERE, "os": "linux", "variant": "v3", "os.version": "1"}
    documents.add_target(native, blobs, platform)
    blobs = []
    computed = {"name": "xla:vector", "kind": "xla", "device": "cpu", "packages": {"jaxlib": "==0.1.0"}, "topology": "1x1"}
    computed |= machine | _computed(documents, blobs, symbol)
    documents.add_target(computed, blobs, {"architecture": NOWHERE, "os": "linux"})


def add_importing_target(documents: Any) -> None:
    """Add a native target that lists the functions its code takes from torch."""
    add_targets(documents, imports=["aoti_torch_delete_tensor_object", "aoti_torch_get_data_ptr"])


def add_target_for_gpus(documents: Any) -> None:
    """Add a native target for GPUs, whose kernels have PTX in one graph and none in the others."""
    native = {"name": "cuda:vector", "kind": "aoti", "device": "cuda", "architecture": NOWHERE, "torch": "==2.13.*"}
    native |= {"gpu": {"capability": "8.0", "driver": "12.0", "ptx": "8.7", "ptx_driver": "12.8"}}
    blobs: list[Json] = []
    native |= _compiled(documents, blobs)
    code = _blob(documents, blobs, media_types.CODE_CUBIN, b"\x7fELF no kernel")
    ptx = _blob(documents, blobs, media_types.CODE_PTX, b".version 8.7 no kernel")
    kernel = {"code": code, "grid": ["-((xnumel) // -(256))", "1", "1"], "warps": 4, "arguments": ["*fp32", "i32"]}
    kernel |= {"shared": 512, "blocks": {"XBLOCK": 256}, "ptx": ptx}
    for executable in native["executables"].values():
        executable["kernels"] = {"triton_poi_fused_tanh_0": kernel}
        kernel = {"code": code}
    documents.add_target(native, blobs, {"architecture": NOWHERE, "os": "linux"})
    exact = {**native, "name": "cuda:vector-exact", "gpu": {"capability": "9.0", "driver": "12.0", "is_exact": True}}
    documents.add_target(exact, blobs, {"architecture": NOWHERE, "os": "linux"})


def add_targets_that_are_not_here(documents: Any) -> None:
    """Add a target of each kind, and leave out their layers: a copy that was pulled with the portable target alone."""
    add_targets(documents)
    mark_copied(documents, "portable")
    here = {layer["digest"] for layer in documents.manifest["layers"]}
    for entry in documents.index["manifests"][1:]:
        for layer in json.loads(documents.others[blob_name(entry["digest"])])["layers"][1:]:
            if layer["digest"] not in here:
                documents.others.pop(blob_name(layer["digest"]), None)


def add_target_with_own_graphs(documents: Any) -> None:
    """Add a native target whose program has another method than the portable one's (M4)."""
    whole = documents.program
    whole["features"] = sorted([*whole.get("features", ()), OWN_GRAPHS])
    documents.program = {**whole, "methods": {"infer": whole["methods"]["infer"]}}
    data = dump(documents.program)
    documents.others[blob_name(digest_of(data))] = data
    native = {"name": "cpu:vector", "kind": "aoti", "device": "cpu", "architecture": NOWHERE, "torch": "==2.13.*"}
    blobs: list[Json] = []
    native |= {"instruction_set": "vector-v1", "cpu_features": ["none_has_this"]} | _compiled(documents, blobs)
    documents.add_target(native, blobs, {"architecture": NOWHERE, "os": "linux"})
    documents.program = whole


def mark_copied(documents: Any, targets: str) -> None:
    """Note in ``index.json`` which targets the copy has."""
    documents.top["manifests"][0]["annotations"] = {media_types.ANNOTATION_TARGETS: targets}


def lose_graph(documents: Any) -> None:
    """Leave out a layer of the portable target."""
    documents.others.pop(blob_name(documents.method["forward"]["digest"]))


def _compiled(documents: Any, blobs: list[Json]) -> Json:
    """Executables of each graph: one in parts, and one with every property that an executable can have."""
    code = _blob(documents, blobs, media_types.CODE_AOTI, b"no shared library")
    fallbacks = _blob(documents, blobs, media_types.CODE_FALLBACKS, b"[]", compressed=False)
    call = _blob(documents, blobs, media_types.CODE_CALL, b"no call library")
    executables: Json = {}
    sequences: Json = {}
    for key, inputs, outputs, donated in documents.arities():
        whole = {"code": code, "inputs": [{"type": "value", "index": i} for i in range(inputs)], "outputs": list(range(outputs))}
        if key.endswith(".backward"):
            whole |= {"fallbacks": fallbacks, **({"donated": donated} if donated else {})}
            executables[key] = whole
            continue
        carried = [{"type": "size_carrier", "index": 0}, *whole["inputs"][1:]]
        executables[f"{key}.0"] = {**whole, "inputs": carried, "numbers": [0]}
        numbers = list(range(inputs, inputs + outputs))
        sequences[key] = {"calls": [{"part": f"{key}.0", "inputs": list(range(inputs))}], "outputs": numbers}
    library = {"code": call, "interface": 1, "torch": "2.13.0+none", "python": ".none.so"}
    return {"executables": executables, "sequences": sequences, "call": library}


def _computed(documents: Any, blobs: list[Json], symbol: str) -> Json:
    """Computations for two sizes of one method, and for no size of another."""
    code = _blob(documents, blobs, media_types.CODE_PJRT, b"no executable")
    program = _blob(documents, blobs, media_types.CODE_STABLEHLO, b"no program")
    hlo = _blob(documents, blobs, media_types.CODE_HLO, b"no module")
    array = {"dtype": "float32", "shape": [3, 2]}

    def computation(inputs: int, outputs: int, donated: list[int], held: Json) -> Json:
        parameters = [{"type": array, "input": i} for i in range(inputs)] + [{"type": {"dtype": "int64", "shape": []}}]
        view = {"type": "view", "result": 0, "view": [{"op": "aten.t.default"}]}
        made: list[Json] = [0, *range(1, outputs)]
        if outputs > 2:
            made[-2:] = [{"type": "value", "index": 0}, view]
        found = {"parameters": parameters, "results": [array] * outputs, "outputs": made, **held}
        return found | ({"donated": donated} if donated else {})

    arities = {key: rest for key, *rest in documents.arities()}
    compiled = {"code": code, "stablehlo": program}
    sets = [
        {
            "sizes": {symbol: size},
            "forward": computation(*arities["train.forward"], held=compiled),
            "backward": computation(*arities["train.backward"], held=compiled),
        }
        for size in (3, 4)
    ]
    plain = computation(*arities["infer.forward"], held={"hlo": hlo, "stablehlo": program})
    return {"specializations": {"train": sets}, "xla": {"infer.forward": plain}}


def _blob(documents: Any, blobs: list[Json], media_type: str, raw: bytes, *, compressed: bool = True) -> Json:
    """Store a blob and return its descriptor."""
    descriptor = documents.add_blob(media_type, compression.compress(raw) if compressed else raw, raw if compressed else None)
    blobs.append(descriptor)
    return descriptor
