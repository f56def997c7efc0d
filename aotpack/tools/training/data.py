"""The batches of a training run, in an order that the seed and the epoch decide."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from aotpack.model.entry import directory_on_path
from aotpack_loader.checkpoints.folder import dtype_name
from aotpack_loader.errors import AotpackError, EntryError, Problem
from aotpack_loader.format import schema

Batch = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""


class Data(Protocol):
    """Batches by epoch."""

    @property
    def steps_per_epoch(self) -> int | None:
        """The number of batches of an epoch. None: it is known when one ends."""

    def describe(self) -> dict[str, Any]:
        """Return what a run that goes on must have, too: plain data."""

    def batches(self, epoch: int, skip: int) -> Iterator[Batch]:
        """Yield the batches of an epoch without the first ``skip``."""


def opened(source: str, method: schema.Method, *, batch_size: int | None, seed: int, steps_per_epoch: int | None) -> Data:
    """The data that ``--data`` names: a safetensors file, or ``module:function``.

    Raises:
        AotpackError: it cannot be read, or does not fit the method's arguments.
    """
    if source.endswith(".safetensors"):
        return FileData(Path(source), method, batch_size, seed, steps_per_epoch)
    if batch_size is not None:
        raise AotpackError("The function of --data makes the batches, so --batch-size has no effect.")
    return FunctionData(source, seed, steps_per_epoch)


class FileData:
    """The tensors of a safetensors file, named as the arguments of a method. The first dimension counts the samples.

    Each epoch has an order of its own. Samples that fill no whole batch are left out of it.
    """

    def __init__(
        self, path: Path, method: schema.Method, batch_size: int | None, seed: int, steps_per_epoch: int | None = None
    ) -> None:
        self._tensors = _read(path)
        _check_names(path, self._tensors, method)
        sizes = {name: tensor.shape[0] if tensor.dim() else 0 for name, tensor in self._tensors.items()}
        self.samples = next(iter(sizes.values()))
        if len(set(sizes.values())) != 1 or not self.samples:
            problems = [Problem(name, f"has {size} samples") for name, size in sizes.items()]
            raise AotpackError(f"The tensors of {path} have no equal number of samples in the first dimension.", problems)
        self.batch_size = batch_size or _batch_size(method) or min(32, self.samples)
        whole = self.samples // self.batch_size
        if not whole:
            raise AotpackError(f"{path} has {self.samples} samples, and a batch has {self.batch_size}.", hint="Set --batch-size.")
        self.steps_per_epoch = whole if steps_per_epoch is None else min(whole, steps_per_epoch)
        self._seed = seed

    def describe(self) -> dict[str, Any]:
        return {"samples": self.samples, "batch_size": self.batch_size, "steps_per_epoch": self.steps_per_epoch}

    def batches(self, epoch: int, skip: int) -> Iterator[Batch]:
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(_seed_of(self._seed, epoch)))
        for step in range(skip, self.steps_per_epoch):
            chosen = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield (), {name: tensor[chosen] for name, tensor in self._tensors.items()}


class FunctionData:
    """The batches of a function of the user's, ``module:function``: tuples or dictionaries of arguments.

    It is called for each epoch, with ``epoch`` and ``seed`` if it has such parameters. The numbers that it draws (torch, Python,
    NumPy) come from a stream of the seed and the epoch. So a run that goes on skips batches, and gets the same ones as before.
    """

    def __init__(self, spec: str, seed: int, steps_per_epoch: int | None) -> None:
        self._function, self._spec, self._seed = _function(spec), spec, seed
        self.steps_per_epoch = steps_per_epoch
        parameters = inspect.signature(self._function).parameters
        self._takes = [name for name in ("epoch", "seed") if name in parameters]

    def describe(self) -> dict[str, Any]:
        return {"steps_per_epoch": self.steps_per_epoch}

    def batches(self, epoch: int, skip: int) -> Iterator[Batch]:
        given = {"epoch": epoch, "seed": self._seed}
        stream = _Stream(_seed_of(self._seed, epoch))
        iterator = stream.run(lambda: iter(self._function(**{name: given[name] for name in self._takes})))
        for step in itertools.count() if self.steps_per_epoch is None else range(self.steps_per_epoch):
            try:
                batch = stream.run(lambda: next(iterator))
            except StopIteration:
                break
            if step >= skip:
                yield self._arguments(batch)

    def _arguments(self, batch: Any) -> Batch:
        if isinstance(batch, Mapping):
            return (), dict(batch)
        if isinstance(batch, (tuple, list)):
            return tuple(batch), {}
        raise AotpackError(f"{self._spec} yields a {type(batch).__name__}, and neither a tuple nor a dictionary of arguments.")


class _Stream:
    """Random states of its own for code that draws numbers."""

    def __init__(self, seed: int) -> None:
        self._seed: int | None = seed
        self._states: list[Any] = []

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function with these states. The caller's are as before afterwards."""
        kept = _states()
        if self._seed is None:
            _set_states(self._states)
        else:
            torch.manual_seed(self._seed)
            random.seed(self._seed)
            if numpy := sys.modules.get("numpy.random"):
                numpy.seed(self._seed % 2**32)
            self._seed = None
        try:
            return function()
        finally:
            self._states = _states()
            _set_states(kept)


def _states() -> list[Any]:
    numpy = sys.modules.get("numpy.random")
    return [torch.get_rng_state(), random.getstate(), *([numpy.get_state()] if numpy else [])]


def _set_states(states: list[Any]) -> None:
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    if len(states) > 2:
        sys.modules["numpy.random"].set_state(states[2])


def _seed_of(seed: int, epoch: int) -> int:
    return random.Random(f"{seed} {epoch}").getrandbits(63)


def _read(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise AotpackError(f"{path} cannot be read: {error}") from error
    if not tensors:
        raise AotpackError(f"{path} has no tensors.")
    return tensors


def _check_names(path: Path, tensors: Mapping[str, torch.Tensor], method: schema.Method) -> None:
    """Compare the tensors of a file with the arguments of a method.

    Raises:
        AotpackError: lists names and element types that differ.
    """
    leaves = {leaf.path: leaf for leaf in method.leaves}
    problems = [Problem(name, "is no tensor argument") for name in tensors if not isinstance(leaves.get(name), schema.TensorLeaf)]
    problems += [
        Problem(name, "is missing")
        for name, leaf in leaves.items()
        if isinstance(leaf, schema.TensorLeaf) and name not in tensors
    ]
    for name, tensor in tensors.items():
        found, leaf = dtype_name(tensor), leaves.get(name)
        if isinstance(leaf, schema.TensorLeaf) and found != leaf.dtype:
            problems.append(Problem(name, f"is of {found}, the bundle takes {leaf.dtype}"))
    if problems:
        hint = "Tensors of nested arguments come from a function: --data module:function."
        raise AotpackError(f"The tensors of {path} are not the arguments of the bundle.", problems, hint=hint)


def _batch_size(method: schema.Method) -> int | None:
    """The batch size that the bundle was built for, if it does not vary."""
    sizes = {leaf.shape[0] for leaf in method.leaves if isinstance(leaf, schema.TensorLeaf) and leaf.shape}
    size = next(iter(sizes), None)
    return size if len(sizes) == 1 and isinstance(size, int) else None


def _function(spec: str) -> Callable[..., Any]:
    """The function that the command line names.

    Raises:
        EntryError: its module cannot be imported, or has no such function.
    """
    module, _, name = spec.partition(":")
    if not module or not name:
        raise EntryError(f"--data {spec}: expected FILE.safetensors or module:function.")
    with directory_on_path(Path(os.getcwd(), "-")):
        try:
            found = getattr(importlib.import_module(module), name, None)
        except Exception as error:
            raise EntryError(
                f"--data {spec}: the module cannot be imported.", [Problem(module, f"{type(error).__name__}: {error}")]
            ) from error
    if not callable(found):
        raise EntryError(f"--data {spec}: {module} has no function {name!r}.")
    function: Callable[..., Any] = found
    return function
