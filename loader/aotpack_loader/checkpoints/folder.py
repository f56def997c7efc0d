"""The folder of a checkpoint: written under another name first, and read by its handle.

A reader sees the earlier checkpoint or the new one, never a part of either.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import torch
from msgspec.structs import replace

from ..archive.digest import PREFIX, sha256
from ..archive.safetensors import header, stored_as
from ..archive.temporaries import is_still_at, replace_directory, temporary_directory
from ..archive.weights import MAX_HEADER_BYTES, StoredTensor, read_header
from ..errors import AotpackError, CheckpointError, CorruptBundleError, Problem
from ..format.codec import MAX_DOCUMENT_BYTES, decode, has_too_many_items
from ..format.schema import DType
from ..runtime.memory import is_dense
from .document import CheckpointDocument, Plain, StoredFile, TensorEntry, decoded

DOCUMENT: Final = "checkpoint.json"
_FILE: Final = re.compile(r"(model|values)-\d{5}\.safetensors")
_CHUNK: Final = 8 << 20
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would wait for a writer


class OpenedCheckpoint(NamedTuple):
    """A checkpoint that was read: its document, and its tensors as private views of the mapped files."""

    document: CheckpointDocument
    model: dict[str, torch.Tensor]
    values: dict[str, torch.Tensor]

    def items(self, values: Mapping[str, Plain]) -> dict[str, Any]:
        """The Python values of plain data. Tensors are in memory of their own, with the strides that they had.

        Raises:
            CheckpointError: they name a tensor that the checkpoint does not have.
        """
        try:
            return {name: decoded(value, self._copy) for name, value in values.items()}
        except (KeyError, ValueError) as error:
            raise CheckpointError("The checkpoint is damaged.", [Problem(str(error), "is not there")]) from error

    def _copy(self, name: str) -> torch.Tensor:
        stored, entry = self.values[name], self.document.values[name]
        made = torch.empty_strided(entry.shape, entry.stride, dtype=stored.dtype) if entry.stride else torch.empty_like(stored)
        return made.copy_(stored)


# ---------------------------------------------------------------- writing


def checked_target(path: str | os.PathLike[str]) -> Path:
    """Return the real path of a checkpoint to write.

    Raises:
        CheckpointError: its parent is no directory, or it is something else than a checkpoint. Nothing else is replaced.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise CheckpointError(f"There is no directory {target.parent} to write the checkpoint to.", hint="Create it first.")
    names = set(os.listdir(target)) if target.is_dir() else set()
    others = [name for name in sorted(names) if name != DOCUMENT and not _FILE.fullmatch(name)]
    if (target.exists() and not target.is_dir()) or others or (names and DOCUMENT not in names):
        found = f"it holds {others[0]!r}" if others else "it is a file" if not names else f"it has no {DOCUMENT}"
        raise CheckpointError(f"{target} is no checkpoint and is not replaced: {found}.", hint="Choose another path.")
    return target


def write_folder(
    target: Path, document: CheckpointDocument, tensors: Mapping[str, Mapping[str, torch.Tensor]], shard_bytes: int
) -> None:
    """Write ``document`` and the tensors of ``model`` and ``values`` to ``target``, in place of an earlier checkpoint there.

    Raises:
        CheckpointError: it cannot be written, or is too large. What was at ``target`` is still there.
    """
    try:
        with temporary_directory(target.parent, mode=0o777) as folder:
            files = [
                write_tensors(folder / f"{group}-{i + 1:05}.safetensors", shard)
                for group, items in tensors.items()
                for i, shard in enumerate(shards(items, shard_bytes))
            ]
            data = encoded(replace(document, files=files))
            with open(folder / DOCUMENT, "xb", buffering=0) as file:
                _write(file.fileno(), memoryview(data))
                os.fsync(file.fileno())
            _sync(folder)
            replace_directory(folder, target)
            _sync(target.parent)
    except OSError as error:
        hint = "An earlier checkpoint at this path is as it was." if target.exists() else ""
        raise CheckpointError(f"The checkpoint {target} cannot be written: {error.strerror}.", hint=hint) from error


def encoded(document: CheckpointDocument) -> bytes:
    """Return the JSON bytes of ``document``, which can be read again. Dictionaries keep their order.

    Raises:
        CheckpointError: it is too large, or holds what could not be read again.
    """
    try:
        data = msgspec.json.encode(document)
        if len(data) > MAX_DOCUMENT_BYTES or has_too_many_items(data):
            raise CheckpointError("The state has too much plain data for a checkpoint.", hint="Keep arrays as tensors.")
        decode(data, CheckpointDocument, where=DOCUMENT)
    except CorruptBundleError as error:
        raise CheckpointError("The state cannot be stored in a checkpoint.", error.problems) from error
    except (TypeError, ValueError, RecursionError) as error:  # no plain data, text that is no Unicode, too deep
        raise CheckpointError("The state cannot be stored in a checkpoint.", [Problem("", str(error))]) from error
    return data


def shards(tensors: Mapping[str, torch.Tensor], shard_bytes: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors in parts of at most ``shard_bytes``, unless one is larger. Elements are aligned in each part."""
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    if shard:
        yield shard


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> StoredFile:
    """Write a new safetensors file, durably, without a second copy of a tensor that is contiguous.

    Raises:
        CheckpointError: there are too many tensors for the format's header.
        OSError: it cannot be written.
    """
    entries = [(name, *stored_as(dtype_name(t), t.shape, t.nbytes), t.nbytes) for name, t in tensors.items()]
    head = header(entries, metadata)
    if len(head) > MAX_HEADER_BYTES:
        raise CheckpointError(f"The header of {path.name} takes {len(head)} bytes; the limit is {MAX_HEADER_BYTES}.")
    digest, size = hashlib.sha256(head), len(head)
    buffer = bytearray(_CHUNK)
    with open(path, "xb", buffering=0) as file:
        _write(file.fileno(), memoryview(head))
        for tensor in tensors.values():
            for part in _bytes(tensor, buffer):
                digest.update(part)
                _write(file.fileno(), part)
            size += tensor.nbytes
        os.fsync(file.fileno())
    return StoredFile(path.name, size, PREFIX + digest.hexdigest())


def dtype_name(tensor: torch.Tensor) -> DType:
    """The name of a tensor's element type, without ``torch.``."""
    return str(tensor.dtype).removeprefix("torch.")  # type: ignore[return-value]


def _bytes(tensor: torch.Tensor, buffer: bytearray) -> Iterator[memoryview]:
    """Yield a tensor's bytes in the order of its dimensions. Each part is in ``buffer`` until the next."""
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    window, view = torch.frombuffer(buffer, dtype=torch.uint8), memoryview(buffer)
    for part in whole.view(torch.uint8).split(_CHUNK) if whole.numel() else ():
        window[: len(part)].copy_(part)
        yield view[: len(part)]


def _write(handle: int, data: memoryview) -> None:
    while data:
        data = data[os.write(handle, data) :]


def _sync(folder: Path) -> None:
    handle = os.open(folder, _OPEN_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---------------------------------------------------------------- reading


def read_folder(path: str | os.PathLike[str]) -> OpenedCheckpoint:
    """Read the checkpoint at ``path`` and check it: digests of all files, and that tensors are what the document says.

    Its files are mapped. The tensors stay valid whatever happens to the folder.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    while True:
        try:
            handle = os.open(path, _OPEN_DIRECTORY)
        except OSError as error:
            hint = "A checkpoint is a folder that save_checkpoint() has written."
            raise CheckpointError(f"There is no checkpoint at {os.fspath(path)!r}: {error.strerror}.", hint=hint) from error
        try:
            return _read(handle)
        except FileNotFoundError as error:
            if is_still_at(handle, Path(os.path.realpath(path))):
                raise CheckpointError(f"{os.fspath(path)!r} is no whole checkpoint: it has no {error.filename}.") from error
            # else another process has replaced it meanwhile
        except OSError as error:
            raise CheckpointError(f"The checkpoint {os.fspath(path)!r} cannot be read: {error.strerror}.") from error
        except (CorruptBundleError, KeyError, ValueError) as error:
            problems = error.problems if isinstance(error, AotpackError) else [Problem("", str(error))]
            raise CheckpointError(f"The checkpoint {os.fspath(path)!r} is damaged.", problems) from error
        finally:
            os.close(handle)


def _read(folder: int) -> OpenedCheckpoint:
    document = decode(_mapped(folder, DOCUMENT), CheckpointDocument, where=DOCUMENT)
    if len({file.name for file in document.files}) < len(document.files):
        raise CorruptBundleError("", [Problem(DOCUMENT, "lists a file twice")])
    maps = {file.name: _mapped(folder, file.name) for file in document.files}
    for file in document.files:
        if len(maps[file.name]) != file.size or sha256(maps[file.name]) != file.digest:
            raise CorruptBundleError("", [Problem(file.name, "has other bytes than were written")])
    if lost := [name for name, first in document.tied.items() if first not in document.model]:
        raise CorruptBundleError("", [Problem(name, "is tied to a tensor that is not there") for name in lost])
    found = []
    for group, entries in (("model", document.model), ("values", document.values)):
        stored = {
            name: (data, one)
            for file, data in maps.items()
            if file.startswith(group)
            for name, one in read_header(data, file).items()
        }
        if stored.keys() != entries.keys():
            names = ", ".join(sorted(stored.keys() ^ entries.keys())[:5])
            raise CorruptBundleError("", [Problem(group, f"the files and {DOCUMENT} list other tensors: {names}")])
        found.append({name: _tensor(name, entry, *stored[name]) for name, entry in entries.items()})
    return OpenedCheckpoint(document, *found)


def _mapped(folder: int, name: str) -> memoryview:
    """A file's bytes. Writes to them stay in this process."""
    with open(os.open(name, _OPEN_FILE, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise CorruptBundleError("", [Problem(name, "is no regular file")])
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))  # an empty file is a ValueError


def _tensor(name: str, entry: TensorEntry, data: memoryview, stored: StoredTensor) -> torch.Tensor:
    """The view of a stored tensor, in the order of its dimensions."""
    dtype: torch.dtype = getattr(torch, entry.dtype)
    size = stored.stop - stored.start
    code, shape = stored_as(entry.dtype, entry.shape, size)
    if (stored.dtype, list(stored.shape)) != (code, list(shape)) or size != math.prod(entry.shape) * dtype.itemsize:
        raise CorruptBundleError("", [Problem(name, f"is not stored as {entry.dtype}{entry.shape}")])
    if stored.start % dtype.itemsize or (entry.stride and not _fills_memory(entry)):
        raise CorruptBundleError("", [Problem(name, "is not aligned, or its strides leave gaps")])
    if not size:
        return torch.empty(entry.shape, dtype=dtype)
    return torch.frombuffer(data[stored.start : stored.stop], dtype=dtype).reshape(entry.shape)


def _fills_memory(entry: TensorEntry) -> bool:
    return len(entry.stride) == len(entry.shape) and is_dense(entry.shape, entry.stride)
