"""What a method takes: sizes that vary, leaves of its arguments, and primals, the inputs of its forward graph."""

from .documents import Dim, Document, DType, Index, Name, Size
from .graphs import ComplexArg, Data, DeviceArg, DTypeArg, FloatArg, LayoutArg, MemoryFormatArg


class InnerTensor(Document, frozen=True, tag="tensor", tag_field="type"):
    """A plain tensor inside a subclass.

    ``storage`` and ``offset`` are as in a state entry. They are used in state entries only.
    """

    dtype: DType
    shape: list[Dim]
    stride: list[Dim]
    storage: str = ""
    offset: Size = 0


class Subclass(Document, frozen=True, tag="subclass", tag_field="type"):
    """A traceable wrapper subclass: a tensor that holds others and has no elements of its own.

    ``name`` is the qualified name of its class. A reader looks it up among the classes that its caller
    provides, and never imports it. ``parts`` are the tensors under ``attributes``. ``metadata`` is what
    else ``__tensor_unflatten__`` of the class needs, beside ``shape`` and ``stride``.
    """

    name: Name
    attributes: list[Name]
    parts: list["InnerTensor | Subclass"]
    shape: list[Dim]
    stride: list[Dim]
    metadata: Data = None


class Symbol(Document, frozen=True):
    """A size that varies from call to call: ``minimum <= value <= maximum``. A null maximum is no limit.

    ``hint`` is its value in the example. ``label`` is the name that the model's author uses
    (``batch``), or empty.
    """

    name: Name
    minimum: int
    maximum: int | None = None
    hint: int | None = None
    label: str = ""

    def takes(self, value: int) -> bool:
        """Whether a value is in the range."""
        return self.minimum <= value and (self.maximum is None or value <= self.maximum)


class OutputSymbol(Document, frozen=True):
    """A size that depends on data: dimension ``dim`` of forward output ``output``.

    If ``dim`` is null, the output itself is the integer. ``minimum`` and ``maximum`` are the inclusive
    limits known at the trace; null: no limit. ``needed`` false: nothing in a method is computed from it.
    """

    name: Name
    output: Index
    dim: Index | None = None
    minimum: int | None = None
    maximum: int | None = None
    needed: bool = True

    def takes(self, value: int) -> bool:
        """Whether a value is in the range."""
        return (self.minimum is None or self.minimum <= value) and (self.maximum is None or value <= self.maximum)


class TensorLeaf(Document, frozen=True, tag="tensor", tag_field="type"):
    """A tensor argument. ``stride`` null: the graphs do not rely on its strides.

    ``subclass`` null: a plain tensor. ``from_start``: its storage offset must be 0. ``fixed_stride``: it
    must have these strides; a copy with them is not enough. ``sets_requires_grad``: the original
    calls ``requires_grad_()`` on it, and so does a call.
    """

    path: str
    dtype: DType
    shape: list[Dim]
    stride: list[Dim] | None = None
    device: str = "cpu"
    requires_grad: bool = False
    subclass: Subclass | None = None
    from_start: bool = False
    fixed_stride: bool = False
    sets_requires_grad: bool = False


class ConstantLeaf(Document, frozen=True, tag="constant", tag_field="type"):
    """An argument that the graphs were specialised to. A call must pass the same value."""

    path: str
    value: bool | int | str | FloatArg | ComplexArg | DTypeArg | DeviceArg | LayoutArg | MemoryFormatArg | None


class IntegerLeaf(Document, frozen=True, tag="integer", tag_field="type"):
    """An integer argument that varies: the value of the symbol ``size``."""

    path: str
    size: Name


InputLeaf = TensorLeaf | ConstantLeaf | IntegerLeaf


class ParameterPrimal(Document, frozen=True, tag="parameter", tag_field="type"):
    name: Name


class BufferPrimal(Document, frozen=True, tag="buffer", tag_field="type"):
    name: Name


class ConstantPrimal(Document, frozen=True, tag="constant", tag_field="type"):
    """A tensor that the model's code closes over. It is in no state dict.

    ``name`` is the name of a stored tensor, which is contiguous.
    """

    name: Name
    dtype: DType
    shape: list[Size]


class InputPrimal(Document, frozen=True, tag="user_input", tag_field="type"):
    leaf: Index


class BaseMember(Document, frozen=True):
    """A tensor argument inside a base. Its first element is element ``offset`` of the base's memory.

    ``written``: the method writes to it. ``detached``: autograd does not track it as a view of the base.
    """

    leaf: Index
    offset: Size = 0
    written: bool = False
    detached: bool = False


class SyntheticBasePrimal(Document, frozen=True, tag="synthetic_base", tag_field="type"):
    """Memory that several arguments share, if the method writes to it without gradients.

    It has ``size`` adjacent elements.
    """

    members: list[BaseMember]
    dtype: DType
    size: Size


class ViewBasePrimal(Document, frozen=True, tag="view_base", tag_field="type"):
    """The tensor that several arguments are views of, if the method writes to one with gradients.

    The base may be one of the arguments itself.
    """

    members: list[BaseMember]
    dtype: DType
    shape: list[Size]
    stride: list[Size]


Primal = ParameterPrimal | BufferPrimal | ConstantPrimal | InputPrimal | SyntheticBasePrimal | ViewBasePrimal
