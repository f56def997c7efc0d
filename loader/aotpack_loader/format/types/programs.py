"""The program: its state, modules, optimizers and methods, and where its nodes come from."""

from typing import Literal

from .arguments import Subclass
from .documents import Descriptor, Document, DType, Index, Name, Size
from .graphs import Data, FloatArg
from .methods import Method


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


Sparse = Literal["never", "allowed", "required"]
"""Whether the gradient of an update is a sparse tensor."""


class OptimizerUpdate(Document, frozen=True):
    """How ``parameters`` of ``group`` are updated: by a call of ``method`` for each.

    The arguments of the method are the parameter, its gradient, its state by name, and the numbers of
    the group by path, as tensors without dimensions. It writes to the parameter and its state. ``flat``:
    it takes the parameter, and tensors of its sizes, with all dimensions as one, in the order of memory.
    ``initial`` is what the state holds before the first step: a number, the path of an option, or ``params``: the parameter.
    ``integers`` are the names of state that is an integer in Python. ``sparse``: whether the gradient may or must be a
    sparse tensor; then the method is called with the rows that the gradient has.
    """

    method: Name
    group: Index
    parameters: list[Name]
    initial: dict[Name, FloatArg | Name] = {}
    flat: bool = False
    integers: list[Name] = []
    sparse: Sparse = "never"


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
