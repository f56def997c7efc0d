"""One step of a bundle: its inputs, the call under the build's autocast, and the loss of what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError
from aotpack_loader.format import schema
from aotpack_loader.module.program import LoadedProgram
from aotpack_loader.replay import device_of
from aotpack_loader.runtime.modes import as_built
from aotpack_loader.selftest import random_inputs, recorded_inputs


@dataclass(frozen=True)
class StepInputs:
    """The arguments of a call. ``source`` says where they come from: ``recorded``, or ``random, seed 0``."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: str


def inputs_of(path: Path, method: str, seed: int, subclasses: Sequence[type] = ()) -> StepInputs:
    """The inputs that a bundle recorded for the module's own call, or random ones for ``method``."""
    with Bundle.open(path) as bundle:
        program = bundle.program
        recorded = None if program.methods[method].function else recorded_inputs(bundle, subclasses)
    if recorded is not None:
        return StepInputs(*recorded, "recorded")
    return StepInputs(*random_inputs(program, program.methods[method], seed, subclasses), f"random, seed {seed}")


def method_of_steps(program: schema.Program, function: str) -> str:
    """The method of a function whose steps a command makes: with gradients in train mode, or else without in eval mode.

    Raises:
        AotpackError: the program has none, or no such function. An empty name is the module's own call.
    """
    for mode in (schema.Mode(True, True), schema.Mode(False, False)):
        for name, method in program.methods.items():
            if method.function == function and mode in method.serves:
                return name
    functions = ", ".join(dict.fromkeys(method.function for method in program.methods.values() if method.function))
    raise AotpackError(
        f"This bundle has no steps of a method {function!r}." if function else "This bundle has no steps of the module itself.",
        hint=f"It has the methods {functions}." if functions else "",
    )


def call_as_built(model: LoadedProgram, method: str) -> Callable[..., Any]:
    """A function that makes calls that ``method`` serves, under the autocast that it was built for."""
    described = model.aotpack.program.methods[method]
    called = model.aotpack.method(described.function) if described.function else model
    kind = device_of(model).type

    def call(*args: Any, **kwargs: Any) -> Any:
        with as_built(described, kind):
            return called(*args, **kwargs)

    return call


def loss_of(outputs: Any) -> Tensor:
    """The first floating-point scalar of a nested result, else the sum of the means of its floating-point tensors.

    Raises:
        AotpackError: it has no floating-point tensor.
    """
    floating = [tensor for tensor in _tensors(outputs) if tensor.is_floating_point()]
    if not floating:
        raise AotpackError("The model returns no floating-point tensor, so there is no loss to show.")
    for tensor in floating:
        if tensor.dim() == 0:
            return tensor
    return torch.stack([tensor.double().mean() for tensor in floating]).sum()


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a nested result, in order."""
    if isinstance(value, torch.Tensor):
        yield value if value.layout == torch.strided else value.to_dense()
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
