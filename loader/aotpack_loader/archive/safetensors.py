"""The header of a safetensors file that is written. :mod:`.weights` reads files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from ..format.media_types import WEIGHTS_ALIGNMENT
from ..format.schema import DType
from .weights import CODES

Entry = tuple[str, str, Sequence[int], int]
"""A tensor to write: its name, the code of its element type, its sizes, and its size in bytes."""


def stored_as(dtype: DType, shape: Sequence[int], size: int) -> tuple[str, Sequence[int]]:
    """The code and sizes that a tensor of ``size`` bytes is stored with. Without a code for its element type it is bytes."""
    code = CODES.get(dtype)
    return (code, shape) if code else ("U8", [size])


def header(entries: Iterable[Entry], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return length and JSON for tensors whose bytes follow in this order. The data after it is aligned to 64 bytes."""
    fields: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, code, shape, size in entries:
        fields[name] = {"dtype": code, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % WEIGHTS_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
