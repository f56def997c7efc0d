"""Results that were named tuples, dataclasses or model outputs in the original.

The original class is never imported. Replacement classes are made here with the same fields.
torch's tree functions, DDP and FSDP treat them like the original. Two kinds of classes are taken
from modules that the caller has imported: ``torch.return_types``, and model outputs of the packages
in :data:`_MODEL_OUTPUTS`.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Self, TypeVar

from .._torch_compat import register_tree, return_type
from ..errors import CorruptBundleError, Problem
from ..format import schema

_T = TypeVar("_T")
Make = Callable[[list[Any]], Any]
"""Makes a record from the values of its fields, in order."""

_MODEL_OUTPUTS = {
    "transformers": ("transformers.utils.generic", "ModelOutput"),
    "diffusers": ("diffusers.utils.outputs", "BaseOutput"),
}
"""Packages whose model outputs are made if the caller has imported them, and the base class of all of them."""


def maker(tree: schema.RecordNode) -> Make:
    """Return the function that makes records of ``tree``.

    Raises:
        CorruptBundleError: a field cannot be an attribute (C40).
    """
    names = [*tree.fields, *tree.none_fields]
    if bad := [name for name in names if not _is_attribute(name, tree.kind)]:
        raise CorruptBundleError(
            "A bundle has a result with fields that cannot be attributes.",
            [Problem(tree.name, f"C40: has a field {name!r}") for name in bad],
        )
    fields, nones = tuple(tree.fields), tuple(tree.none_fields)
    if tree.kind == "tuple":
        return return_type(tree.name, len(fields)) or tuple_class(tree.name, fields)._make
    if tree.kind == "object":
        kind = object_class(tree.name, fields, nones, registered=not tree.leaf)
        return lambda values: kind(*values)
    return _MappingMaker(tree.name, fields, nones)


def _is_attribute(name: str, kind: str) -> bool:
    return name.isidentifier() and not name.startswith("_" if kind == "tuple" else "__")


class TupleRecord(tuple[Any, ...]):
    """Replacement for a named tuple. :func:`tuple_class` makes one subclass for each name and fields."""

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    _field_defaults: ClassVar[dict[str, Any]] = {}
    _recorded: ClassVar[tuple[Any, ...]] = ()

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Self:
        return tuple.__new__(cls, _bound(cls.__name__, cls._fields, args, kwargs))

    @classmethod
    def _make(cls, values: Iterable[Any]) -> Self:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, got {len(made)} values")
        return made

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, /, **changes: Any) -> Self:
        return type(self)(**{**self._asdict(), **changes})

    def __repr__(self) -> str:
        return _shown(self, self._fields)

    def __getattr__(self, name: str) -> Any:
        raise _no_attribute(self, name, self._fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (tuple_class, self._recorded, tuple(self))


@cache
def tuple_class(name: str, fields: tuple[str, ...]) -> type[TupleRecord]:
    """The replacement for named tuples of class ``name``."""
    body: dict[str, Any] = {field: property(operator.itemgetter(i)) for i, field in enumerate(fields)}
    body |= {"__slots__": (), "_fields": fields, "__match_args__": fields, "_recorded": (name, fields)}
    return _class(name, TupleRecord, body)


class ObjectRecord:
    """Replacement for a dataclass. :func:`object_class` makes one subclass for each name and fields."""

    _recorded: ClassVar[tuple[Any, ...]] = ()

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        self.__dict__.update(zip(names, _bound(type(self).__name__, names, args, kwargs, self._recorded[2]), strict=True))

    def __repr__(self) -> str:
        return _shown(self, [field.name for field in dataclasses.fields(self)])  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        raise _no_attribute(self, name, [field.name for field in dataclasses.fields(self)])  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_object, (*self._recorded, self.__dict__)


@cache
def object_class(name: str, fields: tuple[str, ...], nones: tuple[str, ...], *, registered: bool) -> type[ObjectRecord]:
    """The replacement for dataclasses of class ``name``. ``registered``: torch's tree functions flatten it."""
    kind = _dataclass(name, ObjectRecord, fields, nones, {"_recorded": (name, fields, nones, registered)})
    if registered:
        known = (*fields, *nones)

        def flatten(record: Any) -> tuple[list[Any], tuple[list[str], list[str]]]:
            values = {name: getattr(record, name) for name in known}
            given = [name for name in known if values[name] is not None]
            return [values[name] for name in given], (given, [name for name in known if values[name] is None])

        def unflatten(values: Iterable[Any], context: tuple[list[str], list[str]]) -> Any:
            return kind(**dict(zip(context[0], values, strict=True)), **dict.fromkeys(context[1]))

        register_tree(kind, flatten, unflatten, lambda context: context[0], keyed=False)
    return kind


class MappingRecord(OrderedDict[str, Any]):
    """Replacement for a model output: a mapping with keys as attributes, also indexed by position.

    :func:`mapping_class` makes one dataclass for each name and fields. Fields that are None are
    attributes but not keys.
    """

    _recorded: ClassVar[tuple[Any, ...]] = ()

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        if args and not kwargs and isinstance(args[0], Mapping):
            args, kwargs = args[1:], dict(args[0])
        values = dict(zip(names, _bound(type(self).__name__, names, args, kwargs, names), strict=True))
        _fill(self, values, [name for name in names if values[name] is None])

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if value is not None and name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            super().__setitem__(name, value)
        super().__setattr__(name, value)

    def to_tuple(self) -> tuple[Any, ...]:
        """The values in order."""
        return tuple(self.values())

    def __repr__(self) -> str:
        return _shown(self, [field.name for field in dataclasses.fields(self)])  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_mapping, (*self._recorded, dict(self))


@cache
def mapping_class(name: str, fields: tuple[str, ...], nones: tuple[str, ...]) -> type[MappingRecord]:
    """The replacement for model outputs of class ``name``."""
    body = {"_recorded": (name, fields, nones), "__hash__": None}
    kind = _dataclass(name, MappingRecord, (), (*fields, *nones), body)
    register_tree(
        kind,
        lambda record: (list(record.values()), list(record)),
        lambda values, context: kind(**dict(zip(context, values, strict=True))),
        lambda context: context,
        keyed=True,
    )
    return kind


class _MappingMaker:
    """Makes model outputs. Uses the original's class if the caller has imported it, else a replacement."""

    def __init__(self, name: str, fields: tuple[str, ...], nones: tuple[str, ...]) -> None:
        self._recorded = name, fields, nones
        package = name.partition(".")[0]
        self._module, self._base = _MODEL_OUTPUTS.get(package, _MODEL_OUTPUTS["transformers"])
        self._imported = False
        self._kind: type[OrderedDict[str, Any]] = mapping_class(*self._recorded)

    def __call__(self, values: list[Any]) -> Any:
        if not self._imported and self._module in sys.modules:
            self._imported = True
            self._kind = _imported_class(*self._recorded, self._module, self._base) or self._kind
        record = self._kind.__new__(self._kind)  # skips __init__ of a class that is not ours
        _fill(record, zip(self._recorded[1], values, strict=True), self._recorded[2])
        return record


def _fill(record: OrderedDict[str, Any], values: Iterable[tuple[str, Any]] | dict[str, Any], nones: Iterable[str]) -> None:
    """Set fields as keys and attributes, ``nones`` as attributes only."""
    record.__dict__.update(dict.fromkeys(nones))
    for name, value in values.items() if isinstance(values, dict) else values:
        if value is not None:
            OrderedDict.__setitem__(record, name, value)
            record.__dict__[name] = value


def _imported_class(
    name: str, fields: tuple[str, ...], nones: tuple[str, ...], module: str, base_name: str
) -> type[OrderedDict[str, Any]] | None:
    """The class ``name`` if its package was imported and defines it, else a similar class; None if there is neither.

    Nothing is imported. Names are looked up in the dictionaries of imported modules of the packages
    above. The class must derive from the package's base of model outputs and have these fields.
    """
    base = vars(sys.modules[module]).get(base_name)
    if not isinstance(base, type) or not issubclass(base, OrderedDict):
        return None
    home, _, shown = name.rpartition(".")
    if home.partition(".")[0] == module.partition(".")[0]:
        found = vars(sys.modules[home]).get(shown) if home in sys.modules else None
        if isinstance(found, type) and issubclass(found, base) and _has_fields(found, {*fields, *nones}):
            return found
    body = {"__reduce__": lambda record: (_rebuild_mapping, (name, fields, nones, dict(record))), "__hash__": None}
    return _dataclass(name, base, (), (*fields, *nones), body)


def _has_fields(kind: type, names: set[str]) -> bool:
    return dataclasses.is_dataclass(kind) and names <= {field.name for field in dataclasses.fields(kind)}


def _dataclass(name: str, base: type[_T], fields: tuple[str, ...], nones: tuple[str, ...], body: dict[str, Any]) -> type[_T]:
    """A dataclass whose fields are ``fields`` and then ``nones``, which default to None.

    Its methods come from ``base``, because ``dataclasses`` would generate and execute source code
    for its own.
    """
    body |= {"__annotations__": dict.fromkeys((*fields, *nones), Any)}
    body |= {field: dataclasses.field() for field in fields} | {field: dataclasses.field(default=None) for field in nones}
    return dataclasses.dataclass(init=False, repr=False, eq=False)(_class(name, base, body))


def _class(name: str, base: type[_T], body: dict[str, Any]) -> type[_T]:
    shown = name.rpartition(".")[2]
    shown = shown if shown.isidentifier() else "Record"
    body = {"__module__": __name__, "__qualname__": shown, **body}
    return types.new_class(shown, (base,), exec_body=lambda namespace: namespace.update(body))


def _bound(
    kind: str, names: Iterable[str], args: tuple[Any, ...], kwargs: dict[str, Any], optional: Iterable[str] = ()
) -> list[Any]:
    """The values of the fields ``names`` from the arguments of a call. ``optional`` fields default to None.

    Raises:
        TypeError: an argument is missing, unknown or given twice.
    """
    names = list(names)
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or given.keys() & kwargs.keys() or kwargs.keys() - set(names):
        raise TypeError(f"{kind} has the fields {', '.join(names)}: each is given once, and no others")
    values = {**dict.fromkeys(optional), **given, **kwargs}
    if missing := [name for name in names if name not in values]:
        raise TypeError(f"{kind} is missing {', '.join(missing)}")
    return [values[name] for name in names]


def _no_attribute(record: Any, name: str, fields: Iterable[str]) -> AttributeError:
    kind = type(record).__name__
    return AttributeError(
        f"This {kind} is a result of a bundle, which keeps the fields of the original class only: {', '.join(fields)}. "
        f"There is no {name!r}: compute it from these fields.",
        name=name,
        obj=record,
    )


def _shown(record: Any, names: Iterable[str]) -> str:
    return f"{type(record).__name__}({', '.join(f'{name}={getattr(record, name)!r}' for name in names)})"


def _rebuild(make: Callable[..., Any], recorded: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
    """Rebuild a copied or unpickled named tuple."""
    return make(*recorded)._make(values)


def _rebuild_object(
    name: str, fields: tuple[str, ...], nones: tuple[str, ...], registered: bool, values: dict[str, Any]
) -> ObjectRecord:
    record = object.__new__(object_class(name, fields, nones, registered=registered))
    record.__dict__.update(values)
    return record


def _rebuild_mapping(name: str, fields: tuple[str, ...], nones: tuple[str, ...], values: dict[str, Any]) -> Any:
    return _MappingMaker(name, fields, nones)([values.get(field) for field in fields])
