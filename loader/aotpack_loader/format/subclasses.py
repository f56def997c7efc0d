"""Tensor subclasses in documents: where they occur, the plain tensors inside them, and rules K1 to K5."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..errors import Problem
from ..text import shown
from . import schema

MAX_DEPTH = 16
MAX_SIZE = 2**62
"""Of subclasses in subclasses, and of containers in their metadata: no class nests as deeply."""

Placed = tuple[str, schema.Subclass]
"""Where a subclass stands in the program, and the subclass."""


def plain_tensors(subclass: schema.Subclass | None) -> int:
    """Number of plain tensors that a value has in a graph. A subclass has several, nested ones included."""
    return 1 if subclass is None else sum(plain_tensors(_nested(part)) for part in subclass.parts)


def part_names(subclass: schema.Subclass | None) -> list[str]:
    """The attribute path of each plain tensor of a value (``.a.b``), in order; empty for a plain tensor."""
    if subclass is None:
        return [""]
    held = zip(subclass.attributes, subclass.parts, strict=True)
    return [f".{attribute}{name}" for attribute, part in held for name in part_names(_nested(part))]


def part_positions(values: Sequence[schema.Subclass | None]) -> list[range]:
    """The range of each value among a graph's inputs or outputs, which are plain tensors."""
    found: list[range] = []
    for value in values:
        start = found[-1].stop if found else 0
        found.append(range(start, start + plain_tensors(value)))
    return found


def of_outputs(method: schema.Method) -> list[schema.Subclass | None]:
    """The subclass of each output of the forward; None for a plain value."""
    return method.subclasses or [None] * method.num_outputs


def of_gradients(backward: schema.Backward) -> list[schema.Subclass | None]:
    """The subclass of each output of the backward; None for a plain tensor."""
    return backward.subclasses or [None] * num_backward_outputs(backward)


def of_primals(method: schema.Method, entries: Mapping[str, schema.StateEntry]) -> list[schema.Subclass | None]:
    """The subclass of each primal of ``method``, given the program's state by name; None for a plain tensor."""
    return [_of_primal(primal, entries, method.leaves) for primal in method.primals]


def uses_subclasses(method: schema.Method, entries: Mapping[str, schema.StateEntry]) -> bool:
    """Whether any value of the method is a tensor subclass or its forward takes sizes, given the program's state by name."""
    return bool(method.sizes) or any(of_primals(method, entries)) or any(of_method(method, ""))


def forward_arity(method: schema.Method, entries: Mapping[str, schema.StateEntry]) -> tuple[int, int]:
    """Number of inputs and outputs of the forward graph, given the program's state by name."""
    inputs = sum(map(plain_tensors, of_primals(method, entries))) + len(method.sizes)
    return inputs, _flat_count(method.num_outputs, method.subclasses)


def backward_arity(backward: schema.Backward) -> tuple[int, int]:
    """Number of inputs and outputs of a backward graph."""
    inputs = len(backward.saved) + sum(plain_tensors(tangent.subclass) for tangent in backward.tangents)
    inputs += len(backward.state_writes)
    return inputs, _flat_count(num_backward_outputs(backward), backward.subclasses)


def num_backward_outputs(backward: schema.Backward) -> int:
    """Number of gradients that the backward graph computes, of indices of sparse ones, and of new values of tangents and buffers.

    A subclass counts once.
    """
    positions = [position for position in backward.gradients if position is not None]
    positions += [gradient.indices for gradient in backward.sparse]
    positions += [write.output for write in backward.tangent_writes]
    positions += [write.output for write in backward.state_writes]
    return 1 + max(positions, default=-1)


def names(state: Sequence[schema.StateEntry], methods: Mapping[str, schema.Method]) -> list[str]:
    """Names of all classes that state and methods use, sorted."""
    return sorted({name for _, subclass in located_subclasses(state, methods) for name in _names(subclass)})


def located_subclasses(state: Sequence[schema.StateEntry], methods: Mapping[str, schema.Method]) -> Iterator[Placed]:
    """Every subclass of a program that is not inside another, with its path in the document."""
    for i, entry in enumerate(state):
        if entry.subclass is not None:
            yield f"$.state[{i}].subclass", entry.subclass
    for name, method in methods.items():
        yield from of_method(method, f"$.methods[{shown(name)}]")


def of_method(method: schema.Method, at: str) -> Iterator[Placed]:
    """The subclasses of a method, with their paths below ``at``."""
    leaves = [leaf.subclass if isinstance(leaf, schema.TensorLeaf) else None for leaf in method.leaves]
    found = [("leaves", leaves), ("subclasses", method.subclasses)]
    if method.backward is not None:
        found.append(("backward.tangents", [tangent.subclass for tangent in method.backward.tangents]))
        found.append(("backward.subclasses", method.backward.subclasses))
    for part, items in found:
        for i, subclass in enumerate(items):
            if subclass is not None:
                yield f"{at}.{part}[{i}]", subclass


def stored_parts(subclass: schema.Subclass) -> list[schema.InnerTensor]:
    """The plain tensors of a subclass, nested ones included, in order."""
    return [part for part in _below(subclass) if isinstance(part, schema.InnerTensor)]


def leaf_sizes(leaf: schema.InputLeaf) -> Iterator[schema.Dim]:
    """The sizes of a tensor argument and of its plain tensors, or the size that an integer argument is."""
    if isinstance(leaf, schema.IntegerLeaf):
        yield leaf.size
    if not isinstance(leaf, schema.TensorLeaf):
        return
    yield from leaf.shape
    for part in [] if leaf.subclass is None else _below(leaf.subclass):
        yield from part.shape


def sizes(subclass: schema.Subclass) -> Iterator[schema.Dim]:
    """Every size and stride of a subclass and its parts."""
    for part in [subclass, *_below(subclass)]:
        yield from part.shape
        yield from part.stride


def depth_problems(program: schema.Program) -> Iterator[Problem]:
    """K1: the depth of a subclass is limited, and each part has one attribute.

    Code that walks a subclass relies on it.
    """
    for at, subclass in located_subclasses(program.state, program.methods):
        level: list[schema.Subclass] = [subclass]
        for _ in range(MAX_DEPTH):
            for found in level:
                if len(found.attributes) != len(found.parts) or len(set(found.attributes)) != len(found.attributes):
                    yield Problem(at, "K1: there is one part for each attribute, and no attribute twice")
                if message := data_problem(found.metadata):
                    yield Problem(at, f"K1: its metadata {message}")
            level = [part for found in level for part in found.parts if isinstance(part, schema.Subclass)]
        if level:
            yield Problem(at, f"K1: it is nested more than {MAX_DEPTH} deep")


def problems(program: schema.Program) -> Iterator[Problem]:
    """Rules K2 to K5."""
    required = set(program.requirements.subclasses)
    for at, subclass in located_subclasses(program.state, program.methods):
        every = [subclass, *_below(subclass)]
        if any(len(part.shape) != len(part.stride) for part in every):
            yield Problem(at, "C3: shape and stride differ in length")
        if any(isinstance(size, int) and not 0 <= size <= MAX_SIZE for size in sizes(subclass)):
            yield Problem(at, f"C3: a size or stride is not in 0..{MAX_SIZE}")
        if unlisted := _names(subclass) - required:
            yield Problem(at, f"K2: {', '.join(sorted(unlisted))} is not among the required subclasses")
    for i, entry in enumerate(program.state):
        if entry.subclass is not None:
            yield from _state_problems(entry, entry.subclass, f"$.state[{i}]")
        elif not entry.storage:
            yield Problem(f"$.state[{i}]", "K3: a plain tensor has a storage")
    entries = {entry.name: entry for entry in program.state}
    for name, method in program.methods.items():
        yield from _method_problems(method, entries, f"$.methods[{shown(name)}]")


def _state_problems(entry: schema.StateEntry, subclass: schema.Subclass, at: str) -> Iterator[Problem]:
    if entry.storage or not all(part.storage for part in stored_parts(subclass)):
        yield Problem(at, "K3: the parts of a subclass have a storage, and not it")
    if any(not isinstance(size, int) or size < 0 for size in sizes(subclass)):
        yield Problem(at, "K3: a size or stride of stored state is a number, not negative")
    if (subclass.shape, subclass.stride) != (entry.shape, entry.stride):
        yield Problem(at, "K3: an entry and its subclass have the same shape and stride")


def _method_problems(method: schema.Method, entries: Mapping[str, schema.StateEntry], at: str) -> Iterator[Problem]:
    if method.subclasses and len(method.subclasses) != method.num_outputs:
        yield Problem(f"{at}.subclasses", "K4: there is one entry for each forward output")
    if method.backward is None:
        return
    if method.backward.subclasses and len(method.backward.subclasses) != num_backward_outputs(method.backward):
        yield Problem(f"{at}.backward.subclasses", "K4: there is one entry for each output of the backward graph")
    primals = of_primals(method, entries)
    for i, saved in enumerate(method.backward.saved):
        if isinstance(saved, schema.SavedPrimal) and saved.primal < len(primals):
            subclass = primals[saved.primal]
            if (saved.part is None) != (subclass is None) or (saved.part or 0) >= plain_tensors(subclass):
                yield Problem(f"{at}.backward.saved[{i}]", "K5: a part of a subclass is saved, or a plain tensor as it is")


def _of_primal(
    primal: schema.Primal, entries: Mapping[str, schema.StateEntry], leaves: Sequence[schema.InputLeaf]
) -> schema.Subclass | None:
    if isinstance(primal, schema.InputPrimal):
        leaf = leaves[primal.leaf] if primal.leaf < len(leaves) else None
        return leaf.subclass if isinstance(leaf, schema.TensorLeaf) else None
    if isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal)) and primal.name in entries:
        return entries[primal.name].subclass
    return None


def _flat_count(count: int, subclasses: Sequence[schema.Subclass | None]) -> int:
    return sum(map(plain_tensors, subclasses)) if subclasses else count


def _nested(part: schema.InnerTensor | schema.Subclass) -> schema.Subclass | None:
    return part if isinstance(part, schema.Subclass) else None


def _below(subclass: schema.Subclass) -> Iterator[schema.InnerTensor | schema.Subclass]:
    for part in subclass.parts:
        yield part
        if isinstance(part, schema.Subclass):
            yield from _below(part)


def _names(subclass: schema.Subclass) -> set[str]:
    return {part.name for part in [subclass, *_below(subclass)] if isinstance(part, schema.Subclass)}


def data_problem(data: schema.Data, depth: int = MAX_DEPTH) -> str:
    """The problem of plain data, or an empty string."""
    if not isinstance(data, (schema.DataSequence, schema.DataMapping)):
        return ""
    if depth == 0:
        return f"is nested more than {MAX_DEPTH} deep"
    if isinstance(data, schema.DataMapping) and not len(data.keys) == len(data.items) == len(set(data.keys)):
        return "has a mapping without one item for each key"
    if isinstance(data, schema.DataSequence) and data.kind == "size" and not all(type(item) is int for item in data.items):
        return "has a size that is not a number"
    return next(filter(None, (data_problem(item, depth - 1) for item in data.items)), "")
