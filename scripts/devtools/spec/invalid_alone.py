"""Invalid vectors that break their rule alone, where an earlier vector of that rule breaks another rule too."""

from __future__ import annotations

import json
from typing import Any

from aotpack_loader.archive import compression
from aotpack_loader.format import media_types

from .documents import Documents, blob_name, dump
from .invalid import Invalid, _method, _state
from .invalid_rules import _aliased

Json = Any


def _renamed(documents: Documents) -> None:
    _state(name="aotpack.scale")(documents)
    for primal in documents.method["primals"]:
        if primal["type"] == "parameter":
            primal["name"] = "aotpack.scale"


def _without_module(documents: Documents) -> None:
    documents.program["modules"].pop(3)
    for method in documents.program["methods"].values():
        method.pop("flags", None)


def _copy_is_written(method: Json) -> None:
    copied = next(result for result in method["results"] if result.get("laid_out") or result.get("reshaped"))
    method["mutations"] = [{"primal": copied["primal"], "output": 0}]


def _with_backward_output(documents: Documents) -> int:
    """Let the backward return one value more. Returns its number."""
    backward = documents.method["backward"]
    descriptor = backward["graph"]
    raw = int(descriptor["annotations"][media_types.ANNOTATION_RAW_SIZE])
    graph = json.loads(compression.decompress(documents.others[blob_name(descriptor["digest"])], raw))
    number = len(backward.get("subclasses") or graph["outputs"])  # a subclass is one value, with several outputs
    graph["outputs"].append(next(output for output in graph["outputs"] if output is not None))
    data = dump(graph)
    documents.replace(descriptor, compression.compress(data), data)
    for entries, new in (("depends", []), ("subclasses", None)):
        if backward.get(entries):
            backward[entries].append(new)
    return number


def _subclass_sparse(documents: Documents) -> None:
    documents.program["features"] = sorted([*documents.program.get("features", ()), "sparse-gradients"])
    primal = next(i for i, gradient in enumerate(documents.method["backward"]["gradients"]) if gradient is not None)
    documents.method["backward"]["sparse"] = [{"primal": primal, "indices": _with_backward_output(documents)}]


def _writes_tangent(documents: Documents) -> None:
    documents.program["features"] = sorted([*documents.program.get("features", ()), "tangent-writes"])
    documents.method["backward"]["tangent_writes"] = [{"tangent": 0, "output": _with_backward_output(documents)}]


def _tangent_written_as_gradient(documents: Documents) -> None:
    documents.program["features"] = ["tangent-writes"]
    backward = documents.method["backward"]
    gradient = next(gradient for gradient in backward["gradients"] if gradient is not None)
    backward["tangent_writes"] = [{"tangent": 0, "output": gradient}]


def _constant_source(method: Json) -> None:
    """Add a constant to the results, and call it a source of the first."""
    number = len(method["results"])
    method["results"].append({"type": "constant", "value": 1})
    method["outputs"]["items"].append({"type": "leaf"})
    method["backward"]["result_sources"].append([])
    method["backward"]["result_sources"][0].append(number)


ALONE: dict[str, Invalid] = {
    "reserved_name_alone": Invalid("C2", "C2:", _renamed),
    "alias_of_two_alone": Invalid(
        "C9", "C9:", _method(lambda m: _aliased(m).update(primal=0, output=0)), backward=True, base="rarely_written"
    ),
    "copy_that_is_written_alone": Invalid("C28", "C28:", _method(_copy_is_written), backward=True, base="rarely_written"),
    "sparse_gradient_of_a_subclass_alone": Invalid(
        "C38", "no subclass beside", _subclass_sparse, backward=True, base="subclass_parameter"
    ),
    "tangent_write_of_a_gradient_alone": Invalid(
        "C39", "another meaning", _tangent_written_as_gradient, backward=True
    ),
    "tangent_write_of_a_subclass_alone": Invalid("C39", "is a subclass", _writes_tangent, backward=True, base="subclass"),
    "tangent_write_with_second_alone": Invalid(
        "C39", "no second derivative", _writes_tangent, backward=True, base="second_derivatives"
    ),
    "source_that_is_a_constant_alone": Invalid(
        "C41", "is no tensor", _method(_constant_source), backward=True, base="declared_sources"
    ),
    "state_in_no_module_alone": Invalid("N3", "N3:", _without_module, base="modules"),
}  # fmt: skip
"""By name: that of the earlier vector, and ``_alone``."""
