"""Vectors of compiled code: a step that a machine can run, and code that a reader must not open."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from aotpack_loader.archive import compression
from aotpack_loader.format import media_types

from .case import INFER, Call, Case, t
from .documents import Documents, blob_name, digest_of
from .invalid import Invalid
from .targets import add_target_for_gpus

Json = Any
NAME = "cpu:x86-64-v2"


class Wave(nn.Module):
    """The backward's code writes a gradient where the forward saved a value."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(-7.0, 8.0).reshape(3, 5) / 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wave = (x @ self.weight).sin()
        return wave.sum(), wave


def _bounded(documents: Documents) -> None:
    """The code takes at most 8 rows, less than its method (X2), and has a call library for nobody (X8)."""
    target, manifest = documents.target, documents.manifest
    assert target["name"] == NAME
    old = target["call"]["code"]["digest"]
    documents.others.pop(blob_name(old))
    raw = b"no call library"
    code = documents.add_blob(media_types.CODE_CALL, compression.compress(raw), raw)
    manifest["layers"] = [*(layer for layer in manifest["layers"] if layer["digest"] != old), code]
    target["call"] = {**target["call"], "code": code, "interface": 1_000_000}
    target["constraints"] = {"train": [f"{documents.program['methods']['train']['symbols'][0]['name']} <= 8"]}


def _calls() -> list[Call]:
    refused = Call([t(9, 3)], more={"target": NAME}, refused="X2", contains="9")
    return [Call([t(4, 3)]), Call([t(4, 3)], more={"then": "retained"}), refused]


XLA = "xla:cpu"


def _programs(documents: Documents) -> None:
    """Code that fits nothing, so readers compile the programs; backwards may overwrite what was saved (X5)."""
    target, manifest = documents.target, documents.manifest
    assert target["name"] == XLA
    raw = b"no executable"
    code = documents.add_blob(media_types.CODE_PJRT, compression.compress(raw), raw)
    private = {key: overwritten for key, _, _, overwritten in documents.arities()}
    found = [*target.get("xla", {}).values()]
    for item in (one for several in target.get("specializations", {}).values() for one in several):
        found += [item["forward"], item["backward"]]
        saved = [parameter["input"] for parameter in item["backward"]["parameters"]]
        item["backward"]["donated"] = [saved.index(i) for i in private["train.backward"] if i in saved]
        assert item["backward"]["donated"], "the backward reads nothing that the forward computed"
    unused = {item["code"]["digest"] for item in found}
    manifest["layers"] = [*(layer for layer in manifest["layers"] if layer["digest"] not in unused), code]
    for digest in unused:
        documents.others.pop(blob_name(digest))
    for item in found:
        item["code"] = code
    target["cpu_features"] = ["none_has_this"]


def _lying(documents: Documents) -> None:
    _programs(documents)
    documents.target["xla"]["infer.forward"]["results"][0]["shape"] = [4, 2]


def _calls_of_sizes() -> list[Call]:
    calls = [Call([t(rows, 3)], more={"then": "retained"}) for rows in (4, 6)]
    return [*calls, Call([t(5, 3)], more={"target": XLA}, refused="X4", contains="rows=4")]


COMPILED: dict[str, Case] = {
    "programs_for_sizes": Case(
        "programs of XLA for two sizes; the backward may overwrite what the forward saved",
        ["X4", "X5"],
        Wave,
        lambda: (t(4, 3),),
        _calls_of_sizes,
        build={
            "targets": ["portable", XLA],
            "methods": ["train"],
            "dynamic_shapes": ({0: torch.export.Dim("rows", min=2, max=64)},),
            "specializations": [{"rows": 4}, {"rows": 6}],
        },
        edit=_programs,
        compiled=[XLA],
    ),
    "program_of_other_results": Case(
        "a program of XLA that returns other sizes than its target says",
        ["X3"],
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh()),
        lambda: (t(4, 3),),
        lambda: [Call([t(4, 3)], **INFER, more={"target": XLA}, refused="X3", kind="CorruptBundleError", contains="X3")],
        build={"targets": ["portable", XLA], "methods": ["infer"]},
        edit=_lying,
        compiled=[XLA],
    ),
    "compiled_step": Case(
        "a step of compiled code, whose backward overwrites what the forward saved, and which takes fewer sizes than its method",
        ["X2", "X7", "X8"],
        Wave,
        lambda: (t(5, 3),),
        _calls,
        build={
            "targets": ["portable", NAME],
            "methods": ["train"],
            "dynamic_shapes": ({0: torch.export.Dim("rows", max=64)},),
        },
        edit=_bounded,
        compiled=[NAME],
    ),
    "targets_for_gpus": Case(
        "native targets for GPUs, with kernels; none of them fits any machine",
        ["C44"],
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)])],
        build={"dynamic_shapes": [{0: torch.export.Dim("rows", min=2, max=8)}]},
        edit=add_target_for_gpus,
    ),
}


def _code(documents: Documents, **notes: str | None) -> None:
    """Make the only target one of compiled code, with these annotations of its code. None: without."""
    raw = b"no shared library"
    code = documents.add_blob(media_types.CODE_AOTI, compression.compress(raw), raw)
    code["annotations"] = {key: value for key, value in (code["annotations"] | notes).items() if value is not None}
    ((key, inputs, outputs, _),) = documents.arities()
    given = [{"type": "value", "index": i} for i in range(inputs)]
    documents.target.update(name="cpu:amd64", kind="aoti", device="cpu", architecture="amd64")
    documents.target["executables"] = {key: {"code": code, "inputs": given, "outputs": list(range(outputs))}}
    documents.manifest["layers"].append(code)
    documents.manifest["annotations"][media_types.ANNOTATION_TARGET] = documents.target["name"]
    entry = documents.index["manifests"][0]
    entry["platform"] = {"architecture": "amd64", "os": "linux"}
    entry["annotations"] = {media_types.ANNOTATION_TARGET: documents.target["name"]}


_TARGET = {"target": "cpu:amd64"}
_TRUSTED = {**_TARGET, "trusted": True}

INVALID_CODE: dict[str, Invalid] = {
    "code_without_raw_digest": Invalid(
        "D6", "raw-digest", lambda d: _code(d, **{media_types.ANNOTATION_RAW_DIGEST: None}), more=_TRUSTED
    ),
    "code_of_another_raw_digest": Invalid(
        "D6", "digest", lambda d: _code(d, **{media_types.ANNOTATION_RAW_DIGEST: digest_of(b"other")}), more=_TRUSTED
    ),
    "code_without_trust": Invalid("S3", "trust", _code, kind="TrustError", more=_TARGET),
    "pickled_weights": Invalid("S1", "weights", lambda d: d.replace(d.program["weights"][0], b"\x80\x04cos\n_exit\nK\x42\x85R.")),
    "header_beyond_its_blob": Invalid(
        "S2", "header", lambda d: d.replace(d.program["weights"][0], (99_999_999).to_bytes(8, "little") + b"{}")
    ),
}
"""``pickled_weights`` ends the process of a reader that unpickles it."""
