"""AOTInductor code: shared libraries over torch's C shim, run by torch's own runner.

:mod:`aotpack_loader.trust` alone decides whether they may run, before this module is used.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from .._torch_compat import aoti_runner
from ..archive.bundle import Bundle
from ..errors import AutogradError, CorruptBundleError, TargetError
from ..format import schema
from .base import CpuDevice
from .call_library import open_library
from .packages import library_of, operators_called, package_of, require_operators

_CPU: Final = torch.device("cpu")


def _unchanged_error(error: Exception) -> Exception:
    return error


class AotiExecutable:
    """One compiled graph. It takes ownership of its inputs, so an activation is freed after its last use.

    ``count`` is the number of values it returns. ``positions`` has two lists: which inputs of the
    graph the code takes, and which of its results are the graph's outputs. ``run`` is the code, which empties its inputs.
    ``donated`` are inputs of the graph that the code may overwrite. ``device`` is that of its tensors.
    ``refused`` converts an exception of the code to an error of ours.
    """

    def __init__(
        self,
        run: Callable[[list[Any]], list[Any]],
        executable: schema.Executable,
        refused: Callable[[Exception], Exception] = _unchanged_error,
        device: torch.device = _CPU,
    ) -> None:
        self._refused, self._device = refused, device
        self.run = run
        inputs, outputs = executable.inputs, executable.outputs
        plain = all(isinstance(item, schema.GivenInput) and item.index == i for i, item in enumerate(inputs))
        self._inputs = None if plain else inputs
        self._outputs = None if outputs == list(range(len(outputs))) else outputs
        self._numbers = executable.numbers
        self._returned = max([*outputs, *self._numbers], default=-1) + 1
        self.count = len(outputs)
        self.returns_tensors = not self._numbers
        self.positions = [item.index for item in inputs], outputs
        self.donated = [inputs[position].index for position in executable.donated]

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the code on ``inputs`` (emptied) and return the graph's outputs.

        Raises:
            CorruptBundleError: the code returns fewer values than the target declares.
        """
        arguments = inputs if self._inputs is None else [_argument(item, inputs, self._device) for item in self._inputs]
        if arguments is not inputs:
            inputs.clear()
        try:
            results: list[Any] = list(self.run(arguments)) if self._numbers else self.run(arguments)
        except RuntimeError as error:
            raise self._refused(error) from None
        arguments.clear()
        if len(results) < self._returned:
            raise CorruptBundleError(f"Compiled code returned {len(results)} values; its target uses {self._returned}.")
        if len({*map(id, results)}) < len(results):
            results = _separate(results)
        for position in self._numbers:
            results[position] = results[position].item()
        return results if self._outputs is None else [results[position] for position in self._outputs]

    def fail(self, message: str) -> None:
        """Raise the error for ``message``, which the code raised when the call library ran it."""
        raise self._refused(RuntimeError(message)) from None

    def retaining(self, inputs: list[Any]) -> list[Any]:
        """Run the code without changing any input. It overwrites copies instead."""
        for index in self.donated:
            inputs[index] = inputs[index].clone()
        return self(inputs)


def _separate(results: list[Any]) -> list[Any]:
    """Make several results of one tensor separate tensors, which share memory and version counter.

    The graph has each result once, but AOTInductor returns one tensor for a value and its detached copy.
    """
    found: list[Any] = []
    for result in results:
        found.append(result.detach() if any(result is earlier for earlier in found) else result)
    return found


def _argument(item: schema.GivenInput | schema.SizeCarrier, inputs: list[Any], device: torch.device) -> torch.Tensor:
    if not isinstance(item, schema.SizeCarrier):
        tensor: torch.Tensor = inputs[item.index]
        return tensor
    value: int = inputs[item.index]
    if value < 0:
        raise AutogradError(
            f"The model read the number {value} from a tensor, and its gradient needs it. Compiled code keeps no negative number"
            ' for the backward: load the bundle with backend="portable".'
        )
    return torch.empty((value, 0), dtype=torch.float32, device=device)


class AotiSequence:
    """A graph that runs in parts. A value is released when it is passed to the last part that takes it.

    ``calls`` have the name of a part in ``parts``, the numbers of the values that it takes, of those
    that no later call takes, and of its results that nothing takes. ``unused`` are inputs that
    nothing takes, ``outputs`` the numbers of the graph's outputs.
    """

    def __init__(self, sequence: schema.Sequence, parts: Mapping[str, AotiExecutable], inputs: int) -> None:
        last: dict[int, int] = {}
        for position, call in enumerate(sequence.calls):
            last.update(dict.fromkeys(call.inputs, position))
        kept = set(sequence.outputs)
        self.unused = [number for number in range(inputs) if number not in last and number not in kept]
        self.calls: list[tuple[str, list[int], list[int], list[int]]] = []
        for position, call in enumerate(sequence.calls):
            made = range(inputs, inputs := inputs + parts[call.part].count)
            dead = [number for number in set(call.inputs) if last[number] == position and number not in kept]
            self.calls.append((call.part, call.inputs, dead, [n for n in made if n not in last and n not in kept]))
        self.outputs = sequence.outputs
        self.parts = parts
        self.returns_tensors = all(part.returns_tensors for part in parts.values())

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the parts on ``inputs`` (emptied) and return the graph's outputs."""
        values = [*inputs]
        inputs.clear()
        for number in self.unused:
            values[number] = None
        for name, numbers, dead, unread in self.calls:
            arguments = [values[number] for number in numbers]
            for number in dead:
                values[number] = None
            values += self.parts[name](arguments)
            for number in unread:
                values[number] = None
        return [values[number] for number in self.outputs]


class AotiDevice(CpuDevice):
    """Runs a bundle's AOTInductor code on the CPU."""

    def __init__(self, bundle: Bundle, target: schema.Target, device: torch.device) -> None:
        self.device = device
        self._bundle = bundle
        self._target = target
        self.call_library = open_library(bundle, target)

    def executable(self, key: str, graph: schema.Descriptor, arity: tuple[int, int]) -> AotiExecutable | AotiSequence:
        """Extract and open the code called ``key``, or the parts it is run in.

        Raises:
            CorruptBundleError: the target lacks it.
            TargetError: the system cannot load it.
            UnsupportedVersionError: it calls operators that are not registered.
        """
        sequence = self._target.sequences.get(key)
        if sequence is None:
            return self._open(key)
        parts = {call.part for call in sequence.calls}
        return AotiSequence(sequence, {part: self._open(part) for part in parts}, arity[0])

    def _open(self, key: str) -> AotiExecutable:
        executable = self._target.executables.get(key)
        if executable is None:
            raise CorruptBundleError(f"The target {self._target.name} has no code for {key}.")
        library, fallbacks = self._bundle.code(executable.code), self._fallbacks(executable)

        def refused(error: Exception) -> Exception:
            from .refusals import of_compiled_code  # only for errors

            return of_compiled_code(error, self._bundle.program, key, operators_called(fallbacks) if fallbacks else [])

        try:
            run = self._runner(self._package(library, fallbacks, executable))
            return AotiExecutable(run, executable, refused, self.device)
        except RuntimeError as error:
            raise TargetError(
                f"The code of {key} for {self._target.name} cannot be loaded: {str(error).splitlines()[0]}",
                hint="Load with backend='portable', or build the bundle for this machine.",
            ) from error

    def _package(self, library: Path, fallbacks: bytes | None, executable: schema.Executable) -> Path:
        return package_of(library, fallbacks)

    def _runner(self, package: Path) -> Callable[[list[Any]], list[Any]]:
        library = self.call_library[0]
        return aoti_runner(package) if library is None else library.open(library_of(package))

    def _fallbacks(self, executable: schema.Executable) -> bytes | None:
        """The list of operators that the code calls through the dispatcher, after checking that all are registered."""
        if executable.fallbacks is None:
            return None
        found = bytes(self._bundle.read(executable.fallbacks))
        require_operators(found)
        return found
