"""A method: what happens before and after its graphs, and how its backward is called."""

from typing import Literal

from .arguments import InputLeaf, OutputSymbol, Primal, Subclass, Symbol
from .documents import Descriptor, Dim, Document, DType, Index, Name
from .graphs import Arg, Scalar, Tree, Update


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


class Writer(Document, frozen=True):
    """A hook or a custom backward of the original that writes to a buffer.

    It runs if there is a gradient for one of ``tangents``, and autograd wants that of one of ``primals``.
    """

    tangents: list[Index]
    primals: list[Index]


class StateWrite(Document, frozen=True):
    """The backward writes to primal ``primal``, a buffer: its new value is backward output ``output``.

    It is written if all of ``writers`` run, and not written if none runs.
    """

    primal: Index
    output: Index
    writers: list[Writer]


class Backward(Document, frozen=True):
    """The backward graph and its calling convention: inputs are ``saved``, ``tangents``, then the primals of ``state_writes``.

    ``gradients[i]`` is the backward output with the gradient of primal i; null: it has none.
    ``depends[j]`` lists the tangents that backward output j depends on. If none of them was passed,
    there is no gradient, as in eager, rather than zeros. Empty: every output depends on every tangent.
    ``second``: a method for derivatives of the gradients; null: there is none. ``subclasses[j]``
    is the subclass that backward output j is rebuilt as; empty: none is a subclass. ``sparse``: the
    gradients that are sparse tensors. ``tangent_writes`` and ``state_writes``: the tangents and
    buffers that the original's backward writes to. ``result_sources[i]`` lists the results that the
    original computes result i from, and whose gradient this backward does not compute; empty: not
    recorded, or there are none.
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
    state_writes: list[StateWrite] = []
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
