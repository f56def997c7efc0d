"""XLA devices, through torch_xla. The device's own compiler compiles the computations once, at load.

:mod:`aotpack_loader.trust` alone decides whether they may run, because a computation may call
functions that are registered in the process.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from msgspec import structs

from .. import _process
from ..archive.bundle import Bundle
from ..errors import AotpackError, CorruptBundleError, Problem, TargetError
from ..format import schema
from ..format.computations import of_sizes
from ..format.versions import torch_satisfies
from .computed_outputs import Outputs
from .xla_views import alias_of_elements, of_elements, unsupported_view

if TYPE_CHECKING:
    from .. import _torch_xla_compat as compat
    from .call_library import CallLibrary

    Runs = compat.Computation | compat.PartitionedComputation

_EXTRAS = {"torch_xla": "xla", "jax": "xla-cpu", "jaxlib": "xla-cpu"}
"""Which extra of the loader brings a package."""


def unfit(target: schema.Target, *, exact: bool = True) -> str:
    """Why this process cannot run a target of this kind, or an empty string. Imports nothing.

    ``exact``: other releases of the packages do not do.
    """
    if target.device not in ("xla", "cpu"):
        return f"is code for {target.device} {target.topology}, which torch_xla cannot load: it runs the target 'xla' there"
    made = "lowered" if target.device == "xla" else "compiled"
    if not torch_satisfies(torch.__version__, target.torch):
        return f"{made} for torch {target.torch}, this is {torch.__version__}"
    for package, releases in target.packages.items():
        try:
            found = installed(package)
        except PackageNotFoundError:
            return f"needs {package} {releases}, which is not installed" + _remedy(package)
        if exact and not torch_satisfies(found, releases):
            return f"{made} for {package} {releases}, this is {found}" + _remedy(package)
    if target.device == "xla" and importlib.util.find_spec("torch_xla") is None:
        return f"needs torch_xla{_remedy('torch_xla')}"
    return ""


def _remedy(package: str) -> str:
    return f": pip install 'aotpack-loader[{_EXTRAS[package]}]'" if package in _EXTRAS else ""


class XlaExecutable:
    """One graph's computation.

    A call starts the pending work of its arguments, as ``torch_xla.sync()`` does, and then the
    computation. It waits for neither. Under SPMD the computation itself is pending until the next
    such start.

    Args:
        key: the graph's key, for messages.
        executable: its description.
        device: where it runs.
        compiler: compiles it, with the parameters whose memory the results reuse.
        donated: those parameters.
        visible: whether the caller has tensors that use their memory; else only the backward has.
    """

    def __init__(
        self,
        key: str,
        executable: schema.XlaExecutable,
        device: torch.device,
        compiler: Callable[[Sequence[int]], Runs | None],
        donated: Sequence[int] = (),
        *,
        visible: bool = False,
    ) -> None:
        from .. import _torch_xla_compat as compat

        self._compat, self._key, self._device = compat, key, device
        self._compile, self._donated, self._visible = compiler, donated, visible and bool(donated)
        self._is_spmd = compat.is_spmd()
        self._run = compiler(donated)
        self._inputs = [parameter.input for parameter in executable.parameters]
        views = [
            structs.replace(item, view=of_elements(item.view)) if isinstance(item, schema.ResultView) else item
            for item in executable.outputs
        ]
        self._outputs = Outputs(structs.replace(executable, outputs=views))

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the computation on ``inputs`` (emptied) and return the graph's outputs.

        Raises:
            TargetError: XLA cannot run it, for lack of memory for example; or SPMD was enabled
                after the load.
        """
        return self._start(inputs, donates=bool(self._donated))

    def retaining(self, inputs: list[Any]) -> list[Any]:
        """Run it without changing any input.

        If inputs are normally donated, this variant is compiled at its first call.
        """
        return self._start(inputs, donates=False)

    @cached_property
    def _plain(self) -> Runs | None:
        return self._compile(()) if self._donated else self._run

    def _start(self, inputs: list[Any], *, donates: bool) -> list[Any]:
        compat = self._compat
        if self._is_spmd != compat.is_spmd():
            raise TargetError(
                "torch_xla's SPMD mode was turned on after this bundle was loaded.",
                hint="Call torch_xla.runtime.use_spmd() first, then load the bundle.",
            )
        arguments = [compat.next_seed(self._device) if i is None else inputs[i] for i in self._inputs]
        passed = self._outputs.passed(inputs)
        inputs.clear()
        try:
            # Pending work may still read the memory that is donated next. Clones share it until
            # they are computed.
            if self._visible or compat.pending(arguments):
                compat.start_pending(self._device)
            if self._visible and any(compat.is_shared(arguments, i) for i in self._donated):
                donates = False
            run = self._run if donates else self._plain
            results = [] if run is None else run(arguments)
        except RuntimeError as error:  # memory, for example
            raise TargetError(f"XLA cannot run {self._key}: {str(error).strip().splitlines()[0]}") from error
        return self._outputs(results, passed)


class XlaDevice:
    """Runs a bundle's computations on one XLA device.

    Raises:
        TargetError: there is no such device, or this process can no longer compute gradients on it.
    """

    call_library: tuple[CallLibrary | None, str] = (None, "XLA computations are run by torch_xla")

    def __init__(self, bundle: Bundle, target: schema.Target, device: torch.device) -> None:
        try:
            from .. import _torch_xla_compat as compat
        except (ImportError, OSError) as error:
            raise TargetError(
                f"torch_xla cannot be imported with torch {torch.__version__}: {error}",
                hint="torch_xla needs the torch of its own release: pip install 'aotpack-loader[xla]' into a fresh environment.",
            ) from error
        try:
            found = compat.devices()
        except (OSError, RuntimeError) as error:
            raise TargetError(
                f"torch_xla has no device here: {str(error).strip().splitlines()[0]}",
                hint="Set PJRT_DEVICE to the kind of device this machine has: TPU, or CPU.",
            ) from error
        wanted = [item for item in found if device.index in (None, item.index)]
        if not wanted:
            raise TargetError(f"There is no device {device}.", hint=f"torch_xla has {', '.join(map(str, found)) or 'no device'}.")
        self.device = self.scalars = wanted[0]
        if compat.is_cpu():  # a thread of torch_xla allocates the memory of each computation and its results
            _process.keep_heaps_of_threads()
        self._compat, self._bundle, self._target = compat, bundle, target
        self._computations = target.xla
        self._takes_state = False
        self._is_spmd = compat.is_spmd()
        _check_backward(self.device)

    def adapted(self, program: schema.Program) -> schema.Program:
        """The program without strides.

        Raises:
            TargetError: it needs strides, or memory that two tensors share; lists where.
        """
        return without_strides(program)

    def moved(self, state: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The state on this device."""
        return {name: tensor.to(self.device) for name, tensor in state.items()}

    def require_memory(self) -> NoReturn:
        """Refuse, because XLA tensors have no strides and memory to check."""
        raise AotpackError(
            'check="full" looks at strides and memory, which tensors on XLA devices do not have.',
            hint='Load the bundle with check="arguments", or on the CPU.',
        )

    def updating_in_place(self, target: str) -> XlaDevice:
        """This device with computations that reuse the memory of tensors to which their method writes.

        Raises:
            TargetError: under SPMD, because computations cannot reuse memory then.
        """
        if self._is_spmd:
            raise TargetError("donate=True: under SPMD buffers are not updated in place.", hint="Load without it.")
        device = copy.copy(self)
        device._takes_state = True
        return device

    def specialized(self, name: str, code: schema.Specialization) -> XlaDevice:
        """This device with the computations of the method called ``name`` for one set of sizes."""
        device = copy.copy(self)
        device._computations = of_sizes(name, code)
        return device

    def executable(self, key: str, graph: schema.Descriptor, arity: tuple[int, int]) -> XlaExecutable:
        """Compile the computation called ``key``, with placeholders that need no memory.

        Raises:
            CorruptBundleError: the target lacks it, or its results differ from the target's
                description.
            TargetError: XLA cannot compile it.
        """
        executable = self._computations.get(key)
        if executable is None:
            raise CorruptBundleError(f"The target {self._target.name} has no computation for {key}.")
        is_forward = key.endswith(".forward")
        donated = [] if is_forward and not self._takes_state else executable.donated
        if self._is_spmd:
            donated = []
        compiler = partial(self._compile, key, executable)
        return XlaExecutable(key, executable, self.device, compiler, donated, visible=is_forward)

    def _compile(self, key: str, executable: schema.XlaExecutable, donated: Sequence[int]) -> Runs | None:
        if executable.hlo is None:
            return None
        hlo = self._bundle.module(executable.hlo)
        name = f"aotpack_{executable.hlo.digest.removeprefix('sha256:')}"
        parameters = [_placeholder(parameter.type) for parameter in executable.parameters]
        try:
            if self._is_spmd:
                computation: Runs = self._compat.PartitionedComputation(name, hlo, parameters, self.device)
            else:
                computation = self._compat.Computation(name, hlo, parameters, self.device, donated)
        except RuntimeError as error:
            raise TargetError(
                f"XLA cannot compile {key} for {self.device}: {str(error).strip().splitlines()[0]}",
                hint="Build the bundle with the releases of torch and torch_xla that load it.",
            ) from error
        promised = [_placeholder(item) for item in executable.results]
        if computation.results != promised:
            raise CorruptBundleError(f"X3: the computation of {key} returns {computation.results}, its target says {promised}.")
        return computation


def _placeholder(item: schema.ArrayType) -> tuple[torch.dtype, Sequence[int]]:
    return getattr(torch, item.dtype), tuple(item.shape)


def _check_backward(device: torch.device) -> None:
    """Check that gradients work on the device.

    Autograd creates its threads at the first backward of a process: one for each existing device.
    """
    with torch.enable_grad():
        probe = torch.zeros((), device=device, requires_grad=True)
        try:
            torch.autograd.grad(probe * 1, probe)
        except RuntimeError as error:
            raise TargetError(
                "Gradients cannot be taken on XLA devices in this process: a backward pass ran before torch_xla made its device.",
                hint="Load the bundle in a fresh process; or call torch_xla.device() in this one before the first backward(), "
                "and before a build for other targets than xla, which takes gradients too.",
            ) from error


def without_strides(program: schema.Program) -> schema.Program:
    """The program as an XLA device computes it. Tensors there have no strides, and all appear contiguous.

    Raises:
        TargetError: it needs strides, or memory that two tensors share; lists where.
    """
    problems = unsupported_state(program.state)
    for name, method in program.methods.items():
        problems += unsupported(name, method)
    if problems:
        raise TargetError("This program cannot run on an XLA device, whose tensors have no strides or addresses.", problems)
    methods = {name: _method_without_strides(method) for name, method in program.methods.items()}
    return structs.replace(program, methods=methods, state=[_contiguous(entry) for entry in program.state])


def unsupported(name: str, method: schema.Method) -> list[Problem]:
    """What XLA devices cannot reproduce of the method called ``name``."""
    kinds = sorted({mutation.kind for mutation in method.mutations} - {"data"})
    problems = [Problem(name, f"changes sizes, strides or the storage of an argument in place ({kind})") for kind in kinds]
    if any(isinstance(primal, (schema.SyntheticBasePrimal, schema.ViewBasePrimal)) for primal in method.primals):
        problems.append(Problem(name, "writes to arguments that share memory"))
    for i, result in enumerate(method.results):
        if isinstance(result, schema.FreshResult) and result.sparse_dim is not None:
            problems.append(Problem(name, f"returns as result {i} a sparse tensor"))
        is_view = isinstance(result, schema.AliasResult) and result.primal is not None
        if is_view and has_subclasses(method):
            problems.append(Problem(name, f"returns as result {i} a view of an argument beside tensor subclasses"))
        if isinstance(result, schema.AliasResult) and (reason := unsupported_view(result.view, of_argument=is_view)):
            problems.append(Problem(name, f"returns as result {i} {reason}"))
    for leaf in method.leaves:
        if isinstance(leaf, schema.TensorLeaf) and leaf.from_start:
            problems.append(Problem(name, f"reads {leaf.path} by as_strided, with an offset from the start of its storage"))
    if method.backward is not None and method.backward.sparse:
        problems.append(Problem(name, "has sparse gradients"))
    if method.backward is not None and method.backward.tangent_writes:
        problems.append(Problem(name, "has a backward that writes to the gradient it is given"))
    if method.backward is not None and method.backward.state_writes:
        problems.append(Problem(name, "has a backward that writes to a buffer"))
    if has_subclasses(method) and method.symbols:
        problems.append(Problem(name, "takes or returns tensor subclasses, whose sizes vary"))
    if method.rng == "eager":
        problems.append(Problem(name, "draws eager's random numbers, which an XLA device does not have"))
    return problems


def has_subclasses(method: schema.Method) -> bool:
    """Whether a method takes or returns tensor subclasses."""
    return any(method.subclasses) or any(isinstance(leaf, schema.TensorLeaf) and leaf.subclass for leaf in method.leaves)


def unsupported_state(state: Sequence[schema.StateEntry]) -> list[Problem]:
    """Entries that share a stored tensor with another entry, and subclass entries. XLA devices support neither."""
    owners: dict[str, str] = {}
    problems = [Problem(entry.name, "is a tensor subclass") for entry in state if entry.subclass is not None]
    for entry in state:
        if not entry.tied_to and entry.subclass is None and (owner := owners.setdefault(entry.storage, entry.name)) != entry.name:
            problems.append(Problem(entry.name, f"shares its memory with {owner}"))
    return problems


def _method_without_strides(method: schema.Method) -> schema.Method:
    leaves = [structs.replace(leaf, stride=None) if isinstance(leaf, schema.TensorLeaf) else leaf for leaf in method.leaves]
    results = [alias_of_elements(item) if isinstance(item, schema.AliasResult) else item for item in method.results]
    backward = method.backward
    if backward is not None:
        plain = [structs.replace(item, stride=None, memory_format="contiguous_format") for item in backward.tangents]
        backward = structs.replace(backward, tangents=plain)
    return structs.replace(method, leaves=leaves, results=results, backward=backward)


def _contiguous(entry: schema.StateEntry) -> schema.StateEntry:
    return structs.replace(entry, stride=list(torch.empty(entry.shape, device="meta").stride()), offset=0)
