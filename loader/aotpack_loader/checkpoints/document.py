"""``checkpoint.json``: what a checkpoint holds beside the bytes of its tensors."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta

from ..errors import Problem
from ..format.schema import ComplexArg, Digest, Document, DType, FloatArg, Name, Size

FileName = Annotated[str, Meta(pattern=r"^(model|values)-[0-9]{5}\.safetensors$", max_length=40)]


class StoredValue(Document, frozen=True, tag="tensor", tag_field="type"):
    """The tensor ``name`` among ``values``."""

    name: Name


class Items(Document, frozen=True, tag="items", tag_field="type"):
    """A tuple or a list."""

    kind: Literal["tuple", "list"]
    items: list[Plain]


class Entries(Document, frozen=True, tag="entries", tag_field="type"):
    """A dictionary, in the order of ``keys``. ``kind`` is that of a ``collections.Counter``, which some schedulers hold."""

    keys: list[str | int | bool]
    items: list[Plain]
    kind: Literal["dict", "counter"] = "dict"


Plain = bool | int | str | FloatArg | ComplexArg | StoredValue | Items | Entries | None
"""Plain data, and tensors in it."""


class StoredFile(Document, frozen=True):
    """A safetensors file of the folder."""

    name: FileName
    size: Size
    digest: Digest


class TensorEntry(Document, frozen=True):
    """A tensor. It is stored in the order of its dimensions; ``stride`` is what it had, empty if that is the same."""

    dtype: DType
    shape: list[Size]
    stride: list[Size] = []


class SavedGroup(Document, frozen=True):
    """A group of an optimizer: the names of its parameters in the model, and its options."""

    parameters: list[Name]
    options: dict[str, Plain]


class SavedOptimizer(Document, frozen=True):
    """An optimizer. ``kind`` is the name of its class, ``state`` what it holds for parameters, by their names.

    ``skipped`` counts steps of an optimizer of a bundle that were left out, as their gradients were not finite.
    """

    kind: str
    groups: list[SavedGroup]
    state: dict[Name, dict[str, Plain]] = {}
    skipped: Size = 0


class SavedScheduler(Document, frozen=True):
    """A scheduler, or whatever else has a state dict of plain data."""

    kind: str
    state: dict[str, Plain]


class NumpyGenerator(Document, frozen=True):
    """The state of NumPy's global generator, MT19937: words, how many of them are used, and a normal number in store."""

    key: Annotated[list[Annotated[int, Meta(ge=0, lt=2**32)]], Meta(min_length=624, max_length=624)]
    pos: Annotated[int, Meta(ge=0, le=624)]  # NumPy does not check it
    has_gauss: bool
    gauss: FloatArg


class CheckpointDocument(Document, frozen=True):
    """The whole document.

    ``model`` and ``values`` describe the tensors in the files of these names: those of the model, and those of optimizers and
    schedulers. ``tied`` are further names of tensors of the model. ``transient`` are buffers that are in no state dict.
    ``generator`` is the state of torch's generator for CPUs, ``device_generators`` has those of other kinds of devices that hold
    state of the model. ``python_random`` is that of Python's ``random``, and ``numpy_random`` that of ``numpy.random``; null if
    NumPy was not imported.
    """

    version: Literal[1]
    bundle: Digest
    step: Size
    files: list[StoredFile]
    model: dict[Name, TensorEntry]
    values: dict[Name, TensorEntry]
    generator: bytes
    python_random: Plain
    numpy_random: NumpyGenerator | None = None
    tied: dict[Name, Name] = {}
    transient: list[Name] = []
    optimizers: dict[Name, SavedOptimizer] = {}
    schedulers: dict[Name, SavedScheduler] = {}
    extra: dict[str, Plain] = {}
    device_generators: dict[str, bytes] = {}


class Encoder:
    """Turns values into plain data. Tensors among them go to ``tensors``, and what cannot be stored to ``problems``."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.problems: list[Problem] = []

    def mapping(self, values: Mapping[Any, Any], where: str) -> dict[str, Plain]:
        """Encode the items of a dictionary with names."""
        self.problems += (Problem(where, f"has the key {name!r}, and no text") for name in values if not isinstance(name, str))
        return {str(name): self.encode(value, f"{where}.{name}") for name, value in values.items()}

    def encode(self, value: Any, where: str) -> Plain:
        """Encode a value. ``where`` is its path, and the name of a tensor."""
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                self.problems.append(Problem(where, "is an integer of more than 64 bits"))
            return int(value)
        if isinstance(value, float):
            return as_float(value)
        if isinstance(value, complex):
            return ComplexArg(as_float(value.real).value, as_float(value.imag).value)
        if isinstance(value, torch.Tensor):
            while where in self.tensors:
                where += "'"
            self.tensors[where] = value
            return StoredValue(where)
        if type(value) in (list, tuple):
            items = [self.encode(item, f"{where}.{i}") for i, item in enumerate(value)]
            return Items("tuple" if type(value) is tuple else "list", items)
        if type(value) in (dict, OrderedDict, Counter) and all(isinstance(key, (str, int, bool)) for key in value):
            items = [self.encode(item, f"{where}.{key}") for key, item in value.items()]
            return Entries([*value], items, "counter" if type(value) is Counter else "dict")
        self.problems.append(Problem(where, f"is a {type(value).__name__}, and no plain data"))
        return None


def decoded(value: Plain, tensor: Callable[[str], torch.Tensor]) -> Any:
    """The Python value of plain data. ``tensor`` returns a tensor by its name."""
    if isinstance(value, FloatArg):
        return float(value.value)
    if isinstance(value, ComplexArg):
        return complex(float(value.real), float(value.imag))
    if isinstance(value, StoredValue):
        return tensor(value.name)
    if isinstance(value, Items):
        items = [decoded(item, tensor) for item in value.items]
        return tuple(items) if value.kind == "tuple" else items
    if isinstance(value, Entries):
        entries = {key: decoded(item, tensor) for key, item in zip(value.keys, value.items, strict=True)}
        return Counter(entries) if value.kind == "counter" else entries
    return value


def as_float(value: float) -> FloatArg:
    if math.isfinite(value):
        return FloatArg(float(value))
    return FloatArg("nan" if math.isnan(value) else "inf" if value > 0 else "-inf")
