"""AOTInductor code: shared libraries over torch's C shim, run by torch's own runner.

Only :mod:`aotpack_loader.trust` decides whether they may run; nothing here is reached before it has.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from .._torch_compat import aoti_runner
from ..archive.bundle import Bundle
from ..errors import CorruptBundleError, TargetError
from ..format import schema


class AotiExecutable:
    """One compiled graph. Inputs are handed over: an activation is freed as soon as the code has used it."""

    def __init__(self, package: Path, executable: schema.Executable) -> None:
        self._run = aoti_runner(package)
        inputs, outputs = executable.inputs, executable.outputs
        plain = all(isinstance(item, schema.GivenInput) and item.index == i for i, item in enumerate(inputs))
        self._inputs = None if plain else inputs
        self._outputs = None if outputs == list(range(len(outputs))) else outputs

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the code on ``inputs`` (emptied) and return the graph's outputs."""
        arguments = inputs if self._inputs is None else [_argument(item, inputs) for item in self._inputs]
        if arguments is not inputs:
            inputs.clear()
        results = self._run(arguments)
        arguments.clear()
        return results if self._outputs is None else [results[position] for position in self._outputs]


def _argument(item: schema.GivenInput | schema.SizeCarrier, inputs: list[Any]) -> torch.Tensor:
    value = inputs[item.index]
    return torch.empty((value, 0)) if isinstance(item, schema.SizeCarrier) else value


class AotiDevice:
    """Runs a bundle's AOTInductor code on the CPU."""

    def __init__(self, bundle: Bundle, target: schema.Target, device: torch.device) -> None:
        self.device = device
        self._bundle = bundle
        self._target = target

    def executable(self, key: str, graph: schema.Descriptor, arity: tuple[int, int]) -> AotiExecutable:
        """Extract and open the code called ``key``.

        Raises:
            CorruptBundleError: the target lacks it.
            TargetError: the system cannot load it.
        """
        executable = self._target.executables.get(key)
        if executable is None:
            raise CorruptBundleError(f"The target {self._target.name} has no code for {key}.")
        package = _package(self._bundle.code(executable.code), self._fallbacks(executable))
        try:
            return AotiExecutable(package, executable)
        except RuntimeError as error:
            raise TargetError(
                f"The code of {key} for {self._target.name} cannot be loaded: {str(error).splitlines()[0]}",
                hint="Load with backend='portable', or build the bundle for this machine.",
            ) from error

    def _fallbacks(self, executable: schema.Executable) -> bytes | None:
        found = executable.fallbacks
        return None if found is None else bytes(self._bundle.read(found))


def _package(library: Path, fallbacks: bytes | None) -> Path:
    """The directory form in which torch's runner takes a library, beside the library in the cache.

    Made under another name and renamed, so that concurrent processes see all of it or nothing.
    """
    package = library.with_suffix(".package")
    if package.is_dir():
        return package
    made = Path(tempfile.mkdtemp(dir=library.parent, prefix=".package-"))
    model = made / "data" / "aotinductor" / "model"
    model.mkdir(parents=True)
    os.link(library, model / "code.wrapper.so")
    metadata = json.dumps({"AOTI_DEVICE_KEY": "cpu"})
    (model / "code.wrapper_metadata.json").write_text(metadata)
    if fallbacks is not None:
        (model / "code.wrapper.json").write_bytes(fallbacks)
    try:
        made.rename(package)
    except OSError:
        shutil.rmtree(made)
        if not package.is_dir():
            raise
    return package
