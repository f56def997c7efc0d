"""Metrics of a run: JSON lines, and an event file that TensorBoard reads.

An event file is a sequence of records (a length, the record, checksums of both), each a protocol buffer ``Event``. Only numbers
are written, so this needs neither TensorBoard nor protobuf.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aotpack_loader.archive.temporaries import temporary_file

METRICS = "metrics.jsonl"


class Metrics:
    """The metrics of a run in a folder. What was written for steps after ``step`` is dropped: they are taken again."""

    def __init__(self, folder: Path, step: int) -> None:
        path = folder / METRICS
        if path.exists():
            _keep_until(path, step)
        self._files = contextlib.ExitStack()
        self._lines = self._files.enter_context(path.open("a", encoding="utf-8"))
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._events = self._files.enter_context((folder / name).open("ab"))
        self._event(_text(3, b"brain.Event:2"))
        self._event(
            _number(2, step + 1) + _text(7, _number(1, 1))
        )  # a session begins: TensorBoard drops this step and later ones

    def write(self, step: int, values: Mapping[str, float], **others: Any) -> None:
        """Write numbers of a step, and for the JSON lines ``others``."""
        self._lines.write(json.dumps({"step": step, **others, **values}) + "\n")
        self._lines.flush()
        summary = b"".join(
            _text(1, _text(1, name.encode()) + b"\x15" + struct.pack("<f", value)) for name, value in values.items()
        )
        self._event(_number(2, step) + _text(5, summary))

    def _event(self, fields: bytes) -> None:
        self._events.write(record(b"\x09" + struct.pack("<d", time.time()) + fields))
        self._events.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._files.close()


def record(data: bytes) -> bytes:
    """A record of an event file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def crc32c(data: bytes) -> int:
    """The CRC of Castagnoli's polynomial, which ``zlib`` does not have."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()


def _masked(data: bytes) -> int:
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    """A field of text, or of a message."""
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _keep_until(path: Path, step: int) -> None:
    """Drop the lines of later steps, and one that a killed process left unfinished."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except ValueError:
            break
    with temporary_file(path.parent) as made:
        made.file.write("".join(kept).encode())
        made.move_to(path)
