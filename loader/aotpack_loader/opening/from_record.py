"""Loads a bundle of native code from the record of an earlier load, without reading its documents.

The documents are hashed as in any load, and so is the code. Whether the code may run is decided
again. What the documents say is in the record (:mod:`.record_files`), which a load of the same bytes
by this loader wrote after validating them. The documents are read when somebody asks for the program,
or when Python has to make a call. Anything unusual is left to :mod:`.documents`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any, cast

import torch

from .. import _process
from .._torch_compat import backward_is_compiled
from ..archive import cache
from ..archive.layout import Layout, open_layout
from ..devices import cpuinfo
from ..devices.call_library import SWITCH, CallLibrary, NativeCall, OpenedCode, Slots, import_library
from ..devices.call_sizes import make
from ..devices.packages import library_of, package_of, require_operators
from ..errors import CorruptBundleError, DirectoryError
from ..module.info import LoadInfo
from ..module.outline import EntryOutline, ModuleOutline, Outline, ParameterOutline
from ..module.program import LoadedProgram
from ..trust import decide_trust
from ..value import Value
from . import record_files
from .own_class import class_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from ..format import schema
    from ..optimizer.updates import OpenedUpdate, OpenUpdate
    from ..options import LoadOptions
    from ..runtime.call import MethodCall


class Blob(Value):
    """What the archive needs of a descriptor."""

    __slots__ = ("digest", "media_type", "size")

    digest: str
    media_type: str
    size: int

    def __init__(self, digest: str, size: int, media_type: str) -> None:
        self._set(digest, media_type, size)


def load(bundle: str | os.PathLike[str], options: LoadOptions) -> LoadedProgram | None:
    """Return the module; None if there is no record that fits, or something is unusual.

    Raises:
        AotpackError: as :func:`aotpack_loader.load`.
    """
    if not record_files.are_used(options) or (isinstance(bundle, str) and "://" in bundle):
        return None
    if os.environ.get("AOTPACK_POLICY") or os.environ.get(SWITCH) == "0":
        return None
    layout = open_layout(bundle)
    try:
        module = _from_record(os.fspath(bundle), layout, options.backend, options.trust)
    except BaseException:
        layout.close()
        raise
    if module is None:
        layout.close()
    return module


def _from_record(path: str, layout: Layout, backend: str | None, trust: str | Collection[str] | None) -> LoadedProgram | None:
    try:
        (index,) = json.loads(layout.read_index())["manifests"]
        digest = index["digest"]
        layout.read(_blob([digest, index["size"], index["mediaType"]]))
        root = cache.cache_root()
        record = record_files.read(root, digest, backend)
    except (DirectoryError, KeyError, RecursionError, TypeError, ValueError, CorruptBundleError):
        return None  # signed, damaged, or no bundle: its documents say more
    if record is None or not _suits_machine(record) or not all(map(layout.has, map(_blob, record["layers"]))):
        return None
    decision = decide_trust(digest, trust)
    if not decision.trusted:
        return None
    for document in record["documents"]:
        layout.read(_blob(document))
    rest = DeferredDocuments(layout, digest, record["target"])
    opened = _open(layout, root, record["code"], rest)
    if opened is None:
        return None
    _process.keep_freed_memory()
    tensors = _tensors(layout, record["tensors"])
    library, codes = opened
    calls = {name: _call(name, described, library, codes, tensors, rest) for name, described in record["methods"].items()}
    outline = _outline(record["outline"])
    reason = record["reason"].format(decision.reason)
    made = dict.fromkeys(calls, "native")
    info = LoadInfo(path, digest, record["target"], reason, rest.program, record["rejected"], made, rest.update)
    state = {name: tensors[name] for name in record["state"]}
    return class_of(outline)(info, outline, state, cast("dict[str, MethodCall]", calls))


def _suits_machine(record: Any) -> bool:
    """Whether this machine has the same features as the one of the record, of those that the bundle's targets ask for."""
    if record["machine"] != [cpuinfo.system(), cpuinfo.architecture()]:
        return False
    features = cpuinfo.features()
    return features.issuperset(record["features"]) and features.isdisjoint(record["missing"])


def _blob(fields: list[Any]) -> Any:
    return Blob(*fields)


class DeferredDocuments:
    """What a start from a record leaves out: the program, and the calls that Python makes."""

    def __init__(self, layout: Layout, digest: str, target: str) -> None:
        self._layout, self._digest, self._target = layout, digest, target
        self._lock = threading.Lock()
        self._read: tuple[schema.Program, dict[str, MethodCall], OpenUpdate] | None = None

    def _complete(self) -> tuple[schema.Program, dict[str, MethodCall], OpenUpdate]:
        with self._lock:
            if self._read is None:
                from .documents import complete  # a usual start and its steps need none of it

                with _process.collector_paused():
                    self._read = complete(self._layout, self._digest, self._target)
            return self._read

    def program(self) -> schema.Program:
        """The program."""
        return self._complete()[0]

    def call(self, name: str) -> MethodCall:
        """The calls of a method, in Python and in native code."""
        return self._complete()[1][name]

    def update(self, name: str) -> OpenedUpdate:
        """The method of an optimizer's update, and its code."""
        return self._complete()[2](name)


def _open(layout: Layout, root: Path, code: Any, rest: DeferredDocuments) -> tuple[CallLibrary, dict[str, OpenedCode]] | None:
    """The call library, and code by the names that documents have; None if a file is not there or does not open."""
    try:
        folder = cache.code_folder(root)
        library = import_library(_extracted(folder, code["library"]))
        return library, {
            name: _executable(layout, _extracted(folder, described["file"]), library, name, described["fallbacks"], rest)
            for name, described in code["executables"].items()
        }
    except (DirectoryError, ImportError, FileNotFoundError, RuntimeError):
        return None  # a load without the record extracts it, or says what is wrong


def _extracted(folder: Path, file: Any) -> Path:
    path = cache.extracted(folder, *file)
    if path is None:
        raise FileNotFoundError
    return path


def _executable(layout: Layout, path: Path, library: CallLibrary, name: str, listed: Any, rest: DeferredDocuments) -> OpenedCode:
    fallbacks = None if listed is None else bytes(layout.read(_blob(listed)))
    if fallbacks is not None:
        require_operators(fallbacks)

    def failed(message: str) -> None:
        from ..devices.refusals import of_compiled_code  # only for errors

        raise of_compiled_code(RuntimeError(message), rest.program(), name) from None

    return OpenedCode(library.open(library_of(package_of(path, fallbacks))), failed)


def _tensors(layout: Layout, record: Any) -> dict[str, torch.Tensor]:
    """The tensors of parameters, buffers and constants, by name."""
    bases: dict[str, torch.Tensor] = {}
    for blob, floats, integers in record["blobs"]:
        descriptor = _blob(blob)
        data = layout.map(descriptor) if floats else memoryview(b"")
        for name, dtype, start, stop in floats:
            bases[name] = torch.frombuffer(data[start:stop], dtype=getattr(torch, dtype))
        if integers:
            copies = layout.copies(descriptor, [(start, stop) for _, _, start, stop in integers])
            for (name, dtype, _, _), copied in zip(integers, copies, strict=True):
                bases[name] = torch.frombuffer(copied, dtype=getattr(torch, dtype))
    return {name: _view(bases, *fields) for name, fields in record["views"].items()}


def _view(
    bases: dict[str, torch.Tensor], base: str, dtype: str, shape: list[int], stride: list[int], offset: int
) -> torch.Tensor:
    if 0 in shape:
        return torch.empty_strided(shape, stride, dtype=getattr(torch, dtype), device="cpu")
    return bases[base].as_strided(shape, stride, offset).data  # .data makes an independent tensor


class RecordedCall:
    """The native calls of a method. For anything else it stands for the :class:`.runtime.call.MethodCall`."""

    def __init__(
        self, name: str, described: Any, native: NativeCall, rest: DeferredDocuments, *, is_differentiable: bool
    ) -> None:
        self.name, self.native = name, native
        self.flags: dict[str, bool] = described["flags"]
        self.unflatten = _unflattener(described["result"])
        self._count: int = described["count"]
        self._keys: list[str] = described["keys"]
        self._keywords = frozenset(self._keys)
        self._differentiable = is_differentiable
        self._rest = rest

    def natively(self, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> list[Any] | None:
        """As :meth:`.runtime.call.MethodCall.natively`. Arguments in another form than at build need the documents."""
        if self._differentiable and backward_is_compiled():
            return None
        if len(args) != self._count or kwargs.keys() != self._keywords:
            return self._rest.call(self.name).natively(args, kwargs, slots)
        return self.native([*args, *[kwargs[key] for key in self._keys]], slots)

    def __call__(self, *args: Any) -> Any:
        return self._rest.call(self.name)(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest.call(self.name), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedCall:
        return self


def _call(
    name: str,
    described: Any,
    library: CallLibrary,
    codes: dict[str, OpenedCode],
    tensors: dict[str, torch.Tensor],
    rest: DeferredDocuments,
) -> RecordedCall:
    library.on_refusal(_refuse, _has_hooks_of_caller)
    document = library.read(described["document"])
    native = make(document, codes, [tensors[constant] for constant in described["constants"]])
    return RecordedCall(name, described, native, rest, is_differentiable=document.is_differentiable)


def _refuse(reason: int, names: list[str], gradient: torch.Tensor | None) -> None:
    from ..runtime.native import refuse  # only for errors

    refuse(reason, names, gradient)


def _has_hooks_of_caller(hooks: Mapping[int, Any]) -> bool:
    from ..runtime.result_sources import has_hooks_of_caller  # only for results that have hooks

    return has_hooks_of_caller(hooks)


def _unflattener(tree: Any) -> Callable[[Iterator[Any]], Any]:
    """A function that builds a result from its leaves: tuples, lists and dictionaries of any depth."""
    kind, items, keys = tree
    if kind == "leaf":
        return next
    parts = [_unflattener(item) for item in items]
    if kind == "dict":
        return lambda leaves: {key: part(leaves) for key, part in zip(keys, parts, strict=True)}
    if kind == "tuple":
        return lambda leaves: tuple([part(leaves) for part in parts])
    return lambda leaves: [part(leaves) for part in parts]


def _outline(record: Any) -> Outline:
    signature = record["signature"]
    return Outline(
        list(starmap(EntryOutline, record["state"])),
        [ModuleOutline(**{**fields, "attributes": _plain_values(fields["attributes"])}) for fields in record["modules"]],
        None if signature is None else list(map(_parameter, signature)),
        record["training"],
        record["takes_loss_argument"],
        record["serves"],
        record["functions"],
    )


def _parameter(fields: list[Any]) -> ParameterOutline:
    name, kind, optional, opaque, default = fields
    return ParameterOutline(name, kind, optional, opaque, plain(default))


def _plain_values(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in attributes.items()}


_SEQUENCES: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "size": torch.Size}


def plain(value: Any) -> Any:
    """Plain data from the form that :func:`.recording.packed` gave it."""
    if not isinstance(value, list):
        return value
    kind, content = value
    if kind == "dict":
        return {plain(key): plain(item) for key, item in content}
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](map(plain, content))
    return complex(*content) if kind == "complex" else torch.device(content) if kind == "device" else getattr(torch, content)


__all__ = ["load", "plain"]
