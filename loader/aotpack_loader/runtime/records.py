"""Results that were named tuples, dataclasses or model outputs in the original.

The original class is not here and is never imported: these stand in for it, with the same fields.
"""

from __future__ import annotations

from typing import Any


class TupleRecord(tuple[Any, ...]):
    """Stands in for a named tuple: unpacks, indexes, and has its fields as attributes."""

    _fields: tuple[str, ...]

    @classmethod
    def make(cls, name: str, fields: list[str], values: list[Any]) -> TupleRecord:
        record = cls(values)
        record._fields = tuple(fields)
        record.__dict__.update(zip(fields, values, strict=True))
        return record


class MappingRecord(dict[str, Any]):
    """Stands in for a model output: a mapping whose keys are attributes and whose values can be indexed by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: str | int | slice) -> Any:
        return dict.__getitem__(self, key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """The values in order."""
        return tuple(self.values())


class ObjectRecord:
    """Stands in for a dataclass: its fields as attributes."""

    def __init__(self, name: str, fields: list[str], values: list[Any]) -> None:
        self.__dict__.update(zip(fields, values, strict=True))
        self._name = name
        self._fields = tuple(fields)

    def __repr__(self) -> str:
        inner = ", ".join(f"{field}={getattr(self, field)!r}" for field in self._fields)
        return f"{self._name.rpartition('.')[2]}({inner})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRecord) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]
