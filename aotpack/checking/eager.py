"""Runs the model in eager on copies of its state and arguments, so that nothing of it changes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from aotpack_loader.format import schema
from aotpack_loader.runtime.modes import as_built

from .._torch.api.argument_records import open_dataclasses
from .._torch.api.double import in_double, widened
from .._torch.api.nudged import Nudged, nudge
from ..capture import has_modes
from ..capture.dry_run import repeat
from .calling import Arguments, Call, observe, state_of
from .copies import Copies
from .observation import Observation, Tensors

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Example:
    """Arguments of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def copies(self, state: Tensors) -> tuple[Copies, Arguments, Tensors]:
        """Copies of the arguments and of ``state``, which share memory as the originals do."""
        with open_dataclasses((self.args, self.kwargs)):
            given = Arguments(self.args, self.kwargs, {}).given
            copies = Copies([*state.values(), *given.values()])
            made = Arguments(copies.tree(self.args), copies.tree(self.kwargs), {})
            copied = {path: copies.of(tensor) for path, tensor in state.items()}
        sources = {f"{path}.source": copies.sources[id(x)] for path, x in made.given.items() if id(x) in copies.sources}
        return copies, Arguments(made.args, made.kwargs, sources), copied


@dataclass(frozen=True)
class Eager:
    """A model in one mode of a build."""

    module: torch.nn.Module
    method: schema.Method
    training: bool
    call: Call

    def run(self, example: Example, seed: int = 0) -> Observation:
        """One call and its backward."""
        _, arguments, state = example.copies(state_of(self.module))
        return self._observe(arguments, state, seed)

    def run_nudged(self, example: Example, seed: int, roundings: int) -> Observation:
        """The same with every result of an operator moved by some roundings, up or down at random."""
        _, arguments, state = example.copies(state_of(self.module))
        generator = torch.Generator().manual_seed(seed)
        buffers = {id(x): x for x in state.values() if not isinstance(x, torch.nn.Parameter)}
        for buffer in buffers.values():  # a norm writes its statistics without saying so
            nudge(buffer, generator, roundings)
        given = [x for x in (*state.values(), *arguments.given.values()) if id(x) not in buffers]
        with Nudged(generator, roundings, given):
            return self._observe(arguments, state, 0)

    def run_in_double(self, example: Example) -> Observation | None:
        """The same in float64; None where that cannot be done."""
        copies, arguments, state = example.copies(state_of(self.module))
        tensors = (*state.values(), *arguments.given.values())
        if copies.share_memory or any(map(_is_subclass, tensors)):
            return None
        wide: dict[int, torch.Tensor] = {}

        def widen(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in wide:
                wide[id(tensor)] = _double(tensor)
            return wide[id(tensor)]

        state = {path: widen(tensor) for path, tensor in state.items()}
        with open_dataclasses(self.args_of(arguments)):
            args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, widen, self.args_of(arguments))
        sources = {path: widen(tensor) for path, tensor in arguments.leaves.items()}
        if sources:
            return None
        floats = [x.dtype for x in tensors if x.is_floating_point()]
        with in_double(max(floats, key=floats.count, default=torch.float32)):
            seen = self._observe(Arguments(args, kwargs, sources), state, 0)
        return seen if seen.error is None else None

    @staticmethod
    def args_of(arguments: Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return arguments.args, arguments.kwargs

    def _observe(self, arguments: Arguments, state: Tensors, seed: int) -> Observation:
        call = replace(self.call, seed=seed, draws=True)
        with _quiet(), repeat.unchanged(self.module), _holding(self.module, state), as_built(self.method):
            if self.module.training != self.training and has_modes(self.module):
                self.module.train(self.training)
            return observe(call, arguments, self.module, lambda: state_of(self.module), once=True)


def same_draws(one: Observation, other: Observation) -> bool:
    """Whether two runs left the generator in the same states."""
    return all(torch.equal(a, b) for a, b in zip(one.generator, other.generator, strict=True))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Restore the random state after the block, and show no warnings about calls that nobody made."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        yield


@contextlib.contextmanager
def _holding(module: torch.nn.Module, state: Tensors) -> Iterator[None]:
    """Let ``module`` hold the tensors of ``state`` inside the block."""
    changed: list[tuple[dict[str, Any], dict[str, Any]]] = []
    try:
        for prefix, each in module.named_modules(remove_duplicate=False):
            for held in (each._parameters, each._buffers):
                changed.append((held, dict(held)))
                for name, tensor in list(held.items()):
                    path = f"state.{prefix}.{name}" if prefix else f"state.{name}"
                    if tensor is not None and path in state:
                        held[name] = state[path]
        yield
    finally:
        for held, before in reversed(changed):
            held.clear()
            held.update(before)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    made = widened(tensor.detach())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


def _is_subclass(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "__tensor_flatten__")
