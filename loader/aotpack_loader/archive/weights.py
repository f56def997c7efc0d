"""Stored tensors: a strict reader of safetensors, and tensors that view its bytes without a copy.

This module checks all bounds before torch gets a view. It uses names but does not interpret them.
Integers and truth values may be indices, which compiled code trusts. Their blobs are hashed, and
their tensors are copies of the hashed bytes. Writers keep them in blobs of their own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Final

import msgspec

from ..errors import CorruptBundleError, Problem
from ..format.codec import MAX_ITEMS, has_too_many_items
from ..format.media_types import PADDING_PREFIX
from ..format.schema import Descriptor, DType
from .layout import Layout

if TYPE_CHECKING:
    from typing import Protocol

    import torch

    class TensorView(Protocol):
        """The argument of :meth:`WeightMap.tensor`; ``schema.StateEntry`` is one. Sizes are in elements."""

        @property
        def storage(self) -> str: ...
        @property
        def dtype(self) -> DType: ...
        @property
        def shape(self) -> Sequence[int]: ...
        @property
        def stride(self) -> Sequence[int]: ...
        @property
        def offset(self) -> int: ...


MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors crate."""
MAX_RANK: Final = 64
"""torch's own."""

ITEM_BYTES: Final[dict[str, int]] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""Bytes of one element, by the code of its dtype in safetensors."""

CODES: Final[dict[DType, str]] = {
    "bool": "BOOL", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
}  # fmt: skip
"""The code of each dtype in safetensors. A dtype without a code is stored as bytes (``U8``, one dimension)."""
INTEGERS: Final[frozenset[DType]] = frozenset(("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"))
"""The element types of which a wrong value can make code read or write other memory."""
_INTEGER_CODES: Final = frozenset(CODES[dtype] for dtype in INTEGERS)
_WITHOUT_CODE: Final[dict[DType, int]] = {"complex32": 4, "complex128": 16}


class StoredTensor(msgspec.Struct, frozen=True):
    """One tensor of a safetensors blob: code, shape, and its byte range ``[start, stop)`` in the blob."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class View(msgspec.Struct, frozen=True):
    """A :class:`TensorView` for tensors that are not in a state dict, such as constants."""

    storage: str
    dtype: DType
    shape: Sequence[int]
    stride: Sequence[int]
    offset: int = 0

    @classmethod
    def contiguous(cls, storage: str, dtype: DType, shape: Sequence[int]) -> View:
        """Return the view of a whole stored tensor of that shape."""
        strides = list(accumulate((max(size, 1) for size in reversed(shape[1:])), mul, initial=1)) if shape else []
        return cls(storage, dtype, shape, strides[::-1])


class WeightMap:
    """The stored tensors of some weight blobs, by name. A blob is mapped when the first tensor is read.

    Views of one stored tensor share memory. Two maps of one bundle do not. Tensors stay valid after
    the map and its layout are closed. With ``blank`` their elements are uninitialised.
    """

    def __init__(self, layout: Layout, descriptors: Sequence[Descriptor], *, blank: bool = False) -> None:
        self._layout = layout
        self._descriptors = tuple(descriptors)
        self._blank = blank
        self._stored: dict[str, tuple[StoredTensor, memoryview]] | None = None
        self._blob_of: dict[str, Descriptor] = {}
        self._checked: dict[str, memoryview] = {}
        self._bases: dict[str, torch.Tensor] = {}

    def names(self) -> list[str]:
        """Return the names of the stored tensors, in file order."""
        return list(self._index())

    def stored(self, name: str) -> StoredTensor:
        """Return the location and type of the stored tensor ``name``.

        Raises:
            CorruptBundleError: it does not exist.
        """
        return self._find(name)[0]

    def location(self, name: str) -> tuple[Descriptor, int, int]:
        """Return where the stored tensor ``name`` is: its blob, and its bytes ``[start, stop)`` there.

        Raises:
            CorruptBundleError: it does not exist.
        """
        stored = self.stored(name)
        return self._blob_of[name], stored.start, stored.stop

    def tensor(self, entry: TensorView) -> torch.Tensor:
        """Return the tensor that ``entry`` describes, as a writable, private view of the mapping without a copy.

        A tensor of integers or truth values is a copy whose digest was checked.

        Raises:
            CorruptBundleError: the stored tensor does not exist, has another dtype, or is too
                small, or integers are in a damaged blob.
        """
        stored, data = self._find(entry.storage)
        length = _elements(entry, stored)
        _check_bounds(entry, length)
        if entry.dtype in INTEGERS and not self._blank:
            data = self._hashed(entry.storage)
        import torch

        dtype: torch.dtype = getattr(torch, entry.dtype)
        try:
            if 0 in entry.shape:
                return torch.empty_strided(tuple(entry.shape), tuple(entry.stride), dtype=dtype, device="cpu")
            base = self._bases.get(entry.storage)
            if base is None:
                base = torch.empty(length, dtype=dtype, device="cpu") if self._blank else torch.frombuffer(data, dtype=dtype)
                self._bases[entry.storage] = base
            if base.dtype != dtype:
                raise _bad(entry.storage, f"it is used both as {base.dtype} and as {dtype}")
            # .data makes an independent tensor instead of a view that autograd would track.
            return base.as_strided(tuple(entry.shape), tuple(entry.stride), entry.offset).data
        except (RuntimeError, OverflowError) as error:
            raise _bad(entry.storage, str(error).partition("\n")[0]) from error

    def constant(self, name: str, dtype: DType, shape: Sequence[int]) -> torch.Tensor:
        """Return the whole stored tensor ``name`` as a contiguous tensor of ``shape``.

        Raises:
            CorruptBundleError: as :meth:`tensor`; or it has another number of elements.
        """
        view = View.contiguous(name, dtype, shape)
        stored, _ = self._find(name)
        length = _elements(view, stored)
        if math.prod(shape) != length:
            raise _bad(name, f"W8: a constant of shape {list(shape)} is all of it, and it holds {length} elements")
        return self.tensor(view)

    def _find(self, name: str) -> tuple[StoredTensor, memoryview]:
        found = self._index().get(name)
        if found is None:
            raise _bad(name, "it is in none of the bundle's weight blobs")
        return found

    def _hashed(self, name: str) -> memoryview:
        """Return a copy of a tensor of integers. The first call hashes its blob and copies all integers of it."""
        if name not in self._checked:
            blob = self._blob_of[name]
            index = self._index()
            found = {
                each: index[each][0]
                for each, holder in self._blob_of.items()
                if holder is blob and index[each][0].dtype in _INTEGER_CODES
            }
            start = min(index[each][0].start for each, holder in self._blob_of.items() if holder is blob)
            header, *copies = self._layout.copies(blob, [(0, start), *((t.start, t.stop) for t in found.values())])
            hashed = read_header(header, blob.digest, blob.size)
            if any(hashed.get(each) != stored for each, stored in found.items()):
                raise _bad(blob.digest, "it changed while it was read")
            self._checked |= zip(found, copies, strict=True)
        return self._checked[name]

    def _index(self) -> dict[str, tuple[StoredTensor, memoryview]]:
        if self._stored is None:
            index: dict[str, tuple[StoredTensor, memoryview]] = {}
            for descriptor in self._descriptors:
                data = self._layout.map(descriptor)
                for name, stored in read_header(data, descriptor.digest).items():
                    if name in index:
                        raise _bad(name, "two weight blobs hold it")
                    index[name] = stored, data[stored.start : stored.stop]
                    self._blob_of[name] = descriptor
            self._stored = index
        return self._stored


def read_header(data: memoryview, where: str, size: int | None = None) -> dict[str, StoredTensor]:
    """Return the tensors of the safetensors blob ``data``, without padding, in file order.

    ``data`` may be the beginning of a blob of ``size`` bytes.

    Raises:
        CorruptBundleError: the safetensors crate would refuse it; names the rule, and the blob as
            ``where``.
    """
    if len(data) < 8:
        raise _bad(where, f"a safetensors blob of {len(data)} bytes has no header")
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise _bad(where, f"its header claims {length} bytes of {len(data)}")
    if data[8] != ord("{"):
        raise _bad(where, "its header does not begin with '{'")
    if has_too_many_items(data[8 : 8 + length]):
        raise _bad(where, f"its header of {length} bytes has more than {MAX_ITEMS} items")
    try:
        header = json.loads(bytes(data[8 : 8 + length]).decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError, MemoryError) as error:
        raise _bad(where, f"its header is not valid JSON: {error}") from error
    header.pop("__metadata__", None)
    tensors = [(name, _stored(name, fields, 8 + length, where)) for name, fields in header.items()]
    tensors.sort(key=lambda item: (item[1].start, item[1].stop))
    position = 8 + length
    for name, stored in tensors:
        if stored.start != position:
            raise _bad(where, f"tensor {name!r} begins at byte {stored.start}, the one before it ends at {position}")
        position = stored.stop
    end = len(data) if size is None else size
    if position != end:
        raise _bad(where, f"its tensors end at byte {position}, the blob at {end}")
    return {name: stored for name, stored in tensors if not name.startswith(PADDING_PREFIX)}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name appears twice")
    return fields


def _stored(name: str, fields: object, base: int, where: str) -> StoredTensor:
    """Check one entry of the header. ``base`` is the offset of the data in the blob."""
    if not isinstance(fields, dict) or fields.keys() != {"dtype", "shape", "data_offsets"}:
        raise _bad(where, f"the header's entry {name!r} does not have the three fields of a tensor")
    code, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    item = ITEM_BYTES.get(code) if isinstance(code, str) else None
    if item is None:
        raise _bad(where, f"tensor {name!r} has the unknown dtype {code!r}")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2 or len(shape) > MAX_RANK:
        raise _bad(where, f"tensor {name!r} has a bad shape or bad offsets")
    if offsets[1] - offsets[0] != math.prod(shape) * item:
        raise _bad(where, f"tensor {name!r} of shape {shape} and dtype {code} does not fit its offsets {offsets}")
    return StoredTensor(code, tuple(shape), base + offsets[0], base + offsets[1])


def _are_sizes(value: object) -> bool:
    # type() instead of isinstance(), because JSON's true is not a size.
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _elements(entry: TensorView, stored: StoredTensor) -> int:
    """Return the number of elements of ``entry``'s dtype that the stored tensor holds."""
    code = CODES.get(entry.dtype)
    item = ITEM_BYTES[code] if code else _WITHOUT_CODE[entry.dtype]
    if stored.dtype != (code or "U8"):
        raise _bad(entry.storage, f"it is stored as {stored.dtype}, the program says {entry.dtype}")
    if stored.start % item:
        raise _bad(entry.storage, f"its data begins at byte {stored.start}, which is not a multiple of {item}")
    elements, rest = divmod(stored.stop - stored.start, item)
    if rest:
        raise _bad(entry.storage, f"its {stored.stop - stored.start} bytes are not whole elements of {entry.dtype}")
    return elements


def _check_bounds(entry: TensorView, length: int) -> None:
    """Refuse a view that exceeds ``length`` elements."""
    if len(entry.shape) != len(entry.stride) or len(entry.shape) > MAX_RANK:
        raise _bad(entry.storage, f"shape {list(entry.shape)} and stride {list(entry.stride)} do not go together")
    if min((*entry.shape, *entry.stride, entry.offset)) < 0:
        raise _bad(entry.storage, "a size, stride or offset is negative")
    if 0 in entry.shape:
        return
    last = entry.offset + sum((size - 1) * step for size, step in zip(entry.shape, entry.stride, strict=True))
    if last >= length:
        raise _bad(entry.storage, f"its element {last} is needed, it holds {length}")


def _bad(where: str, message: str) -> CorruptBundleError:
    return CorruptBundleError("The weights of the bundle break a rule of the format.", [Problem(where, message)])
