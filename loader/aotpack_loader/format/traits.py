"""What a method asks of whoever calls it.

A method can be called in several ways: in Python, in native code, from the record of an earlier start, or as
operators in a caller's graph. Each way but Python's names the traits that it supports, and declines a method
with any other. So every way declines a trait that is added here until it supports it.

Note [Traits cover the schema]: tests/test_traits.py has a trait for each field that a method may have, or says
that every way reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum

from . import schema
from .containers import holds_given
from .subclasses import uses_subclasses


class Trait(Enum):
    """Something that not every way supports. The value says it of a method, and what to change in the model."""

    SUBCLASSES = "its tensors are subclasses, or its forward takes sizes; pass and keep plain tensors"
    CONTAINERS = "it changes or returns containers of its caller; return new ones"
    OTHER_CONTAINERS = "it returns other containers than tuples, lists and dictionaries"
    NESTED_ARGUMENTS = "it takes containers; pass their tensors"
    INTEGER_ARGUMENTS = "an integer argument varies; pass a tensor, or build for one number"
    SETS_REQUIRES_GRAD = "it calls requires_grad_() on an argument; do so before the call"
    COMPARES_ARGUMENTS = "it compares its arguments with `is`"
    FROM_START = "it takes arguments that begin their storage"
    SIZES_OF_DATA = "its sizes depend on data; pad to sizes that do not"
    UNREAD_SIZES_OF_DATA = "sizes of its results depend on data"
    AUTOCAST = "it was built under autocast; use autocast inside of forward"
    TURNS_ON_GRADIENTS = "it turns gradients on itself; turn them on around the call"
    DERIVATIVE = "it belongs to derivatives of gradients; build without second derivatives"
    STEP = "it is the update of an optimizer"
    BASES = "it writes to arguments that share memory; pass copies"
    WRITES_TO_ARGUMENTS = "it writes to its arguments or parameters; return new tensors"
    METADATA = "it changes sizes or strides in place; return a new tensor"
    WRITES_WITH_GRADIENTS = "what it writes to requires a gradient afterwards; return a new tensor"
    VIEWS = "it returns views; return clones"
    RETURNS_ARGUMENTS = "it returns its arguments"
    NUMBERS = "it returns numbers that vary; return tensors"
    SPARSE_RESULTS = "it returns sparse tensors; return dense ones"
    SPARSE_GRADIENTS = "it has sparse gradients; use sparse=False"
    STATE_WRITES = "its backward writes to a buffer; update state in forward"
    TANGENT_WRITES = "its backward writes to the gradient it is given; write to a clone"


def traits_of(method: schema.Method, state: Mapping[str, schema.StateEntry]) -> frozenset[Trait]:
    """The traits of a method; ``state`` are the program's parameters and buffers by name."""
    return frozenset(_traits(method, state))


def unsupported(traits: Collection[Trait], supported: Collection[Trait]) -> str:
    """The first reason why a way with the traits ``supported`` declines a method; empty: it does not."""
    return next((trait.value for trait in Trait if trait in traits and trait not in supported), "")


def _traits(method: schema.Method, state: Mapping[str, schema.StateEntry]) -> Iterator[Trait]:
    if uses_subclasses(method, state):
        yield Trait.SUBCLASSES
    if method.updates or holds_given(method.outputs):
        yield Trait.CONTAINERS
    if not _is_common(method.outputs):
        yield Trait.OTHER_CONTAINERS
    if _is_nested(method.inputs):
        yield Trait.NESTED_ARGUMENTS
    if method.identical or method.distinct:
        yield Trait.COMPARES_ARGUMENTS
    if method.output_symbols:
        yield Trait.UNREAD_SIZES_OF_DATA
    if any(symbol.needed for symbol in method.output_symbols):
        yield Trait.SIZES_OF_DATA
    if method.autocast is not None:
        yield Trait.AUTOCAST
    for leaf in method.leaves:
        yield from _of_leaf(leaf)
    for mutation in method.mutations:
        yield from _of_mutation(mutation, method.primals[mutation.primal])
    for result in method.results:
        yield from _of_result(result, method.primals)
    if any(isinstance(primal, (schema.SyntheticBasePrimal, schema.ViewBasePrimal)) for primal in method.primals):
        yield Trait.BASES
    if method.role == "derivative":
        yield Trait.DERIVATIVE
    if method.step:
        yield Trait.STEP
    if method.backward is not None:
        yield from _of_backward(method.backward)
        if not any(mode.grad for mode in method.serves):
            yield Trait.TURNS_ON_GRADIENTS


def _of_leaf(leaf: schema.InputLeaf) -> Iterator[Trait]:
    if isinstance(leaf, schema.IntegerLeaf):
        yield Trait.INTEGER_ARGUMENTS
    if isinstance(leaf, schema.TensorLeaf):
        if leaf.sets_requires_grad:
            yield Trait.SETS_REQUIRES_GRAD
        if leaf.from_start:
            yield Trait.FROM_START


def _of_mutation(mutation: schema.Mutation, primal: schema.Primal) -> Iterator[Trait]:
    if not isinstance(primal, schema.BufferPrimal):
        yield Trait.WRITES_TO_ARGUMENTS
    if mutation.kind != "data":
        yield Trait.METADATA
    if mutation.requires_grad:
        yield Trait.WRITES_WITH_GRADIENTS


def _of_result(result: schema.Result, primals: list[schema.Primal]) -> Iterator[Trait]:
    if isinstance(result, schema.AliasResult):
        yield Trait.VIEWS
    elif isinstance(result, schema.InputResult) and isinstance(primals[result.primal], schema.InputPrimal):
        yield Trait.RETURNS_ARGUMENTS
    elif isinstance(result, (schema.SizeResult, schema.NumberResult)):
        yield Trait.NUMBERS
    elif isinstance(result, schema.FreshResult) and result.sparse_dim is not None:
        yield Trait.SPARSE_RESULTS


def _of_backward(backward: schema.Backward) -> Iterator[Trait]:
    if backward.second is not None:
        yield Trait.DERIVATIVE
    if backward.sparse:
        yield Trait.SPARSE_GRADIENTS
    if backward.tangent_writes:
        yield Trait.TANGENT_WRITES
    if backward.state_writes:
        yield Trait.STATE_WRITES


def _is_common(tree: schema.Tree) -> bool:
    """Whether a tree holds only tuples, lists and plain dictionaries."""
    if isinstance(tree, schema.LeafNode):
        return True
    fits = isinstance(tree, schema.ListNode) or (isinstance(tree, schema.TupleNode) and not tree.size)
    fits = fits or (isinstance(tree, schema.DictNode) and not tree.ordered)
    return fits and all(map(_is_common, tree.items))  # type: ignore[union-attr]


def _is_nested(inputs: schema.Tree) -> bool:
    """Whether an argument of ``(args, kwargs)`` is a container."""
    return not all(isinstance(item, schema.LeafNode) for part in inputs.items for item in part.items)  # type: ignore[union-attr]
