"""Graphs, plain data, and the trees of nested arguments and results."""

from typing import Literal

from .documents import Dim, Document, DType, Index, Name


class ValueRef(Document, frozen=True, tag="value", tag_field="type"):
    """The value called ``name``: an input of the graph or the result of an earlier node."""

    name: Name


class FloatArg(Document, frozen=True, tag="float", tag_field="type"):
    """A floating-point literal. In JSON alone, 1 and 1.0 are the same number."""

    value: float | Literal["inf", "-inf", "nan"]


class ComplexArg(Document, frozen=True, tag="complex", tag_field="type"):
    """A complex literal."""

    real: float | Literal["inf", "-inf", "nan"]
    imag: float | Literal["inf", "-inf", "nan"]


class DTypeArg(Document, frozen=True, tag="dtype", tag_field="type"):
    """A ``torch.dtype``."""

    value: DType


class DeviceArg(Document, frozen=True, tag="device", tag_field="type"):
    """A ``torch.device``: the kind of the device that the graph was traced for.

    A loader maps it to its own device.
    """

    value: str


class LayoutArg(Document, frozen=True, tag="layout", tag_field="type"):
    """A ``torch.layout``."""

    value: Literal["strided"]


class MemoryFormatArg(Document, frozen=True, tag="memory_format", tag_field="type"):
    """A ``torch.memory_format``."""

    value: Literal["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"]


class ExprArg(Document, frozen=True, tag="expr", tag_field="type"):
    """An integer computed from the method's symbols.

    It is used in view replay only. Inside graphs, sizes are values.
    """

    value: str


class GraphArg(Document, frozen=True, tag="graph", tag_field="type"):
    """A subgraph, passed to a higher-order operator."""

    name: Name


Atom = (
    None | bool | int | str
    | ValueRef | FloatArg | ComplexArg | DTypeArg | DeviceArg | LayoutArg | MemoryFormatArg | ExprArg | GraphArg
)  # fmt: skip
Arg = Atom | list[Atom | list[Atom]]
"""An argument of an operator. ``null``, ``true``, integers, strings and lists (at most two deep) stand for themselves."""


class TensorValue(Document, frozen=True, tag="tensor", tag_field="type"):
    """A tensor: sizes and strides in elements."""

    dtype: DType
    shape: list[Dim]
    stride: list[Dim]
    offset: Dim = 0


class IntValue(Document, frozen=True, tag="int", tag_field="type"):
    """An integer known at run time, usually a size: ``expr`` over the method's symbols."""

    expr: Dim


class OtherValue(Document, frozen=True, tag="other", tag_field="type"):
    """A value that is neither a tensor nor an integer.

    It is a tuple of results (read by ``builtin.getitem``), a float, a bool, or nothing.
    """

    kind: Literal["tuple", "float", "bool", "none"]


Value = TensorValue | IntValue | OtherValue


class Node(Document, frozen=True):
    """One operation: ``name = op(*args, **kwargs)``.

    ``op`` is one of three: a full ATen overload name (``aten.add.Tensor``), another registered operator
    (``namespace.name.overload``), or a built-in of the format (``builtin.getitem``; spec/graph.md).
    """

    name: Name
    op: Name
    args: list[Arg]
    value: Value
    kwargs: dict[str, Arg] = {}


class Graph(Document, frozen=True):
    """A functional program without branches. ``nodes`` are in execution order.

    ``subgraphs`` are the graphs that its control flow operators run.
    """

    inputs: list[Name]
    input_values: list[Value]
    nodes: list[Node]
    outputs: list[Arg]
    subgraphs: dict[str, "Graph"] = {}


Scalar = None | bool | int | str | FloatArg | ComplexArg | DTypeArg | DeviceArg | LayoutArg | MemoryFormatArg
"""A value that is the same at every call."""


class DataSequence(Document, frozen=True, tag="sequence", tag_field="type"):
    """A tuple, a list or a ``torch.Size``."""

    kind: Literal["tuple", "list", "size"]
    items: list["Data"]


class DataMapping(Document, frozen=True, tag="mapping", tag_field="type"):
    """A dictionary, in the order of ``keys``."""

    keys: list[str | int | bool]
    items: list["Data"]


Data = Scalar | DataSequence | DataMapping
"""Plain data: scalars and nested containers of them."""


class LeafNode(Document, frozen=True, tag="leaf", tag_field="type"):
    """One leaf; leaves are numbered in order of appearance."""


class TupleNode(Document, frozen=True, tag="tuple", tag_field="type"):
    """A tuple. ``size``: it is a ``torch.Size``, a tuple of integers."""

    items: list["Tree"]
    size: bool = False


class ListNode(Document, frozen=True, tag="list", tag_field="type"):
    items: list["Tree"]


class DictNode(Document, frozen=True, tag="dict", tag_field="type"):
    """A mapping. ``keys`` are in the order of the example's dictionary."""

    keys: list[str | int | bool]
    items: list["Tree"]
    ordered: bool = False


class RecordNode(Document, frozen=True, tag="record", tag_field="type"):
    """A named tuple, a model output or a dataclass.

    ``kind`` is ``tuple`` for a named tuple, ``mapping`` for a mapping with attributes (model output),
    and ``object`` for a dataclass. ``name`` is informative: a reader never imports it. ``none_fields``
    are attributes that are always None. ``leaf``: torch's tree functions treat the original as one
    value and do not look inside.
    """

    name: str
    fields: list[str]
    items: list["Tree"]
    kind: Literal["tuple", "mapping", "object"] = "object"
    none_fields: list[str] = []
    leaf: bool = False


class GivenNode(Document, frozen=True, tag="given", tag_field="type"):
    """In ``outputs`` and ``updates``: the object that the caller passed at ``path``. It has no leaves.

    ``path`` leads through ``inputs`` by the indices of items, from ``(args, kwargs)`` on. Feature
    ``containers``.
    """

    path: list[Index]


Tree = LeafNode | TupleNode | ListNode | DictNode | RecordNode | GivenNode


class Update(Document, frozen=True):
    """A dictionary or list of the caller that the call changes. Afterwards it holds what ``tree`` says.

    ``path`` is its path in the arguments, as in ``GivenNode``.
    """

    path: list[Index]
    tree: DictNode | ListNode
