"""Note [Traits cover the schema]: each part of a method's description is a trait, or is read by all who call methods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format import schema
from aotpack_loader.format.traits import Trait, traits_of, unsupported
from aotpack_loader.integrations.torch_compile import methods
from aotpack_loader.opening import recording
from aotpack_loader.runtime import native

OF_TYPES = {
    "Subclass": Trait.SUBCLASSES,
    "Update": Trait.CONTAINERS,
    "GivenNode": Trait.CONTAINERS,
    "RecordNode": Trait.OTHER_CONTAINERS,
    "IntegerLeaf": Trait.INTEGER_ARGUMENTS,
    "OutputSymbol": Trait.UNREAD_SIZES_OF_DATA,
    "SyntheticBasePrimal": Trait.BASES,
    "ViewBasePrimal": Trait.BASES,
    "AliasResult": Trait.VIEWS,
    "Geometry": Trait.METADATA,
    "SizeResult": Trait.NUMBERS,
    "NumberResult": Trait.NUMBERS,
    "Second": Trait.DERIVATIVE,
    "SparseGradient": Trait.SPARSE_GRADIENTS,
    "TangentWrite": Trait.TANGENT_WRITES,
    "StateWrite": Trait.STATE_WRITES,
    "Writer": Trait.STATE_WRITES,
}
"""Types that only methods with a trait have."""

OF_FIELDS = {
    "Method.identical": Trait.COMPARES_ARGUMENTS,
    "Method.distinct": Trait.COMPARES_ARGUMENTS,
    "Method.autocast": Trait.AUTOCAST,
    "Method.sizes": Trait.SUBCLASSES,
    "Method.step": Trait.STEP,
    "TupleNode.size": Trait.OTHER_CONTAINERS,
    "DictNode.ordered": Trait.OTHER_CONTAINERS,
    "TensorLeaf.from_start": Trait.FROM_START,
    "TensorLeaf.sets_requires_grad": Trait.SETS_REQUIRES_GRAD,
    "Mutation.kind": Trait.METADATA,
    "Mutation.geometry": Trait.METADATA,
    "Mutation.requires_grad": Trait.WRITES_WITH_GRADIENTS,
    "FreshResult.sparse_dim": Trait.SPARSE_RESULTS,
}
"""Fields that are at their defaults unless a method has a trait."""

READ_BY_ALL = {
    *(f"Method.{name}" for name in (
        "symbols", "constraints", "mutations", "non_differentiable", "backward", "captured_with", "notes", "parameters",
        "defaults", "deterministic", "output_symbols", "rng", "touched", "subclasses", "flags", "updates", "lines",
        "function",
    )),
    *(f"Backward.{name}" for name in (
        "depends", "second", "subclasses", "sparse", "tangent_writes", "state_writes", "result_sources",
    )),
    *(f"Symbol.{name}" for name in ("maximum", "hint", "label")),
    *(f"TensorLeaf.{name}" for name in ("stride", "device", "requires_grad", "subclass", "fixed_stride")),
    "Mutation.hidden_from_autograd", "Mutation.unversioned",
    "FreshResult.requires_grad", "FreshResult.unviewed", "InputResult.laid_out",
    "SavedPrimal.part", "SavedOutput.check_version", "SavedOutput.donated",
    "Tangent.stride", "Tangent.memory_format", "Tangent.subclass",
}  # fmt: skip
"""Fields that every way to call a method reads, or none does. The types of some yield a trait themselves."""


def count_call(kind: msgspec.inspect.Type, seen: set[str]) -> Iterator[tuple[str, str]]:
    """The optional fields of all types that a method's description may hold, below the types of a trait."""
    if isinstance(kind, msgspec.inspect.StructType):
        name = kind.cls.__name__
        if name in seen or name in OF_TYPES or kind.cls is schema.Descriptor:
            return
        seen.add(name)
        for field in kind.fields:
            if not field.required:
                yield name, field.name
            yield from count_call(field.type, seen)
    for part in ("item_type", "value_type", "key_type"):
        if (inner := getattr(kind, part, None)) is not None:
            yield from count_call(inner, seen)
    for member in (*getattr(kind, "types", ()), *getattr(kind, "item_types", ())):
        yield from count_call(member, seen)


def test_every_field_is_a_trait_or_is_read() -> None:
    fields = {f"{name}.{field}" for name, field in count_call(msgspec.inspect.type_info(schema.Method), set())}
    known = OF_FIELDS.keys() | READ_BY_ALL
    assert fields - known == set(), "give it a trait in format/traits.py, or let every way to call a method read it"
    assert known - fields == set()
    assert {*OF_TYPES.values(), *OF_FIELDS.values()} | OTHERS == set(Trait)


OTHERS = {
    Trait.NESTED_ARGUMENTS,
    Trait.SIZES_OF_DATA,
    Trait.TURNS_ON_GRADIENTS,
    Trait.WRITES_TO_ARGUMENTS,
    Trait.RETURNS_ARGUMENTS,
}
"""Traits of what required fields say."""


@pytest.fixture
def method(tiny_bundle: Path) -> schema.Method:
    with Bundle.open(tiny_bundle) as bundle:
        return next(iter(bundle.program.methods.values()))


LEAF = schema.LeafNode()
BACKWARD = schema.Backward(schema.Descriptor("", "", 0), [], [], [])
SUBCLASS = schema.Subclass("two", ["a"], [], [], [])
GRAD, NO_GRAD = schema.Mode(training=True, grad=True), schema.Mode(training=True, grad=False)
INPUT, BUFFER = schema.InputPrimal(0), schema.BufferPrimal("b")


def with_backward(**fields: Any) -> dict[str, Any]:
    return {"serves": [GRAD], "backward": structs.replace(BACKWARD, **fields)}


def writing(primal: schema.Primal = BUFFER, **fields: Any) -> dict[str, Any]:
    return {"primals": [primal], "mutations": [schema.Mutation(0, 0, **fields)]}


@pytest.mark.parametrize(
    ("trait", "fields"),
    [
        (Trait.SUBCLASSES, {"sizes": ["s0"]}),
        (Trait.SUBCLASSES, {"subclasses": [SUBCLASS]}),
        (Trait.CONTAINERS, {"outputs": schema.GivenNode([0, 0])}),
        (Trait.OTHER_CONTAINERS, {"outputs": schema.TupleNode([LEAF], size=True)}),
        (Trait.OTHER_CONTAINERS, {"outputs": schema.ListNode([schema.DictNode(["a"], [LEAF], ordered=True)])}),
        (Trait.OTHER_CONTAINERS, {"outputs": schema.RecordNode("R", ["a"], [LEAF])}),
        (
            Trait.NESTED_ARGUMENTS,
            {"inputs": schema.TupleNode([schema.TupleNode([schema.ListNode([LEAF])]), schema.DictNode([], [])])},
        ),
        (Trait.INTEGER_ARGUMENTS, {"leaves": [schema.IntegerLeaf("n", "s0")]}),
        (Trait.SETS_REQUIRES_GRAD, {"leaves": [schema.TensorLeaf("x", "float32", [], sets_requires_grad=True)]}),
        (Trait.FROM_START, {"leaves": [schema.TensorLeaf("x", "float32", [], from_start=True)]}),
        (Trait.COMPARES_ARGUMENTS, {"distinct": True}),
        (Trait.COMPARES_ARGUMENTS, {"identical": [[0, 1]]}),
        (Trait.AUTOCAST, {"autocast": "bfloat16"}),
        (Trait.TURNS_ON_GRADIENTS, {"serves": [NO_GRAD], "backward": BACKWARD}),
        (Trait.DERIVATIVE, {"serves": []}),
        (Trait.DERIVATIVE, with_backward(second=schema.Second("train.second"))),
        (Trait.SPARSE_GRADIENTS, with_backward(sparse=[schema.SparseGradient(0, 0)])),
        (Trait.STATE_WRITES, with_backward(state_writes=[schema.StateWrite(0, 0, [])])),
        (Trait.TANGENT_WRITES, with_backward(tangent_writes=[schema.TangentWrite(0, 0)])),
        (Trait.BASES, {"primals": [schema.SyntheticBasePrimal([], "float32", 1)]}),
        (Trait.BASES, {"primals": [schema.ViewBasePrimal([], "float32", [1], [1])]}),
        (Trait.WRITES_TO_ARGUMENTS, writing(INPUT)),
        (Trait.METADATA, writing(kind="resize")),
        (Trait.WRITES_WITH_GRADIENTS, writing(requires_grad=True)),
        (Trait.VIEWS, {"results": [schema.AliasResult([], output=0)]}),
        (Trait.RETURNS_ARGUMENTS, {"primals": [INPUT], "results": [schema.InputResult(0)]}),
        (Trait.NUMBERS, {"results": [schema.SizeResult(1)]}),
        (Trait.NUMBERS, {"results": [schema.NumberResult(0)]}),
        (Trait.SPARSE_RESULTS, {"results": [schema.FreshResult(0, sparse_dim=1)]}),
        (Trait.UNREAD_SIZES_OF_DATA, {"output_symbols": [schema.OutputSymbol("u0", 0, needed=False)]}),
        (Trait.SIZES_OF_DATA, {"output_symbols": [schema.OutputSymbol("u0", 0)]}),
    ],
)
def test_a_trait_and_who_declines_it(method: schema.Method, trait: Trait, fields: dict[str, Any]) -> None:
    assert trait not in traits_of(method, {})
    found = traits_of(structs.replace(method, **fields), {})
    assert trait in found
    for supported in (native.SUPPORTED, recording.SUPPORTED, methods.SUPPORTED):
        assert bool(unsupported({trait}, supported)) == (trait not in supported)


def test_state_may_be_a_subclass(method: schema.Method) -> None:
    entry = schema.StateEntry("w", "parameter", "float32", [], [], "", subclass=SUBCLASS)
    assert Trait.SUBCLASSES in traits_of(structs.replace(method, primals=[schema.ParameterPrimal("w")]), {"w": entry})
