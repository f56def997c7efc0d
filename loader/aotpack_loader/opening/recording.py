"""Writes the record of a load, from which the next load of the same bundle starts (:mod:`.from_record`).

A load is recorded if all its calls are made in native code at fixed sizes, and nothing about it is
unusual. For other bundles each load reads the documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from ..archive.bundle import Bundle, raw_size
from ..archive.weights import INTEGERS, View
from ..devices import cpuinfo
from ..devices.aoti import AotiDevice
from ..errors import DirectoryError
from ..format import media_types, schema
from ..format.interface import call_trees
from ..format.native_call import encode
from ..format.traits import Trait, unsupported
from ..module.info import LoadInfo
from ..module.outline import ModuleOutline, Outline
from ..options import LoadOptions
from ..runtime import native
from ..runtime.call import MethodCall
from ..runtime.native import is_whole, opened_codes
from ..runtime.native_document import describe
from . import record_files

if TYPE_CHECKING:
    from ..devices.select import Selection


SUPPORTED: Final = native.SUPPORTED - {Trait.OTHER_CONTAINERS, Trait.NESTED_ARGUMENTS}
"""What a method of a load that is recorded may have."""


class _UnusualError(Exception):
    """This load is not recorded."""


def keep(
    bundle: Bundle, options: LoadOptions, chosen: Selection, outline: Outline, info: LoadInfo, calls: Mapping[str, MethodCall]
) -> None:
    """Record a load, if its next one can start from a record. Nothing happens where the cache cannot be written to."""
    if not record_files.are_used(options) or not _is_usual(bundle, chosen, info):
        return
    try:
        record_files.write(bundle.digest, options.backend, _record(bundle, chosen, outline, info, calls))
    except (_UnusualError, DirectoryError, OSError):
        return  # the next load reads the documents, as this one did


def _is_usual(bundle: Bundle, chosen: Selection, info: LoadInfo) -> bool:
    return (
        isinstance(chosen.device, AotiDevice)
        and not bundle.has_attachments
        and not chosen.fallback
        and info.program.pretrained is None
        and not info.program.requirements.subclasses
        and all(made == "native" for made in info.calls.values())
    )


def _record(
    bundle: Bundle, chosen: Selection, outline: Outline, info: LoadInfo, calls: Mapping[str, MethodCall]
) -> dict[str, Any]:
    features = {feature for target in bundle.targets.values() for feature in target.cpu_features}
    present = features & cpuinfo.features()
    prefix, middle, _ = info.reason.rpartition("; ")
    constants = [p for m in info.program.methods.values() for p in m.primals if isinstance(p, schema.ConstantPrimal)]
    entries = [entry for entry in info.program.state if not entry.tied_to]
    views: dict[str, schema.StateEntry | View] = {entry.name: entry for entry in entries}
    if {p.name for p in constants} & {entry.storage for entry in entries}:
        raise _UnusualError  # a constant has memory of its own
    views |= {_constant(p.name): View.contiguous(p.name, p.dtype, p.shape) for p in constants}
    return {
        "documents": [_blob(document) for document in bundle.documents()],
        "layers": [_blob(layer) for layer in bundle.manifests[chosen.target.name].manifest.layers],
        "machine": [cpuinfo.system(), cpuinfo.architecture()],
        "features": sorted(present),
        "missing": sorted(features - present),
        "target": chosen.target.name,
        "reason": f"{prefix}{middle}".replace("{", "{{").replace("}", "}}") + "{}",
        "rejected": chosen.rejected,
        "code": _code(chosen, calls),
        "tensors": _tensors(bundle, views),
        "state": [entry.name for entry in entries],
        "methods": {name: _method(call) for name, call in calls.items()},
        "outline": _outline(outline),
    }


def _constant(name: str) -> str:
    """A key for a constant, which no state entry has."""
    return f"constant {name}"


def _blob(descriptor: schema.Descriptor) -> list[Any]:
    return [descriptor.digest, descriptor.size, descriptor.media_type]


def _file(descriptor: schema.Descriptor) -> list[Any]:
    """The arguments of :func:`.archive.cache.extracted`."""
    return [descriptor.annotations[media_types.ANNOTATION_RAW_DIGEST], raw_size(descriptor), ".so"]


def _code(chosen: Selection, calls: Mapping[str, MethodCall]) -> dict[str, Any]:
    """The files of the call library, and of the code by the names that documents have."""
    target = chosen.target
    names = [name for call in calls.values() for name in opened_codes(call)]
    if target.call is None or not target.executables.keys() >= set(names):
        raise _UnusualError
    return {"library": _file(target.call.code), "executables": {name: _executable(target.executables[name]) for name in names}}


def _executable(executable: schema.Executable) -> dict[str, Any]:
    fallbacks = None if executable.fallbacks is None else _blob(executable.fallbacks)
    return {"file": _file(executable.code), "fallbacks": fallbacks}


def _tensors(bundle: Bundle, views: Mapping[str, schema.StateEntry | View]) -> dict[str, Any]:
    stored = bundle.weights()
    blobs: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {}
    for view in views.values():
        if 0 in view.shape:
            continue
        descriptor, start, stop = stored.location(view.storage)
        _, floats, integers = blobs.setdefault(descriptor.digest, (_blob(descriptor), {}, {}))
        fields = [view.storage, view.dtype, start, stop]
        (integers if view.dtype in INTEGERS else floats)[view.storage] = fields
    return {
        "blobs": [
            [blob, list(floats.values()), sorted(integers.values(), key=lambda fields: cast(int, fields[2]))]
            for blob, floats, integers in blobs.values()
        ],
        "views": {
            name: [view.storage, view.dtype, list(view.shape), list(view.stride), view.offset] for name, view in views.items()
        },
    }


def _method(call: MethodCall) -> dict[str, Any]:
    method = call.method
    args, kwargs = call_trees(method.inputs)
    if not is_whole(call) or unsupported(call.traits, SUPPORTED):
        raise _UnusualError
    return {
        "document": encode(describe(call)).decode(),
        "constants": [_constant(p.name) for p in method.primals if isinstance(p, schema.ConstantPrimal)],
        "flags": call.flags,
        "count": len(args.items),
        "keys": [str(key) for key in kwargs.keys],
        "result": _tree(method.outputs),
    }


def _tree(tree: schema.Tree) -> list[Any]:
    """A result's tree: kind, items and keys."""
    if isinstance(tree, schema.LeafNode):
        return ["leaf", [], []]
    if isinstance(tree, schema.TupleNode) and not tree.size:
        return ["tuple", [_tree(item) for item in tree.items], []]
    if isinstance(tree, schema.ListNode):
        return ["list", [_tree(item) for item in tree.items], []]
    if isinstance(tree, schema.DictNode) and not tree.ordered:
        return ["dict", [_tree(item) for item in tree.items], tree.keys]
    raise _UnusualError


def _outline(outline: Outline) -> dict[str, Any]:
    signature = outline.signature
    return {
        "state": [[e.name, e.kind, e.requires_grad, e.persistent, e.tied_to] for e in outline.state],
        "modules": [
            {
                **{field: getattr(module, field) for field in ModuleOutline.__slots__},
                "attributes": {name: packed(value) for name, value in module.attributes.items()},
            }
            for module in outline.modules
        ],
        "signature": None
        if signature is None
        else [[p.name, p.kind, p.optional, p.opaque, packed(p.default)] for p in signature],
        "training": outline.training,
        "takes_loss_argument": outline.takes_loss_argument,
        "serves": outline.serves,
        "functions": outline.functions,
    }


def packed(value: Any) -> Any:
    """Plain data in a form that JSON keeps; :func:`.from_record.plain` reverses it."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is dict:
        return ["dict", [[packed(key), packed(item)] for key, item in value.items()]]
    if isinstance(value, (list, tuple)):
        kind = "size" if isinstance(value, torch.Size) else "tuple" if isinstance(value, tuple) else "list"
        return [kind, [packed(item) for item in value]]
    if type(value) is complex:
        return ["complex", [value.real, value.imag]]
    return ["device", str(value)] if isinstance(value, torch.device) else ["torch", str(value).removeprefix("torch.")]
