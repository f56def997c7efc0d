"""The bundle format, version 1: the single source of truth.

Every JSON document of a bundle decodes into one of the types below; the JSON Schemas under
``spec/schema/`` are generated from them. A type here is data only: rules that span several
fields live in :mod:`aotpack_loader.format.validate`, and each carries a number that the prose in
``spec/`` and the tests cite.

Words are AOTAutograd's own: *primals* are the inputs of the forward graph, *tangents* the
incoming gradients of the backward graph, *saved tensors* what the forward keeps for the backward.

Schema rules: fields are only ever added, with a default; a removed name is never used again; a
new arm of a union needs a new entry in :data:`Program.features`, because an older reader cannot
decode it.
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
    """Base of all documents: immutable; unknown optional fields are ignored; defaults are not written.

    Documents hold no cycles, so the garbage collector need not look at them (``gc``).
    """


# ---------------------------------------------------------------- OCI documents (image-spec 1.1)


class Platform(Document, frozen=True, rename={"os_version": "os.version"}):
    """OCI platform of a manifest; ``variant`` is the x86-64 microarchitecture level (``v2``, ``v3``, ``v4``)."""

    architecture: str
    os: str
    variant: str = ""
    os_version: str = ""


class Descriptor(Document, frozen=True, rename={"media_type": "mediaType", "artifact_type": "artifactType"}):
    """A reference to a blob. A reader MUST compare ``size`` before it hashes and ``digest`` before it parses."""

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
    """One target of a bundle: its program and every blob that target needs."""

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
    """The value called ``name``: a graph input or the result of an earlier node."""

    name: Name


class FloatArg(Document, frozen=True, tag="float", tag_field="type"):
    """A floating-point literal: JSON alone does not tell 1 from 1.0."""

    value: float | Literal["inf", "-inf", "nan"]


class ComplexArg(Document, frozen=True, tag="complex", tag_field="type"):
    """A complex literal."""

    real: float | Literal["inf", "-inf", "nan"]
    imag: float | Literal["inf", "-inf", "nan"]


class DTypeArg(Document, frozen=True, tag="dtype", tag_field="type"):
    """A ``torch.dtype``."""

    value: DType


class DeviceArg(Document, frozen=True, tag="device", tag_field="type"):
    """A ``torch.device``: the kind of the device the graph was traced for; a loader maps it to its own."""

    value: str


class LayoutArg(Document, frozen=True, tag="layout", tag_field="type"):
    """A ``torch.layout``."""

    value: Literal["strided"]


class MemoryFormatArg(Document, frozen=True, tag="memory_format", tag_field="type"):
    """A ``torch.memory_format``."""

    value: Literal["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"]


class ExprArg(Document, frozen=True, tag="expr", tag_field="type"):
    """An integer computed from the method's symbols (view replay only; inside graphs sizes are values)."""

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
    """Several results in one (taken apart by ``builtin.getitem``), a float, a bool, or nothing."""

    kind: Literal["tuple", "float", "bool", "none"]


Value = TensorValue | IntValue | OtherValue


class Node(Document, frozen=True):
    """One operation: ``name = op(*args, **kwargs)``.

    ``op`` is a full ATen overload name (``aten.add.Tensor``), another registered operator
    (``namespace.name.overload``) or a built-in of the format (``builtin.getitem``; spec/graph.md).
    """

    name: Name
    op: Name
    args: list[Arg]
    value: Value
    kwargs: dict[str, Arg] = {}


class Graph(Document, frozen=True):
    """A straight-line functional program; nodes are in execution order. ``subgraphs`` are what its control flow runs."""

    inputs: list[Name]
    input_values: list[Value]
    nodes: list[Node]
    outputs: list[Arg]
    subgraphs: dict[str, "Graph"] = {}


# ---------------------------------------------------------------- trees (nested arguments and results)


class LeafNode(Document, frozen=True, tag="leaf", tag_field="type"):
    """One leaf; leaves are numbered in order of appearance."""


class TupleNode(Document, frozen=True, tag="tuple", tag_field="type"):
    """A tuple; ``size``: of integers, as a ``torch.Size``."""

    items: list["Tree"]
    size: bool = False


class ListNode(Document, frozen=True, tag="list", tag_field="type"):
    items: list["Tree"]


class DictNode(Document, frozen=True, tag="dict", tag_field="type"):
    """A mapping; ``keys`` keep the order in which the caller of the build wrote them."""

    keys: list[str | int | bool]
    items: list["Tree"]
    ordered: bool = False


class RecordNode(Document, frozen=True, tag="record", tag_field="type"):
    """A named tuple (``kind`` tuple), a mapping with attributes (model output) or a dataclass (``object``).

    ``name`` is informative: a reader never imports it. ``none_fields`` are attributes that are always None.
    ``leaf``: torch's tree functions take the original for one value and do not look inside.
    """

    name: str
    fields: list[str]
    items: list["Tree"]
    kind: Literal["tuple", "mapping", "object"] = "object"
    none_fields: list[str] = []
    leaf: bool = False


class GivenNode(Document, frozen=True, tag="given", tag_field="type"):
    """In ``outputs`` and ``updates``: the very object that the caller gave at ``path``, which has no leaves here.

    ``path`` leads through ``inputs`` by the numbers of items, from ``(args, kwargs)`` on. Feature ``containers``.
    """

    path: list[Index]


Tree = LeafNode | TupleNode | ListNode | DictNode | RecordNode | GivenNode


class Update(Document, frozen=True):
    """A dictionary or list of the caller's, at ``path`` (as in ``GivenNode``), holds what ``tree`` says after the call."""

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

    ``torch``: releases (a subset of PEP 440: spec/targets.md). ``operators``: namespaces beyond torch's own. ``subclasses``:
    classes of tensors that the caller must bring, by qualified name.
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
    """A plain tensor that a subclass holds. ``storage`` and ``offset`` as those of a state entry, in a state entry only."""

    dtype: DType
    shape: list[Dim]
    stride: list[Dim]
    storage: str = ""
    offset: Size = 0


class Subclass(Document, frozen=True, tag="subclass", tag_field="type"):
    """A traceable wrapper subclass: a tensor that holds others and has no elements of its own.

    ``name`` is the qualified name of its class, which a reader matches with the classes it was given and never imports.
    ``parts`` are the tensors under ``attributes``; ``metadata`` is whatever else its class needs to put it together
    (``__tensor_unflatten__``), beside its own ``shape`` and ``stride``.
    """

    name: Name
    attributes: list[Name]
    parts: list["InnerTensor | Subclass"]
    shape: list[Dim]
    stride: list[Dim]
    metadata: Data = None


class StateEntry(Document, frozen=True):
    """A parameter or buffer, by its name in the original module.

    Its elements are those of the stored tensor ``storage`` seen through ``shape``, ``stride`` and
    ``offset``; of a ``subclass``, those of its parts, and ``storage`` is empty.
    ``tied_to`` names an earlier entry that is the very same tensor.
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
    """A size that varies from call to call: ``minimum <= value``, and ``value <= maximum`` unless that is null.

    ``hint`` is its value at the example, ``label`` what the model's author calls it (``batch``), or empty.
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
    """A size that depends on data: that of dimension ``dim`` of forward output ``output``; null: the output, an integer.

    ``minimum`` and ``maximum``: what the trace knew of it, both inclusive; null: no limit. ``needed`` false: nothing of a method
    is computed from it.
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
    """A tensor argument. ``stride`` null: strides are not relied on. ``subclass`` null: a plain tensor.

    ``from_start``: it must begin at the first element of its storage. ``fixed_stride``: a copy with these strides does not do
    in its place. ``sets_requires_grad``: the original calls ``requires_grad_()`` on it, and so does a call.
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
    """An argument the graphs were specialised to: a call must pass the same value."""

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
    """A tensor the model's code closes over: part of no state dict. ``name`` is a stored tensor, contiguous."""

    name: Name
    dtype: DType
    shape: list[Size]


class InputPrimal(Document, frozen=True, tag="user_input", tag_field="type"):
    leaf: Index


class BaseMember(Document, frozen=True):
    """A tensor argument inside a base: its first element is the base's element ``offset``, counted in memory.

    ``written``: the method writes to it. ``detached``: autograd does not know it as a view of the base.
    """

    leaf: Index
    offset: Size = 0
    written: bool = False
    detached: bool = False


class SyntheticBasePrimal(Document, frozen=True, tag="synthetic_base", tag_field="type"):
    """Memory that several arguments share and that is written to: ``size`` elements in a row, without gradients."""

    members: list[BaseMember]
    dtype: DType
    size: Size


class ViewBasePrimal(Document, frozen=True, tag="view_base", tag_field="type"):
    """The tensor that several arguments are views of (or one of them itself), where one is written to with gradients."""

    members: list[BaseMember]
    dtype: DType
    shape: list[Size]
    stride: list[Size]


Primal = ParameterPrimal | BufferPrimal | ConstantPrimal | InputPrimal | SyntheticBasePrimal | ViewBasePrimal


class Geometry(Document, frozen=True):
    """Sizes, strides and first element, from the tensor's own first element; ``absolute``: from its storage's first."""

    shape: list[Dim]
    stride: list[Dim]
    offset: Dim = 0
    absolute: bool = False


class Mutation(Document, frozen=True):
    """After the forward, primal ``primal`` takes the value of forward output ``output``.

    ``kind``: ``data`` copies elements; ``metadata`` changes sizes and strides only, to ``geometry``; ``data_and_metadata`` both;
    ``resize`` too, and the storage grows where it must (``Tensor.resize_``); ``storage`` replaces the storage (``Tensor.set_``).
    ``hidden_from_autograd``: the original ran under ``no_grad`` or on a detached view, so the write is made on a detached alias.
    ``unversioned``: the primal's version counter stays, because the original's kernel writes without moving it.
    """

    primal: Index
    output: Index
    kind: Literal["data", "metadata", "data_and_metadata", "storage", "resize"] = "data"
    requires_grad: bool = False
    hidden_from_autograd: bool = False
    geometry: Geometry | None = None
    unversioned: bool = False


class ViewStep(Document, frozen=True):
    """One step of view replay: ``op(previous, *args, **kwargs)``, then element ``select`` of the result if not null."""

    op: Name
    args: list[Arg] = []
    kwargs: dict[str, Arg] = {}
    select: Index | None = None


class FreshResult(Document, frozen=True, tag="fresh", tag_field="type"):
    """Forward output ``output``: a new tensor, differentiable if ``requires_grad``.

    ``unviewed``: it may be a view of a value nobody else sees, and is handed out as a tensor of its own. ``sparse_dim``: it is
    handed out as a sparse (COO) tensor with that many sparse dimensions; null: as it is.
    """

    output: Index
    requires_grad: bool = False
    unviewed: bool = False
    sparse_dim: Index | None = None


class InputResult(Document, frozen=True, tag="is_input", tag_field="type"):
    """Primal ``primal`` itself. ``laid_out``: as the graphs are given it, a copy where the call's has other strides."""

    primal: Index
    laid_out: bool = False


class Shared(Document, frozen=True):
    """What an alias has in common with the earlier alias ``result``: the values after the first ``steps`` steps.

    They are the same objects. ``call``: the operator of the step that follows was called once too; only ``select`` differs.
    """

    result: Index
    steps: Index
    call: bool = False


class AliasResult(Document, frozen=True, tag="alias", tag_field="type"):
    """A view of ``primal``, or of forward output ``output`` (an intermediate base or another result), rebuilt by ``view``.

    ``history`` false: the view was taken with gradients off, so it requires a gradient but has no history. ``shared``: the first
    steps are not repeated, but taken from another alias. ``laid_out``: of the primal as the graphs are given it; ``reshaped``: of
    a copy where the caller's own tensor allows no such view.
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
    """Forward output ``output``, which is a number and no tensor: it depends on data, and never meets autograd."""

    output: Index


Result = FreshResult | InputResult | AliasResult | ConstantResult | SizeResult | NumberResult


class SavedPrimal(Document, frozen=True, tag="primal", tag_field="type"):
    """Primal ``primal``; of a subclass its plain tensor number ``part``, counted through nested ones."""

    primal: Index
    part: Index | None = None


class SavedOutput(Document, frozen=True, tag="output", tag_field="type"):
    """Forward output ``output``. ``check_version`` false: eager does not notice an in-place change of it either."""

    output: Index
    check_version: bool = True
    donated: bool = False


class SavedSize(Document, frozen=True, tag="size", tag_field="type"):
    """An integer input of the backward graph, computed from the sizes of inputs and outputs."""

    expr: Dim


Saved = SavedPrimal | SavedOutput | SavedSize


class Tangent(Document, frozen=True):
    """The gradient of forward output ``output``, brought to ``stride`` before the call (null: to ``memory_format``).

    A gradient that is a ``subclass`` goes into the backward graph as its parts, each brought to its own stride.
    """

    output: Index
    dtype: DType
    shape: list[Dim]
    stride: list[Dim] | None = None
    memory_format: Literal["contiguous_format", "channels_last", "channels_last_3d"] = "contiguous_format"
    subclass: Subclass | None = None


class Second(Document, frozen=True):
    """Where the gradients can be differentiated again: ``method`` computes them from the tangents and the tensor arguments.

    ``random``: it draws the random numbers of the forward again. ``depends`` lists for each primal of the first method the
    tangents that its second derivative is computed from: where none was given it goes in detached. Empty: it depends on all.
    """

    method: Name
    random: bool = False
    depends: list[list[Index]] = []


class Backward(Document, frozen=True):
    """The backward graph and its calling convention: inputs are ``saved`` then ``tangents``.

    ``gradients[i]`` is the backward output that holds the gradient of primal i, or null where there is none.
    ``depends[j]`` lists the tangents that backward output j is computed from: where none of them was given there is no
    gradient, as in eager, rather than zeros. Empty: every output depends on every tangent.
    ``second``: a method for derivatives of the gradients; null: there are none.
    ``subclasses[j]`` is what backward output j is put together to; empty: none is a subclass.
    """

    graph: Descriptor
    saved: list[Saved]
    tangents: list[Tangent]
    gradients: list[Index | None]
    depends: list[list[Index]] = []
    second: Second | None = None
    subclasses: list[Subclass | None] = []


class Mode(Document, frozen=True):
    """A state of the caller: ``nn.Module.training``, and whether gradients are recorded."""

    training: bool
    grad: bool


class Method(Document, frozen=True):
    """One way to call the program: its arguments, its graphs and everything that happens around them.

    The forward graph takes ``primals`` in order and returns ``num_outputs`` values. ``inputs`` is the tree
    of ``(args, kwargs)``; ``leaves`` describes its leaves in order; ``results`` those of ``outputs``.
    ``parameters`` names the positional parameters of the original, so that a call may pass them by name; ``defaults`` holds the
    values of those the example left out, which a call may spell out. ``non_differentiable`` lists forward outputs that carry no
    gradient, ``touched`` primals whose version counter moves although nothing is written. ``output_symbols`` are sizes that the
    forward determines, and that results, tangents and saved sizes may use.
    ``identical`` lists groups of leaves that must be the same tensor at every call; ``distinct``: all others must be
    different tensors, because the original asks which of its arguments are the same. ``autocast`` is the element type of
    the autocast that was on when the method was traced, and must be on when it is called; null: off. Methods of different
    autocasts may serve one mode, where the program has the feature ``autocast-variants``.
    ``deterministic``: torch was told to use deterministic algorithms only when the method was compiled. ``rng`` is ``eager``
    where the graphs draw the random numbers that the original draws, in its order; else they draw some of the same distributions.
    ``subclasses[i]`` is what forward output i is put together to; empty: none is a subclass. A graph itself takes and returns
    plain tensors only: a subclass stands there as its parts, and its own sizes as ``sizes``, integers that the forward graph
    takes after the primals.
    ``flags`` holds the modes (``training``) of the submodules that must be in these, by path; those of others do not matter.
    ``updates`` are containers of the caller's that the call changes; their leaves follow those of ``outputs`` in ``results``.
    ``lines`` says from which line of the original (``model.py:12: return self.embedding(x)``) a node comes whose operator may
    refuse values: by graph and name (``forward/embedding``). For messages only.
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


class ModuleClass(Document, frozen=True):
    """A class of modules of the original. A reader never imports it.

    ``base`` is the class of ``torch.nn`` that it is, or the nearest one that it derives from, by its
    name there (``Conv2d``); empty: ``Module``. ``names`` are its attributes beyond those of ``base``:
    what compiled code does not look at, so that an edit of them does nothing.
    """

    name: Name
    base: str = ""
    names: list[Name] = []


class Module(Document, frozen=True):
    """A module of the original, by its path there; that of the root is empty.

    ``kind`` is the number of its class in ``module_classes``. ``training`` is its mode at build,
    ``trains`` that after ``train()`` of the root, ``evaluates`` whether it is in eval mode after ``eval()`` of
    the root. ``text`` is what ``repr`` shows of it; ``attributes`` holds those whose values are plain data.
    ``same_as``: the module at that earlier path is this very module.
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
    """A parameter of the original's ``forward``, in order, for who asks for its signature.

    ``optional``: it has a default, which is ``default``; ``opaque``: which is no plain data.
    """

    name: Name
    kind: Literal["positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"]
    optional: bool = False
    default: Data = None
    opaque: bool = False


class Pretrained(Document, frozen=True):
    """What tools ask of a model of the library ``transformers`` beside its call. Nothing here changes what is computed.

    ``config`` and ``generation_config`` are plain data, null: it has none. ``input_embeddings`` and ``output_embeddings`` are
    paths of modules. ``attributes`` are plain attributes of its class. ``unsaved`` are state entries that
    its ``save_pretrained`` leaves out because they are tied to others.
    """

    config: Data = None
    generation_config: Data = None
    input_embeddings: str | None = None
    output_embeddings: str | None = None
    attributes: dict[Name, Data] = {}
    unsaved: list[Name] = []


class Program(Document, frozen=True):
    """The program: the config blob of every manifest of a bundle."""

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


# ---------------------------------------------------------------- targets


class GivenInput(Document, frozen=True, tag="value", tag_field="type"):
    """Input ``index`` of the graph, as it is."""

    index: Index


class SizeCarrier(Document, frozen=True, tag="size_carrier", tag_field="type"):
    """An empty tensor of shape ``(size, 0)`` that carries integer input ``index`` of the graph."""

    index: Index


class Executable(Document, frozen=True):
    """Compiled code of one graph.

    ``inputs`` says what the code expects, from the graph's inputs; ``outputs[i]`` is the position among the code's results of the
    graph's output i. ``numbers`` are the positions of results that are 0-dimensional tensors and numbers in the graph.
    ``fallbacks`` lists, as JSON, the operators that the code calls through the dispatcher. ``donated`` are the positions of
    inputs that the code may overwrite.
    """

    code: Descriptor
    inputs: list[GivenInput | SizeCarrier]
    outputs: list[Index]
    fallbacks: Descriptor | None = None
    numbers: list[Index] = []
    donated: list[Index] = []


class PartCall(Document, frozen=True):
    """One run of the executable called ``part``, on the values with the numbers ``inputs``."""

    part: Name
    inputs: list[Index]


class Sequence(Document, frozen=True):
    """A graph as calls of executables, of which one may run several times.

    Values are numbered: the graph's inputs first, then what each call returns. ``outputs`` numbers the graph's outputs.
    """

    calls: list[PartCall]
    outputs: list[Index]


class ArrayType(Document, frozen=True):
    """Type of an array that an XLA computation takes or returns; it has no strides."""

    dtype: DType
    shape: list[Size]


class XlaParameter(Document, frozen=True):
    """A parameter of an XLA computation: the graph's input ``input``; null: the seed of its random numbers, new at each call."""

    type: ArrayType
    input: Index | None = None


class ResultView(Document, frozen=True, tag="view", tag_field="type"):
    """An output that is seen through ``view`` in the memory of the computation's result ``result``."""

    result: Index
    view: list[ViewStep]


class XlaExecutable(Document, frozen=True):
    """An XLA computation of one graph, as an ``HloModuleProto`` and as StableHLO: the same parameters and results in order.

    ``outputs[i]`` is the position among the results of the graph's output i, a view of a result where outputs share memory, or
    the input of the graph that it is. A position may serve several, an input that the computation does not need is no parameter
    of it. Without ``results`` there is no computation. ``donated`` are positions of parameters whose memory the results may
    take, where nobody needs them any more. ``code`` is it compiled for the target's device, as XLA's PJRT client serialises
    executables; null: it is compiled at load.
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

    ``interface`` is the version of what passes between it and a loader; ``torch`` a release with its local part
    (``2.13.0+cpu``); ``python`` the suffix of that Python's extension modules.
    """

    code: Descriptor
    interface: int
    torch: str
    python: str


class Target(Document, frozen=True):
    """How one target runs the program; the first layer of its manifest.

    ``kind`` picks the device module of the loader (``portable``, ``aoti``, ``xla``). Executables are keyed by method and
    direction: ``train.forward``, ``train.backward``. A graph whose key is in ``sequences`` runs in parts: executables of other
    names.
    ``constraints`` holds by method what this target's code assumes of sizes beyond the method's own constraints.
    ``xla`` has what ``executables`` have for other kinds; ``packages`` the releases of other packages that the code was made for.
    ``topology`` is the arrangement of devices that code of kind ``xla`` was compiled for (``v5e:2x2``).
    ``specializations`` has, by method, what ``xla`` has, for methods with symbols: computations are for fixed sizes.
    ``producer``: what compiled it, where that is not what wrote the program; null: the program's. Informative.
    ``call`` makes calls faster where it fits.
    ``imports`` are the names that the code takes from torch's libraries; with them it may run on other releases of torch.
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
