"""Writes weights: safetensors shards whose tensors can be used in place.

This module decides order, alignment and sharding. The caller decides which tensors there are, and
their names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from aotpack_loader.archive.safetensors import header
from aotpack_loader.archive.weights import CODES, INTEGERS, MAX_HEADER_BYTES
from aotpack_loader.errors import BuildError
from aotpack_loader.format.media_types import PADDING_PREFIX, WEIGHTS, WEIGHTS_ALIGNMENT
from aotpack_loader.format.schema import Descriptor

from .bundle import BlobStore, BlobWriter

if TYPE_CHECKING:
    import torch

_CODES: dict[str, str] = {str(dtype): code for dtype, code in CODES.items()}
_STORED_AS_BYTES = frozenset({"complex32", "complex128"})


class _Item(NamedTuple):
    """A tensor of a shard. If ``tensor`` is None, it is padding of ``size`` bytes."""

    name: str
    code: str
    shape: list[int]
    size: int
    tensor: torch.Tensor | None

    @property
    def is_integer(self) -> bool:
        """Whether a loader hashes the blob of this tensor at each load."""
        return self.tensor is not None and str(self.tensor.dtype).removeprefix("torch.") in INTEGERS


def write_weights(
    tensors: Sequence[tuple[str, torch.Tensor]],
    store: BlobStore,
    shard_bytes: int = 5 * 10**9,
    *,
    media_type: str = WEIGHTS,
) -> list[Descriptor]:
    """Stream contiguous CPU tensors to safetensors blobs, in the order given, without a second copy in memory.

    Weights of integers and truth values get blobs of their own, which come last: a loader hashes
    those blobs at each load, and maps the others. Every tensor begins at a multiple of 64 bytes in
    its blob. A blob has at most about ``shard_bytes`` bytes, unless a single tensor is larger.
    Without tensors, there is no blob.

    Raises:
        BuildError: a name is reserved or given twice, or a tensor is not a contiguous, dense CPU
            tensor.
    """
    items = [_item(name, tensor) for name, tensor in tensors]
    _check_names([item.name for item in items])
    groups = [items]
    if media_type == WEIGHTS:
        groups = [[item for item in items if item.is_integer is wanted] for wanted in (False, True)]
    return [_write_shard(shard, store, media_type) for group in groups for shard in _shards(group, shard_bytes)]


def _item(name: str, tensor: torch.Tensor) -> _Item:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise BuildError(f"The tensor {name!r} cannot be stored: it is not a contiguous, dense CPU tensor.")
    if tensor.is_conj() or tensor.is_neg():
        raise BuildError(f"The tensor {name!r} cannot be stored: it is a lazy conjugate or negation; resolve it first.")
    size = tensor.numel() * tensor.element_size()
    if dtype in _STORED_AS_BYTES:
        return _Item(name, "U8", [size], size, tensor)
    code = _CODES.get(dtype)
    if code is None:
        raise BuildError(f"The tensor {name!r} cannot be stored: bundles have no element type {dtype}.")
    return _Item(name, code, list(tensor.shape), size, tensor)


def _check_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise BuildError(f"Two tensors are called {name!r}.")
        if name.startswith(PADDING_PREFIX) or name == "__metadata__" or not name:
            raise BuildError(f"The tensor name {name!r} is reserved.")
        seen.add(name)


def _shards(items: Sequence[_Item], shard_bytes: int) -> Iterator[list[_Item]]:
    shard: list[_Item] = []
    size = 0
    for item in items:
        if shard and size + item.size > shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(item)
        size += item.size + -item.size % WEIGHTS_ALIGNMENT
    if shard:
        yield shard


def _write_shard(shard: Sequence[_Item], store: BlobStore, media_type: str) -> Descriptor:
    items = list(_padded(shard))
    with store.writer(media_type) as blob:
        blob.write(_header(items))
        for item in items:
            _write_data(item, blob)
    if blob.descriptor is None:
        raise BuildError("The weights were not written completely.")
    return blob.descriptor


def _padded(items: Sequence[_Item]) -> Iterator[_Item]:
    """Yield ``items`` with padding tensors between them, because the safetensors crate accepts no holes."""
    for position, item in enumerate(items):
        yield item
        gap = -item.size % WEIGHTS_ALIGNMENT
        if gap and position + 1 < len(items):
            yield _Item(f"{PADDING_PREFIX}{position}", "U8", [gap], gap, None)


def _header(items: Sequence[_Item]) -> bytes:
    """Return length and JSON of a blob, after which the data is aligned."""
    text = header((item.name, item.code, item.shape, item.size) for item in items)
    if len(text) > MAX_HEADER_BYTES:
        raise BuildError(f"The header of a weight blob takes {len(text)} bytes; the limit is {MAX_HEADER_BYTES}.")
    return text


def _write_data(item: _Item, blob: BlobWriter) -> None:
    if item.tensor is None:
        blob.write(bytes(item.size))
    elif item.size:
        # The bytes of the tensor's own memory. numpy has fewer element types and may not be installed.
        memory = (ctypes.c_ubyte * item.size).from_address(item.tensor.data_ptr())
        blob.write(memory)
