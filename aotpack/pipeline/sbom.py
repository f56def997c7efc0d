"""The bill of materials of a bundle: a CycloneDX document (version 1.6) of a machine-learning model."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from aotpack_loader.archive.digest import hex_part
from aotpack_loader.format import media_types, schema

from ..writer.bundle import TargetEntry
from .materials import Material

_SCHEMA: Final = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_CODE: Final = "application/vnd.aotpack.code."

Json = dict[str, Any]


def bill_of_materials(
    subject: schema.Descriptor,
    program: schema.Program,
    entries: Sequence[TargetEntry],
    tools: Sequence[Material],
    packages: Sequence[Material],
    time: str | None,
) -> bytes:
    """Return the canonical JSON of a bill of materials.

    Args:
        subject: the descriptor of the bundle index.
        program: the program of the bundle.
        entries: its targets, with their blobs.
        tools: the packages that made the bundle. torch is also what it runs on.
        packages: the packages that define the model.
        time: when it was built, or None.
    """
    model = f"bundle:{subject.digest}"
    libraries = [_library(each) for each in sorted({t.name: t for t in (*tools, *packages)}.values(), key=lambda t: t.name)]
    blobs = {blob.digest: blob for entry in entries for blob in entry.layers if _is_shown(blob)}
    files = [_file(blobs[digest]) for digest in sorted(blobs)]
    about: Json = {
        "tools": {"components": [_library(tool) for tool in tools if tool.name == "aotpack"]},
        "component": _model(model, subject, program, entries),
    }
    if time is not None:
        about["timestamp"] = time
    needed = sorted(each["bom-ref"] for each in (*libraries, *files))
    bom = {
        "$schema": _SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # Derived from the digest, so that equal bundles have equal documents.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, model)}",
        "version": 1,
        "metadata": about,
        "components": [*libraries, *files],
        "dependencies": [{"ref": model, "dependsOn": needed}],
    }
    return msgspec.json.encode(bom, order="sorted")


def _model(reference: str, subject: schema.Descriptor, program: schema.Program, entries: Sequence[TargetEntry]) -> Json:
    method = next(iter(program.methods.values()))
    inputs = [
        {"format": f"{leaf.path} {leaf.dtype}{_sizes(leaf)}"} for leaf in method.leaves if isinstance(leaf, schema.TensorLeaf)
    ]
    parameters: Json = {"modelArchitecture": program.name}
    if inputs:
        parameters["inputs"] = inputs
    count = sum(_elements(entry) for entry in program.state if entry.kind == "parameter" and not entry.tied_to)
    return {
        "type": "machine-learning-model",
        "bom-ref": reference,
        "name": program.name,
        "hashes": [{"alg": "SHA-256", "content": hex_part(subject.digest)}],
        "modelCard": {"modelParameters": parameters},
        "properties": [
            {"name": "aotpack:format", "value": f"{program.format.major}.{program.format.minor}"},
            {"name": "aotpack:methods", "value": ",".join(program.methods)},
            {"name": "aotpack:parameters", "value": str(count)},
            {"name": "aotpack:requires-torch", "value": program.requirements.torch},
            {"name": "aotpack:targets", "value": ",".join(sorted(entry.target.name for entry in entries))},
        ],
    }


def _library(material: Material) -> Json:
    version = material.purl.rpartition("@")[2].replace("%2B", "+")
    return {
        "type": "framework" if material.name == "torch" else "library",
        "bom-ref": material.purl,
        "name": material.name,
        "version": version,
        "purl": material.purl,
    }


def _file(blob: schema.Descriptor) -> Json:
    return {
        "type": "file",
        "bom-ref": f"blob:{blob.digest}",
        "name": f"blobs/sha256/{hex_part(blob.digest)}",
        "mime-type": blob.media_type,
        "hashes": [{"alg": "SHA-256", "content": hex_part(blob.digest)}],
    }


def _is_shown(blob: schema.Descriptor) -> bool:
    return blob.media_type == media_types.WEIGHTS or blob.media_type.startswith(_CODE)


def _sizes(leaf: schema.TensorLeaf) -> str:
    return f"[{', '.join(map(str, leaf.shape))}]"


def _elements(entry: schema.StateEntry) -> int:
    count = 1
    for size in entry.shape:
        count *= size
    return count
