"""Merges equal computations of an HLO module: torch_xla writes a called computation once for each
call.

Only the fields of the serialised ``HloModuleProto`` that distinguish computations and instructions
are read (xla/service/hlo.proto has their numbers). The rest is copied unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

_MODULE_COMPUTATIONS = 3
_NAME, _INSTRUCTIONS, _ID, _ROOT = 1, 2, 5, 6
"""Fields of ``HloComputationProto``."""
_INSTRUCTION_NAME, _INSTRUCTION_ID, _OPERANDS, _PREDECESSORS, _CALLED = 1, 35, 36, 37, 38
"""Fields of ``HloInstructionProto``."""

_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Wire types of protocol buffers (protobuf.dev/programming-guides/encoding), and the sizes of the
fixed-size ones.
"""

_Field = tuple[int, int, bytes]
"""Field number, wire type, and encoded value; the value excludes a length prefix."""


def share_computations(hlo: bytes) -> bytes:
    """Return the module with each computation only once, however often it is called.

    Two computations are equal if they compute the same from the same inputs, whatever their names
    and ids.
    """
    kept: dict[int, int] = {}  # maps each computation's id to that of the first equal one
    first: dict[bytes, int] = {}
    written = []
    for field in fields(hlo):
        if field[0] == _MODULE_COMPUTATIONS:
            parts = list(fields(field[2]))  # the computations that it calls all come before it
            number = next(_decode(value) for key, _, value in parts if key == _ID)
            kept[number] = first.setdefault(_content(parts, kept), number)
            if kept[number] != number:
                continue
            field = (*field[:2], _write(_calling(parts, kept)))
        written.append(field)
    return _write(written)


def _content(computation: Sequence[_Field], kept: Mapping[int, int]) -> bytes:
    """A computation without names, with indices of instructions instead of ids."""
    instructions = [list(fields(value)) for number, _, value in computation if number == _INSTRUCTIONS]
    numbers = [next(_decode(value) for key, _, value in parts if key == _INSTRUCTION_ID) for parts in instructions]
    numbering = {number: new for new, number in enumerate(numbers)}
    found: list[_Field] = []
    for parts in instructions:
        plain = [field for field in parts if field[0] not in (_INSTRUCTION_NAME, _INSTRUCTION_ID)]
        found.append(
            (_INSTRUCTIONS, _BYTES, _write(_renumbered(plain, {_OPERANDS: numbering, _PREDECESSORS: numbering, _CALLED: kept})))
        )
    rest = [field for field in computation if field[0] not in (_NAME, _INSTRUCTIONS, _ID)]
    return _write(found + _renumbered(rest, {_ROOT: numbering}))


def _calling(computation: Sequence[_Field], kept: Mapping[int, int]) -> Iterator[_Field]:
    """A computation whose calls refer to the kept computations."""
    for number, kind, value in computation:
        if number == _INSTRUCTIONS:
            yield number, kind, _write(_renumbered(list(fields(value)), {_CALLED: kept}))
        else:
            yield number, kind, value


def _renumbered(fields: Sequence[_Field], tables: Mapping[int, Mapping[int, int]]) -> list[_Field]:
    return [
        (number, kind, b"".join(_encode(tables[number][item]) for item in _varints(value)) if number in tables else value)
        for number, kind, value in fields
    ]


def fields(message: bytes) -> Iterator[_Field]:
    """The fields of a serialised message, in the order in which they are written."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            end = _varint(message, at)[1]
        elif kind == _BYTES:
            length, at = _varint(message, at)
            end = at + length
        else:
            end = at + _FIXED[kind]
        yield number, kind, message[at:end]
        at = end


def _write(fields: Sequence[_Field] | Iterator[_Field]) -> bytes:
    return b"".join(
        _encode(number << 3 | kind) + (_encode(len(value)) if kind == _BYTES else b"") + value for number, kind, value in fields
    )


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number encoded at an offset, and the offset after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _varints(packed: bytes) -> Iterator[int]:
    at = 0
    while at < len(packed):
        value, at = _varint(packed, at)
        yield value


def _decode(value: bytes) -> int:
    return _varint(value, 0)[0]


def _encode(value: int) -> bytes:
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])
