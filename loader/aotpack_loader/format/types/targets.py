"""Targets: compiled code of a program's graphs."""

from .documents import Descriptor, Document, DType, Index, Name, Size
from .methods import ViewStep
from .programs import Producer


class GivenInput(Document, frozen=True, tag="value", tag_field="type"):
    """Input ``index`` of the graph, as it is."""

    index: Index


class SizeCarrier(Document, frozen=True, tag="size_carrier", tag_field="type"):
    """An empty tensor of shape ``(size, 0)`` that carries integer input ``index`` of the graph."""

    index: Index


class CudaKernel(Document, frozen=True):
    """A kernel that code for a GPU launches.

    ``code`` is the kernel for the target's architecture. ``ptx`` is the same in the language that drivers
    compile for later ones. ``grid`` has the numbers of blocks as expressions of the kernel's arguments.
    ``warps`` is the number of warps of a block, ``shared`` how many bytes of shared memory it takes
    beside those that the code itself declares, and ``arguments`` the types of what it is given.
    ``blocks`` are its block sizes. All but ``code`` and ``ptx`` are informative.
    """

    code: Descriptor
    ptx: Descriptor | None = None
    grid: list[str] = []
    warps: Index = 0
    shared: Index = 0
    arguments: list[str] = []
    blocks: dict[str, Index] = {}


class Gpu(Document, frozen=True):
    """The GPUs that a target's code runs on.

    ``capability`` is that of the code (``9.0``), and ``driver`` the first release of CUDA whose driver runs
    it. ``is_exact``: only GPUs of this capability run it; else those of the same major and a higher minor
    number, too. ``ptx`` is the version of the kernels' PTX, and ``ptx_driver`` the first release of CUDA
    whose driver compiles it. Empty: there is none.
    """

    capability: str
    driver: str
    is_exact: bool = False
    ptx: str = ""
    ptx_driver: str = ""


class Executable(Document, frozen=True):
    """Compiled code of one graph.

    ``inputs`` says how the code's inputs follow from the graph's. ``outputs[i]`` is the index of the
    graph's output i among the code's results. ``numbers`` are the indices of results that are
    0-dimensional tensors in the code and numbers in the graph. ``fallbacks`` lists, as JSON, the
    operators that the code calls through the dispatcher. ``donated`` are the indices of inputs that
    the code may overwrite. ``kernels`` are the kernels that it launches on a GPU, by name.
    """

    code: Descriptor
    inputs: list[GivenInput | SizeCarrier]
    outputs: list[Index]
    fallbacks: Descriptor | None = None
    numbers: list[Index] = []
    donated: list[Index] = []
    kernels: dict[str, CudaKernel] = {}


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
    it may run on other releases of torch. ``gpu``: for code whose ``device`` is ``cuda``.
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
    gpu: Gpu | None = None
