"""What native code needs of a method: one document, :class:`NativeCall` (spec/native-call.md).

The loader derives it from a :class:`.schema.Method` and from how the opened target runs the graphs
(:func:`aotpack_loader.runtime.native.describe`). The call library reads it as JSON, and a record of a
start holds it. It is no document of a bundle. ``csrc/document.cpp`` reads every field, by the same
names. ``csrc/`` has twins of types here.

"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec
from msgspec import Struct

from .schema import Dim, DType, Index, Name, Scalar

Pair = tuple[Index, Index]


class Part(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of what a document consists of: all fields are required, and there are no others."""


# ---------------------------------------------------------------- arguments and state


class ExpectedTensor(Part, frozen=True, tag="tensor", tag_field="type"):
    """A plain tensor on the CPU.

    ``stride`` null: any. ``refuses_gradient``: it must require none while gradients are recorded.
    """

    dtype: DType
    shape: list[Dim]
    stride: list[Dim] | None
    refuses_gradient: bool


class ExpectedConstant(Part, frozen=True, tag="constant", tag_field="type"):
    """The value that must be passed."""

    value: Scalar


class State(Part, frozen=True):
    """A parameter or buffer by its name in the module."""

    name: Name
    tensor: ExpectedTensor


class Symbol(Part, frozen=True):
    """A size that calls choose: dimension ``dim`` of leaf ``leaf``. ``maximum`` null: no limit."""

    name: Name
    leaf: Index
    dim: Index
    minimum: int
    maximum: int | None


# ---------------------------------------------------------------- graphs


class Code(Part, frozen=True, tag="code", tag_field="type"):
    """Compiled code: ``name`` is its key among the target's executables.

    ``inputs`` are positions among the graph's inputs, ``outputs`` positions among the code's results.
    """

    name: Name
    inputs: list[Index]
    outputs: list[Index]


class SequenceCall(Part, frozen=True):
    """Values that part ``part`` takes, those that no later call takes, and results of it that nothing takes."""

    part: Index
    inputs: list[Index]
    dead: list[Index]
    unread: list[Index]


class Sequence(Part, frozen=True, tag="sequence", tag_field="type"):
    """A graph that runs in parts. Its values are its inputs, then the results of each call in turn.

    ``unused`` are inputs that no call takes. ``outputs`` are numbers of values.
    """

    parts: list[Code]
    unused: list[Index]
    calls: list[SequenceCall]
    outputs: list[Index]


class Function(Part, frozen=True, tag="function", tag_field="type"):
    """A graph that the reader's own function ``name`` computes. It takes and returns what the graph does."""

    name: Name


Graph = Code | Sequence | Function


# ---------------------------------------------------------------- autograd


class SavedPrimal(Part, frozen=True, tag="primal", tag_field="type"):
    """Primal ``primal``. ``name``: what it is to the caller, for messages."""

    primal: Index
    name: str


class SavedOutput(Part, frozen=True, tag="output", tag_field="type"):
    """Forward output ``output``. ``check_version``: a change in place before the backward is an error, which has ``name``."""

    output: Index
    check_version: bool
    name: str


class SavedSize(Part, frozen=True, tag="size", tag_field="type"):
    """A size. The graph takes a ``float32`` tensor of the shape ``[size, 0]`` in its place."""

    size: Dim


class Tangent(Part, frozen=True):
    """The gradient of a visible output, as the backward takes it.

    ``position`` counts visible outputs. ``stride`` may be the memory format that gives the strides.
    ``sources`` are the primals whose gradient depends on it.
    """

    position: Index
    dtype: DType
    shape: list[Dim]
    stride: list[Dim] | Literal["contiguous_format", "channels_last", "channels_last_3d"]
    sources: list[Index]


class DerivedOutput(Part, frozen=True):
    """Visible output ``output`` is computed from visible output ``source``, with the paths of both results."""

    output: Index
    source: Index
    path: str
    source_path: str


class Differentiable(Part, frozen=True):
    """The backward graph ``backward``, and how it is connected to autograd.

    ``visible`` are the outputs that autograd or the caller sees. ``non_differentiable`` are positions
    among these. ``gradients`` has for each primal its backward output, or null. ``depends`` and
    ``detached`` are for backward outputs and primals. ``donated`` are positions in ``saved``.
    """

    backward: Graph
    visible: list[Index]
    non_differentiable: list[Index]
    saved: list[SavedPrimal | SavedOutput | SavedSize]
    tangents: list[Tangent]
    gradients: list[Index | None]
    depends: list[list[Index]]
    detached: list[bool]
    donated: list[Index]
    derived_outputs: list[DerivedOutput]


# ---------------------------------------------------------------- after the forward


class Mutation(Part, frozen=True):
    """Primal ``primal`` takes the value of forward output ``output``."""

    primal: Index
    output: Index
    hidden_from_autograd: bool
    unversioned: bool


class OutputResult(Part, frozen=True, tag="output", tag_field="type"):
    """Forward output ``output``."""

    output: Index


class PrimalResult(Part, frozen=True, tag="primal", tag_field="type"):
    """Primal ``primal``."""

    primal: Index


class ConstantResult(Part, frozen=True, tag="constant", tag_field="type"):
    """A value that is the same at every call."""

    value: Scalar


class SizeResult(Part, frozen=True, tag="size", tag_field="type"):
    """A size, as an integer."""

    size: Dim


Result = OutputResult | PrimalResult | ConstantResult | SizeResult


class NativeCall(Part, frozen=True):
    """A call of one method, for all of its sizes.

    Leaves, then the state, then constants are numbered as one: ``primals``, ``must_not_overlap`` and
    ``written_leaves`` are such numbers. ``spec/native-call.md`` describes every field.
    """

    nondeterministic: bool
    leaves: list[ExpectedTensor | ExpectedConstant]
    state: list[State]
    ties: list[tuple[str, str]]
    constants: list[Name]
    symbols: list[Symbol]
    constraints: list[str]
    expressions: list[str]
    primals: list[Index]
    must_not_overlap: list[Pair]
    written_leaves: list[Index]
    forward: Graph
    detached_outputs: list[Index]
    differentiable: Differentiable | None
    mutations: list[Mutation]
    touched: list[Index]
    results: list[Result]


class Refusal(IntEnum):
    """Why the call library refuses a backward. ``csrc/method.h`` has the same list."""

    SECOND_DERIVATIVE = 0
    """A gradient of a gradient."""
    RELEASED = 1
    """A second backward without ``retain_graph``."""
    COMPILED_AUTOGRAD = 2
    """Compiled autograd runs the backward of a call that was made outside it."""
    UNREADABLE_GRADIENT = 3
    """The incoming gradient has no memory that compiled code could read."""
    DERIVED_OUTPUT = 4
    """Somebody waits for a gradient between two results. The names are the paths of source and result."""
    CHANGED_IN_PLACE = 5
    """A saved tensor was changed since the call. The name is what it is to the caller."""


def encode(document: NativeCall) -> bytes:
    """The document as JSON."""
    return msgspec.json.encode(document)


def decode(text: bytes | str) -> NativeCall:
    """The document of a JSON text.

    Raises:
        msgspec.ValidationError: it is none.
    """
    return msgspec.json.decode(text, type=NativeCall)
