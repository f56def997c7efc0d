"""Computations of an HLO module that are equal are one: torch_xla writes a called computation once for each call.

What is read here of the serialised ``HloModuleProto`` (xla/service/hlo.proto, whose field numbers are these) is what tells
computations and their instructions apart; the rest is copied as it is.
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
"""Kinds of values on the wire (protobuf.dev/programming-guides/encoding), and the sizes of those that have one."""

_Field = tuple[int, int, bytes]
"""Number, kind, and the value as it is written, without the length of one that has a length."""


def share_computations(hlo: bytes) -> bytes:
    """The module with each computation once, however often it is called.

    Two are equal if they compute the same from the same inputs, whatever their names and numbers are.
    """
    kept: dict[int, int] = {}  # each computation's number to that of the first equal one
    first: dict[bytes, int] = {}
    written = []
    for field in fields(hlo):
        if field[0] == _MODULE_COMPUTATIONS:
            parts = list(fields(field[2]))  # of those that it calls, all came before
            number = next(_decode(value) for key, _, value in parts if key == _ID)
            kept[number] = first.setdefault(_content(parts, kept), number)
            if kept[number] != number:
                continue
            field = (*field[:2], _write(_calling(parts, kept)))
        written.append(field)
    return _write(written)


def _content(computation: Sequence[_Field], kept: Mapping[int, int]) -> bytes:
    """A computation without names, and with the places of instructions for their numbers."""
    instructions = [list(fields(value)) for number, _, value in computation if number == _INSTRUCTIONS]
    numbers = [next(_decode(value) for key, _, value in parts if key == _INSTRUCTION_ID) for parts in instructions]
    places = {number: place for place, number in enumerate(numbers)}
    found: list[_Field] = []
    for parts in instructions:
        plain = [field for field in parts if field[0] not in (_INSTRUCTION_NAME, _INSTRUCTION_ID)]
        found.append(
            (_INSTRUCTIONS, _BYTES, _write(_renumbered(plain, {_OPERANDS: places, _PREDECESSORS: places, _CALLED: kept})))
        )
    rest = [field for field in computation if field[0] not in (_NAME, _INSTRUCTIONS, _ID)]
    return _write(found + _renumbered(rest, {_ROOT: places}))


def _calling(computation: Sequence[_Field], kept: Mapping[int, int]) -> Iterator[_Field]:
    """A computation that calls those that are kept."""
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
    """The number written at a position, and the position after it."""
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
