"""Executables of XLA for this machine's CPU, compiled at build or, elsewhere, at load. jaxlib runs them on torch's CPU tensors.

:mod:`aotpack_loader.trust` alone decides whether they may run, before this module is used.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..archive.bundle import Bundle
from ..errors import CorruptBundleError, TargetError
from ..format import schema
from ..format.computations import of_sizes
from ..format.expressions import evaluate
from ..format.subgraphs import output_values
from .base import CpuDevice
from .computed_outputs import Outputs

if TYPE_CHECKING:
    from .. import _jax_compat as compat
    from .call_library import CallLibrary


class PjrtExecutable:
    """One graph's code. Its results are complete when a call returns.

    ``strides`` are the strides of the graph's results, by index, where XLA's row-major ones differ.
    """

    def __init__(
        self,
        key: str,
        code: compat.Executable | None,
        executable: schema.XlaExecutable,
        strides: dict[int, tuple[int, ...]],
    ) -> None:
        self._key, self._run = key, code
        self._inputs = [parameter.input for parameter in executable.parameters]
        self._outputs, self._strides = Outputs(executable), strides
        self._promised: list[tuple[Any, tuple[int, ...]]] | None = [
            (getattr(torch, result.dtype), tuple(result.shape)) for result in executable.results
        ]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the code on ``inputs`` (emptied) and return the graph's outputs.

        Raises:
            CorruptBundleError: the results differ from the target's description.
            TargetError: XLA cannot run it, for lack of memory for example.
        """
        arguments = [_seed() if i is None else inputs[i] for i in self._inputs]
        passed = self._outputs.passed(inputs)
        inputs.clear()
        try:
            results = [] if self._run is None else self._run(arguments)
        except RuntimeError as error:
            raise TargetError(f"XLA cannot run {self._key}: {str(error).strip().splitlines()[0]}") from error
        if self._promised is not None:
            self._check(results)
        for i, stride in self._strides.items():
            results[i] = _with_strides(results[i], stride)
        return self._outputs(results, passed)

    def _check(self, results: list[torch.Tensor]) -> None:
        """Check the results of the first call. Code for fixed sizes returns the same types at every call."""
        found = [(result.dtype, tuple(result.shape)) for result in results]
        if found != self._promised:
            raise CorruptBundleError(f"X3: the code of {self._key} returns {found}, its target says {self._promised}.")
        self._promised = None


def _with_strides(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A copy with these strides. Elements along a stride of 0 are one element."""
    found = torch.empty_strided(value.shape, stride, dtype=value.dtype, device="cpu")
    once = value[tuple(slice(None) if step else slice(1) for step in stride)]
    found.as_strided(once.shape, stride).copy_(once)
    return found


def _seed() -> torch.Tensor:
    """A seed from torch's generator: a new one at every call, and the same after ``torch.manual_seed``."""
    return torch.empty((), dtype=torch.int64, device="cpu").random_()


class PjrtDevice(CpuDevice):
    """Runs XLA's executables of a bundle on the CPU.

    ``compiles``: the executables are for another machine or release, so their StableHLO is compiled.

    Raises:
        TargetError: jax cannot be imported.
    """

    device = torch.device("cpu")
    call_library: tuple[CallLibrary | None, str] = (None, "XLA's code is run by jaxlib")

    def __init__(self, bundle: Bundle, target: schema.Target, *, compiles: bool = False) -> None:
        try:
            from .. import _jax_compat as compat
        except (ImportError, RuntimeError) as error:
            raise TargetError(f"{target.name} needs jax, which cannot be imported: {error}") from error
        self._compat, self._bundle, self._target, self._compiles = compat, bundle, target, compiles
        self._computations: Mapping[str, schema.XlaExecutable] = target.xla
        self._sizes: Mapping[str, int] = {}

    def specialized(self, name: str, code: schema.Specialization) -> PjrtDevice:
        """This device with the code that the method called ``name`` has for one set of sizes."""
        device = copy.copy(self)
        device._computations, device._sizes = of_sizes(name, code), code.sizes
        return device

    def executable(self, key: str, graph: schema.Descriptor, arity: tuple[int, int]) -> PjrtExecutable:
        """Load the code called ``key``, or compile its program.

        Raises:
            CorruptBundleError: the target lacks it.
            TargetError: jaxlib cannot load or compile it.
        """
        executable = self._computations.get(key)
        stored = None if executable is None else executable.stablehlo if self._compiles else executable.code
        if executable is None or (executable.results and stored is None):
            raise CorruptBundleError(f"The target {self._target.name} has no code for {key}.")
        code = None if stored is None else self._code(key, stored, executable)
        return PjrtExecutable(key, code, executable, self._strides(key, graph, executable))

    def _code(self, key: str, stored: schema.Descriptor, executable: schema.XlaExecutable) -> compat.Executable:
        made, make = ("compile", self._compat.compiled) if self._compiles else ("load", self._compat.loaded)
        try:
            return self._compat.Executable(make(self._bundle.module(stored)), self._state(key, executable))
        except (RuntimeError, ValueError) as error:
            raise TargetError(
                f"jaxlib cannot {made} the code of {key} for {self._target.name}: {str(error).strip().splitlines()[0]}",
                hint="Build the bundle anew, or load it with backend='portable' where it has that.",
            ) from error

    def _state(self, key: str, executable: schema.XlaExecutable) -> list[int]:
        """The parameters of the code that are parameters, buffers and constants of the model."""
        name, _, direction = key.rpartition(".")
        method = self._bundle.program.methods[name]
        kinds = (schema.ParameterPrimal, schema.BufferPrimal, schema.ConstantPrimal)
        state = {i for i, primal in enumerate(method.primals) if isinstance(primal, kinds)}
        if direction == "backward" and method.backward is not None:
            saved = enumerate(method.backward.saved)
            state = {i for i, item in saved if isinstance(item, schema.SavedPrimal) and item.primal in state}
        return [i for i, parameter in enumerate(executable.parameters) if parameter.input in state]

    def _strides(self, key: str, graph: schema.Descriptor, executable: schema.XlaExecutable) -> dict[int, tuple[int, ...]]:
        """Strides of the values that leave the method. Values for its backward may have any strides (X1)."""
        name, _, direction = key.rpartition(".")
        if direction != "forward":
            return {}
        method = self._bundle.program.methods[name]
        seen = {item.output for item in method.results if isinstance(item, (schema.FreshResult, schema.AliasResult))}
        values = output_values(self._bundle.graph(graph))
        strides = {
            item: _unlike_row_major(values[i], self._sizes)
            for i, item in enumerate(executable.outputs)
            if i in seen and isinstance(item, int)
        }
        return {position: stride for position, stride in strides.items() if stride}


def _unlike_row_major(value: schema.Value | None, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The strides of a value at these sizes, or an empty tuple if they are those of a contiguous tensor."""
    if not isinstance(value, schema.TensorValue):
        return ()
    shape, stride = (tuple([evaluate(size, sizes) for size in dims]) for dims in (value.shape, value.stride))
    return () if torch.empty_strided(shape, stride, device="meta").is_contiguous() else stride
