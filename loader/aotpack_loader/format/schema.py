"""The bundle format, version 1: the single source of truth.

Every JSON document of a bundle decodes into one of the types below. The JSON Schemas under
``spec/schema/`` are generated from them. The types hold data only. Rules that span several fields
are in :mod:`aotpack_loader.format.validate`. Each has a number, which ``spec/`` and the tests cite.

The terms are those of AOTAutograd. *Primals* are the inputs of the forward graph. *Tangents* are the
incoming gradients of the backward graph. *Saved tensors* are what the forward keeps for the backward.

Schema rules: fields are only added, always with a default. The name of a removed field is never used
again. A new arm of a union needs a new entry in :data:`Program.features`, because an older reader
cannot decode it.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$", max_length=71, description="sha256 of the bytes of a blob")]
Index = Annotated[int, Meta(ge=0)]
Size = Annotated[int, Meta(ge=0, le=2**62)]
Name = Annotated[str, Meta(min_length=1, max_length=4096)]
DType = Literal[
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128",
    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
]  # fmt: skip
"""Element types, named as torch names them without the ``torch.`` prefix."""

Dim = int | str
"""A size, stride or offset, in elements: an integer, or an expression over symbols (spec/expressions.md)."""


class Document(Struct, frozen=True, omit_defaults=True, gc=False):
    """Base of all documents: immutable. Readers ignore unknown optional fields. Defaults are not written.

    Documents hold no cycles, so the garbage collector does not track them (``gc``).
    """


# ---------------------------------------------------------------- OCI documents (image-spec 1.1)


class Platform(Document, frozen=True, rename={"os_version": "os.version"}):
    """OCI platform of a manifest. ``variant`` is the x86-64 level (``v2``, ``v3``, ``v4``)."""

    architecture: str
    os: str
    variant: str = ""
    os_version: str = ""


class Descriptor(Document, frozen=True, rename={"media_type": "mediaType", "artifact_type": "artifactType"}):
    """A reference to a blob.

    A reader MUST compare ``size`` before it hashes the blob, and ``digest`` before it parses it.
    """

    media_type: Name
    digest: Digest
    size: Size
    annotations: dict[str, str] = {}
    platform: Platform | None = None
    artifact_type: str = ""


class Manifest(
    Document,
    frozen=True,
    rename={"schema_version": "schemaVersion", "media_type": "mediaType", "artifact_type": "artifactType"},
):
    """One target of a bundle: its program and every blob that the target needs."""

    schema_version: Literal[2]
    media_type: Literal["application/vnd.oci.image.manifest.v1+json"]
    artifact_type: str
    config: Descriptor
    layers: list[Descriptor]
    annotations: dict[str, str] = {}


class ImageIndex(
    Document,
    frozen=True,
    rename={"schema_version": "schemaVersion", "media_type": "mediaType", "artifact_type": "artifactType"},
):
    """A list of manifests: the layout's ``index.json``, and the bundle index below it."""

    schema_version: Literal[2]
    manifests: list[Descriptor]
    media_type: str = ""
    artifact_type: str = ""
    annotations: dict[str, str] = {}


# ---------------------------------------------------------------- graphs


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


# ---------------------------------------------------------------- trees (nested arguments and results)


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


# ---------------------------------------------------------------- programs


class Version(Document, frozen=True):
    major: Index
    minor: Index


class Producer(Document, frozen=True):
    """What wrote the bundle. Informative."""

    aotpack: str
    torch: str


class Requirements(Document, frozen=True):
    """What a reader needs to run the program.

    ``torch``: releases (a subset of PEP 440: spec/targets.md). ``operators``: namespaces of operators
    beyond torch's own. ``subclasses``: qualified names of tensor classes that the caller must provide.
    """

    torch: str
    operators: list[str] = []
    subclasses: list[Name] = []


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


class StateEntry(Document, frozen=True):
    """A parameter or buffer, by its name in the original module.

    Its elements are those of the stored tensor ``storage``, read with ``shape``, ``stride`` and
    ``offset``. A ``subclass`` has the elements of its parts, and an empty ``storage``. ``tied_to`` names
    an earlier entry that is the same tensor.
    """

    name: Name
    kind: Literal["parameter", "buffer"]
    dtype: DType
    shape: list[Size]
    stride: list[Size]
    storage: str
    offset: Size = 0
    requires_grad: bool = False
    persistent: bool = True
    tied_to: str | None = None
    subclass: Subclass | None = None


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


class Geometry(Document, frozen=True):
    """Sizes, strides and offset of the first element.

    ``offset`` counts from the tensor's own first element. ``absolute``: it counts from the start of the
    storage.
    """

    shape: list[Dim]
    stride: list[Dim]
    offset: Dim = 0
    absolute: bool = False


class Mutation(Document, frozen=True):
    """After the forward, primal ``primal`` takes the value of forward output ``output``.

    ``kind`` says how. ``data`` copies elements. ``metadata`` changes only sizes and strides, to
    ``geometry``. ``data_and_metadata`` does both. ``resize`` does both, and enlarges the storage if
    needed (``Tensor.resize_``). ``storage`` replaces the storage (``Tensor.set_``).
    ``hidden_from_autograd``: the original wrote under ``no_grad`` or to a detached view, so a reader
    writes to a detached alias. ``unversioned``: the primal's version counter does not change, because
    the original's kernel does not change it.
    """

    primal: Index
    output: Index
    kind: Literal["data", "metadata", "data_and_metadata", "storage", "resize"] = "data"
    requires_grad: bool = False
    hidden_from_autograd: bool = False
    geometry: Geometry | None = None
    unversioned: bool = False


class ViewStep(Document, frozen=True):
    """One step of view replay: ``op(previous, *args, **kwargs)``.

    If ``select`` is not null, the step then takes element ``select`` of the result.
    """

    op: Name
    args: list[Arg] = []
    kwargs: dict[str, Arg] = {}
    select: Index | None = None


class FreshResult(Document, frozen=True, tag="fresh", tag_field="type"):
    """Forward output ``output``: a new tensor, differentiable if ``requires_grad``.

    ``unviewed``: it may be a view of an internal value, and the caller gets it as a tensor without a
    base. ``sparse_dim``: the caller gets a sparse (COO) tensor with that many sparse dimensions; null:
    a dense tensor.
    """

    output: Index
    requires_grad: bool = False
    unviewed: bool = False
    sparse_dim: Index | None = None


class InputResult(Document, frozen=True, tag="is_input", tag_field="type"):
    """Primal ``primal`` itself.

    ``laid_out``: the tensor that the graphs got. It is a copy if the argument has other strides.
    """

    primal: Index
    laid_out: bool = False


class Shared(Document, frozen=True):
    """What an alias has in common with the earlier alias ``result``: the first ``steps`` values.

    They are the same objects. ``call``: the operator of the next step was also called only once, and
    only ``select`` differs.
    """

    result: Index
    steps: Index
    call: bool = False


class AliasResult(Document, frozen=True, tag="alias", tag_field="type"):
    """A view of ``primal``, or of forward output ``output``, rebuilt by the steps in ``view``.

    The output is an intermediate base or another result. ``history`` false: the view was made with
    gradients off, so it requires a gradient but has no history. ``shared``: the first steps are taken
    from another alias. ``laid_out``: it is a view of the tensor that the graphs got for the primal.
    ``reshaped``: it is a view of a copy if the caller's tensor does not allow this view.
    """

    view: list[ViewStep]
    primal: Index | None = None
    output: Index | None = None
    requires_grad: bool = False
    history: bool = True
    shared: Shared | None = None
    laid_out: bool = False
    reshaped: bool = False


class ConstantResult(Document, frozen=True, tag="constant", tag_field="type"):
    """The same value at every call."""

    value: Scalar


class SizeResult(Document, frozen=True, tag="size", tag_field="type"):
    """An integer computed from the sizes of inputs and outputs."""

    expr: Dim


class NumberResult(Document, frozen=True, tag="number", tag_field="type"):
    """Forward output ``output``, a number that depends on data. Autograd does not see it."""

    output: Index


Result = FreshResult | InputResult | AliasResult | ConstantResult | SizeResult | NumberResult


class SavedPrimal(Document, frozen=True, tag="primal", tag_field="type"):
    """Primal ``primal``, saved for the backward.

    Of a subclass it is the plain tensor with number ``part``, counted through nested subclasses.
    """

    primal: Index
    part: Index | None = None


class SavedOutput(Document, frozen=True, tag="output", tag_field="type"):
    """Forward output ``output``, saved for the backward.

    ``check_version`` false: as in eager, in-place changes of it are not detected.
    """

    output: Index
    check_version: bool = True
    donated: bool = False


class SavedSize(Document, frozen=True, tag="size", tag_field="type"):
    """An integer input of the backward graph, computed from the sizes of inputs and outputs."""

    expr: Dim


Saved = SavedPrimal | SavedOutput | SavedSize


class Tangent(Document, frozen=True):
    """The gradient of forward output ``output``, copied to ``stride`` before the backward if it differs.

    A null ``stride`` means ``memory_format``. A gradient that is a ``subclass`` enters the backward graph
    as its parts, each with its own stride.
    """

    output: Index
    dtype: DType
    shape: list[Dim]
    stride: list[Dim] | None = None
    memory_format: Literal["contiguous_format", "channels_last", "channels_last_3d"] = "contiguous_format"
    subclass: Subclass | None = None


class Second(Document, frozen=True):
    """How to differentiate the gradients again.

    ``method`` computes them from the tangents and the tensor arguments. ``random``: it draws the random
    numbers of the forward again. ``depends`` lists for each primal of the first method the tangents
    that its second derivative depends on. If none of them was passed, the primal is detached. Empty:
    it depends on all.
    """

    method: Name
    random: bool = False
    depends: list[list[Index]] = []


class SparseGradient(Document, frozen=True):
    """The gradient of primal ``primal`` is a sparse (COO) tensor with the primal's sizes.

    Its values are the backward output ``Backward.gradients[primal]``. Its indices are the backward
    output ``indices``, ``int64``, sparse dimensions by entries. It is not coalesced.
    """

    primal: Index
    indices: Index


class TangentWrite(Document, frozen=True):
    """The backward writes to tangent ``tangent``: its new value is backward output ``output``."""

    tangent: Index
    output: Index


class Backward(Document, frozen=True):
    """The backward graph and its calling convention: inputs are ``saved`` then ``tangents``.

    ``gradients[i]`` is the backward output with the gradient of primal i; null: it has none.
    ``depends[j]`` lists the tangents that backward output j depends on. If none of them was passed,
    there is no gradient, as in eager, rather than zeros. Empty: every output depends on every tangent.
    ``second``: a method for derivatives of the gradients; null: there is none. ``subclasses[j]``
    is the subclass that backward output j is rebuilt as; empty: none is a subclass. ``sparse``: the
    gradients that are sparse tensors. ``tangent_writes``: the tangents that the original's backward
    writes to. ``result_sources[i]`` lists the results that the original computes result i from, and
    whose gradient this backward does not compute; empty: not recorded, or there are none.
    """

    graph: Descriptor
    saved: list[Saved]
    tangents: list[Tangent]
    gradients: list[Index | None]
    depends: list[list[Index]] = []
    second: Second | None = None
    subclasses: list[Subclass | None] = []
    sparse: list[SparseGradient] = []
    tangent_writes: list[TangentWrite] = []
    result_sources: list[list[Index]] = []


Role = Literal["call", "derivative", "step"]


class Mode(Document, frozen=True):
    """A state of the caller: ``nn.Module.training``, and whether gradients are recorded."""

    training: bool
    grad: bool


class Method(Document, frozen=True):
    """One way to call the program: its arguments, its graphs, and the steps before and after them.

    The forward graph takes ``primals`` in order and returns ``num_outputs`` values. ``inputs`` is the
    tree of ``(args, kwargs)``, and ``leaves`` describes its leaves in order. ``results`` describes the
    leaves of ``outputs``.

    ``parameters`` names the positional parameters of the original, so that a call may pass them by
    name. ``defaults`` holds the values of those that the example left out; a call may pass these
    values. ``non_differentiable`` lists forward outputs without a gradient. ``touched`` lists primals
    whose version counter changes although nothing is written. ``output_symbols`` are sizes that the
    forward determines. Results, tangents and saved sizes may use them.

    ``identical`` lists groups of leaves that must be the same tensor at every call. ``distinct``: all
    others must be different tensors, because the original compares its arguments with ``is``.
    ``autocast`` is the element type of the autocast mode at the trace, which must also be on at a call;
    null: off. With the feature ``autocast-variants``, methods with different autocast may serve one mode.
    ``deterministic``: deterministic algorithms were on when the method was compiled. ``rng`` is ``eager``
    if the graphs draw the same random numbers as the original, in the same order. Otherwise they draw
    numbers of the same distributions.

    ``subclasses[i]`` is the subclass that forward output i is rebuilt as; empty: none is a subclass. A
    graph takes and returns plain tensors only. A subclass enters it as its parts, and its own sizes as
    ``sizes``: integers that the forward graph takes after the primals. ``flags`` holds, by path, the
    modes (``training``) that submodules must be in. The modes of other submodules have no effect.
    ``updates`` are containers of the caller that the call changes. Their leaves follow those of
    ``outputs`` in ``results``. ``lines`` maps nodes whose operators may reject values to source lines of
    the original (``model.py:12: return self.embedding(x)``). The keys are the graph and the node
    (``forward/embedding``). It is for messages only. ``step``: it is the update of an optimizer.
    ``function`` names the function of the original that it calls; empty: the module itself. Feature
    ``functions``.
    """

    serves: list[Mode]
    inputs: Tree
    leaves: list[InputLeaf]
    outputs: Tree
    results: list[Result]
    primals: list[Primal]
    forward: Descriptor
    num_outputs: Index
    symbols: list[Symbol] = []
    constraints: list[str] = []
    mutations: list[Mutation] = []
    non_differentiable: list[Index] = []
    backward: Backward | None = None
    captured_with: str = ""
    notes: list[str] = []
    parameters: list[str] = []
    defaults: dict[str, Scalar] = {}
    identical: list[list[Index]] = []
    distinct: bool = False
    autocast: DType | None = None
    deterministic: bool = False
    output_symbols: list[OutputSymbol] = []
    rng: Literal["default", "eager"] = "default"
    touched: list[Index] = []
    subclasses: list[Subclass | None] = []
    sizes: list[Dim] = []
    flags: dict[str, bool] = {}
    updates: list[Update] = []
    lines: dict[str, str] = {}
    step: bool = False
    function: str = ""

    @property
    def role(self) -> Role:
        """Who calls it: the user, in the modes that it serves; an optimizer; or a method, for derivatives of its gradients."""
        return "step" if self.step else "call" if self.serves else "derivative"


class ModuleClass(Document, frozen=True):
    """A class of modules of the original. A reader never imports it.

    ``base`` is its class of ``torch.nn``, or the nearest one that it derives from, by its name there
    (``Conv2d``); empty: ``Module``. ``names`` are its attributes beyond those of ``base``. Compiled code
    does not read them, so that changing them has no effect.
    """

    name: Name
    base: str = ""
    names: list[Name] = []


class Module(Document, frozen=True):
    """A module of the original, by its path there. The path of the root is empty.

    ``kind`` is the index of its class in ``module_classes``. ``training`` is its mode at build,
    ``trains`` its mode after ``train()`` of the root. ``evaluates``: it is in eval mode after ``eval()`` of
    the root. ``text`` is what ``repr`` shows for it. ``attributes`` holds the attributes with plain data
    as values. ``same_as``: it is the same object as the module at that earlier path.
    """

    name: str
    kind: Index
    training: bool = True
    trains: bool = True
    evaluates: bool = True
    text: str = ""
    attributes: dict[Name, Data] = {}
    same_as: str | None = None


class Parameter(Document, frozen=True):
    """A parameter of the original's ``forward``, in order. Tools that read the signature use it.

    ``optional``: it has the default ``default``. ``opaque``: that default is not plain data.
    """

    name: Name
    kind: Literal["positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"]
    optional: bool = False
    default: Data = None
    opaque: bool = False


class Pretrained(Document, frozen=True):
    """What tools read from a model of the library ``transformers`` beside its call.

    Nothing here changes what is computed. ``config`` and ``generation_config`` are plain data; null: it
    has none. ``input_embeddings`` and ``output_embeddings`` are paths of modules. ``attributes`` are plain
    attributes of its class. ``unsaved`` are state entries that its ``save_pretrained`` leaves out because
    they are tied to others.
    """

    config: Data = None
    generation_config: Data = None
    input_embeddings: str | None = None
    output_embeddings: str | None = None
    attributes: dict[Name, Data] = {}
    unsaved: list[Name] = []


class OptimizerNumber(Document, frozen=True):
    """A number that may change between steps, from ``minimum`` to ``maximum``, to none of ``excluded``. Null: no limit."""

    minimum: float | None = None
    maximum: float | None = None
    excluded: list[float] = []

    def takes(self, value: float) -> bool:
        """Whether the number may have this value."""
        within = (self.minimum is None or self.minimum <= value) and (self.maximum is None or value <= self.maximum)
        return within and value not in self.excluded


class OptimizerGroup(Document, frozen=True):
    """Parameters with the same options, by their names, and the options, as in ``param_groups`` of ``torch.optim``.

    ``numbers`` are the options that may change between steps, by path (``lr``, ``betas.0``). ``first`` holds
    the numbers of the step that creates a parameter's state, where they differ.
    """

    parameters: list[Name]
    options: dict[Name, Data]
    numbers: dict[Name, OptimizerNumber] = {}
    first: dict[Name, FloatArg] = {}


class OptimizerUpdate(Document, frozen=True):
    """How ``parameters`` of ``group`` are updated: by a call of ``method`` for each.

    The arguments of the method are the parameter, its gradient, its state by name, and the numbers of
    the group by path, as tensors without dimensions. It writes to the parameter and its state. ``flat``:
    it takes the parameter, and tensors of its sizes, with all dimensions as one, in the order of memory.
    ``initial`` is what the state holds before the first step: a number, the path of an option, or ``params``: the parameter.
    ``integers`` are the names of state that is an integer in Python.
    """

    method: Name
    group: Index
    parameters: list[Name]
    initial: dict[Name, FloatArg | Name] = {}
    flat: bool = False
    integers: list[Name] = []


class Optimizer(Document, frozen=True):
    """An optimizer of the program's parameters. ``name`` is that of its class in the original; informative."""

    name: Name
    groups: list[OptimizerGroup]
    updates: list[OptimizerUpdate]


class Program(Document, frozen=True):
    """The program: the config blob of every manifest of a bundle.

    ``assigned`` are the buffers to which a call assigns tensors with gradients. A call takes them in the
    keyword argument ``aotpack_state``, and they are what that dictionary holds afterwards. ``optimizers``
    by name; a program with one calls it ``optimizer``.
    """

    format: Version
    name: str
    producer: Producer
    requirements: Requirements
    state: list[StateEntry]
    methods: dict[str, Method]
    weights: list[Descriptor] = []
    features: list[str] = []
    self_test: Descriptor | None = None
    training: bool = True
    modules: list[Module] = []
    module_classes: list[ModuleClass] = []
    signature: list[Parameter] | None = None
    pretrained: Pretrained | None = None
    origins: Descriptor | None = None
    assigned: list[Name] = []
    optimizers: dict[Name, Optimizer] = {}


class GraphOrigins(Document, frozen=True):
    """Where the nodes of one graph come from: an item for each node, in order.

    ``modules[i]`` is an index of ``Origins.modules``: the innermost module, as far as it is known.
    ``lines[i]`` is an index of ``Origins.lines``; null: it is not known.
    """

    modules: list[Index]
    lines: list[Index | None]


class Origins(Document, frozen=True):
    """Where the nodes of the graphs come from in the original. Informative: tools show it, and no call needs it.

    ``modules`` are paths of modules, where the root's is empty. ``lines`` are files without folders, and
    lines in them (``model.py:12``). ``graphs`` has the method and the direction as keys:
    ``train.forward``, ``train.backward``.
    """

    modules: list[str]
    lines: list[str]
    graphs: dict[str, GraphOrigins]


# ---------------------------------------------------------------- targets


class GivenInput(Document, frozen=True, tag="value", tag_field="type"):
    """Input ``index`` of the graph, as it is."""

    index: Index


class SizeCarrier(Document, frozen=True, tag="size_carrier", tag_field="type"):
    """An empty tensor of shape ``(size, 0)`` that carries integer input ``index`` of the graph."""

    index: Index


class Executable(Document, frozen=True):
    """Compiled code of one graph.

    ``inputs`` says how the code's inputs follow from the graph's. ``outputs[i]`` is the index of the
    graph's output i among the code's results. ``numbers`` are the indices of results that are
    0-dimensional tensors in the code and numbers in the graph. ``fallbacks`` lists, as JSON, the
    operators that the code calls through the dispatcher. ``donated`` are the indices of inputs that
    the code may overwrite.
    """

    code: Descriptor
    inputs: list[GivenInput | SizeCarrier]
    outputs: list[Index]
    fallbacks: Descriptor | None = None
    numbers: list[Index] = []
    donated: list[Index] = []


class PartCall(Document, frozen=True):
    """One run of the executable ``part``. ``inputs`` are the numbers of its input values."""

    part: Name
    inputs: list[Index]


class Sequence(Document, frozen=True):
    """A graph as a sequence of calls of executables. An executable may run several times.

    Values are numbered: first the graph's inputs, then the results of each call. ``outputs`` are the
    numbers of the graph's outputs.
    """

    calls: list[PartCall]
    outputs: list[Index]


class ArrayType(Document, frozen=True):
    """Type of an array that an XLA computation takes or returns; it has no strides."""

    dtype: DType
    shape: list[Size]


class XlaParameter(Document, frozen=True):
    """A parameter of an XLA computation: input ``input`` of the graph.

    Null: the seed of its random numbers, which is new at each call.
    """

    type: ArrayType
    input: Index | None = None


class ResultView(Document, frozen=True, tag="view", tag_field="type"):
    """An output that is the view ``view`` of the computation's result ``result``."""

    result: Index
    view: list[ViewStep]


class XlaExecutable(Document, frozen=True):
    """An XLA computation of one graph, as an ``HloModuleProto`` and as StableHLO.

    Both have the same parameters and results, in order. ``outputs[i]`` describes the graph's output i.
    It is the index of a result, a view of a result (if outputs share memory), or an input of the graph.
    Several outputs may be the same result. Inputs that the computation does not need are not
    parameters. Without ``results`` there is no computation. ``donated`` are indices of parameters whose
    memory the results may reuse, because nothing else needs them. ``code`` is the computation
    compiled for the target's device, serialised by XLA's PJRT client. Null: it is compiled at load.
    """

    parameters: list[XlaParameter]
    results: list[ArrayType]
    outputs: list[Index | GivenInput | ResultView]
    hlo: Descriptor | None = None
    stablehlo: Descriptor | None = None
    code: Descriptor | None = None
    donated: list[Index] = []


class Specialization(Document, frozen=True):
    """The computations of one method for one set of sizes: a value for each of its symbols."""

    sizes: dict[str, Size]
    forward: XlaExecutable
    backward: XlaExecutable | None = None


class CallLibrary(Document, frozen=True):
    """Native code that makes calls, for one release of torch and of Python.

    ``interface`` is the version of the interface between the library and a loader. ``torch`` is a
    release with its local part (``2.13.0+cpu``). ``python`` is the suffix of extension modules of that
    Python.
    """

    code: Descriptor
    interface: int
    torch: str
    python: str


class Target(Document, frozen=True):
    """How one target runs the program. It is the first layer of its manifest.

    ``kind`` selects the device module of the loader (``portable``, ``aoti``, ``xla``). Executables have
    the method and the direction as keys: ``train.forward``, ``train.backward``. A graph whose key is in
    ``sequences`` runs in parts, which are executables with other names. ``constraints`` holds, by method,
    what this target's code assumes of sizes beyond the method's own constraints.

    ``xla`` has the same role as ``executables`` for other kinds. ``packages`` are the releases of other
    packages that the code was made for. ``topology`` is the arrangement of devices that code of kind
    ``xla`` was compiled for (``v5e:2x2``). ``specializations`` has, by method, the computations for fixed
    sizes, for methods with symbols. ``producer`` is what compiled the target, if it did not also write
    the program; null: the program's producer. Informative. ``call`` is a library that makes calls
    faster, if it fits. ``imports`` are the names that the code takes from torch's libraries. With them
    it may run on other releases of torch.
    """

    name: Name
    kind: Name
    device: str
    executables: dict[str, Executable] = {}
    architecture: str = ""
    instruction_set: str = ""
    cpu_features: list[str] = []
    torch: str = ""
    toolchain: dict[str, str] = {}
    sequences: dict[str, Sequence] = {}
    constraints: dict[str, list[str]] = {}
    xla: dict[str, XlaExecutable] = {}
    packages: dict[str, str] = {}
    topology: str = ""
    producer: Producer | None = None
    call: CallLibrary | None = None
    specializations: dict[str, list[Specialization]] = {}
    imports: list[str] = []
