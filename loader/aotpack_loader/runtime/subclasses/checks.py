"""Checks at every call of arguments, parameters and buffers that are tensor subclasses."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from ...errors import Problem
from ...format import schema
from ..inputs import Check, Environment, Inputs, TensorCheck
from ..memory import is_on
from ..state import UNFROZEN_MESSAGE, Expected, State
from ..tree import MISSING
from .wrappers import Classes, Wrapper


class SubclassInputs(Inputs):
    """Arguments that include subclasses."""

    def __init__(self, method: schema.Method, device: torch.device, classes: Classes) -> None:
        self._classes = classes
        super().__init__(method, device)

    def _check_of(
        self, leaf: schema.InputLeaf, device: torch.device, bound: set[str], symbols: list[schema.Symbol], with_gradients: bool
    ) -> Check:
        if isinstance(leaf, schema.TensorLeaf) and leaf.subclass is not None:
            return SubclassCheck(leaf, device, bound, symbols, with_gradients, Wrapper(leaf.subclass, self._classes))
        return super()._check_of(leaf, device, bound, symbols, with_gradients)


class SubclassCheck(TensorCheck):
    """Checks the class, metadata and parts of a subclass argument.

    Flattening it gives the parts the right strides.
    """

    def __init__(
        self,
        leaf: schema.TensorLeaf,
        device: torch.device,
        bound: set[str],
        symbols: list[schema.Symbol],
        with_gradients: bool,
        wrapper: Wrapper,
    ) -> None:
        super().__init__(leaf, device, bound, symbols, with_gradients)
        self.wrapper = wrapper
        limits = {symbol.name: symbol for symbol in symbols}
        self.inner_binds: list[tuple[tuple[str, ...], int, schema.Symbol]] = []
        for path, part in wrapper.plain_parts():
            for dim, size in enumerate(part.shape):
                if size in limits and size not in bound:
                    self.inner_binds.append((path, dim, limits[str(size)]))
                    bound.add(str(size))

    @property
    def determines(self) -> bool:
        """Whether symbols are read from this argument or its parts."""
        return bool(self.binds or self.inner_binds)

    def sources(self) -> list[tuple[str, str]]:
        """The symbols that are read from this argument or its parts, and the size each comes from."""
        inner = [(symbol.name, f"{'.'.join([self.leaf.path, *path])}.shape[{dim}]") for path, dim, symbol in self.inner_binds]
        return super().sources() + inner

    def bind(self, value: Any, environment: Environment) -> None:
        """Read the symbols that this argument determines, including those that only its parts determine."""
        super().bind(value, environment)
        if not self.inner_binds or any(self.wrapper.mismatch(value, {})):
            return
        for path, dim, symbol in self.inner_binds:
            environment[symbol.name] = functools.reduce(getattr, path, value).shape[dim]

    def __call__(self, value: Any, environment: Environment, problems: list[Problem]) -> Any:
        if value is MISSING:
            return value
        fits = type(value) is not self.wrapper.kind or (self.sizes_fit(value, environment) and self._inner_sizes_fit(environment))
        if not fits or (type(value) is self.wrapper.kind and not is_on(value, self.device)):
            found = [("", self.mismatch(value, environment))]
        else:
            found = list(self.wrapper.mismatch(value, environment))
        problems += [Problem(f"{self.leaf.path}{path}", message) for path, message in found]
        if not found and value.requires_grad and not self.requires_grad and torch.is_grad_enabled():
            problems.append(self.lost_gradient())
        return value

    def _inner_sizes_fit(self, environment: Environment) -> bool:
        limits = [(environment.get(symbol.name), symbol) for _, _, symbol in self.inner_binds]
        return all(n is None or (symbol.minimum <= n and (symbol.maximum is None or n <= symbol.maximum)) for n, symbol in limits)


class SubclassState(State):
    """Parameters and buffers that include subclasses.

    Each call checks them, because their parts may be replaced.
    """

    remembers = False

    def __init__(
        self, method: schema.Method, entries: Mapping[str, schema.StateEntry], device: torch.device, classes: Classes
    ) -> None:
        self._classes = classes
        super().__init__(method, entries, device)

    def _expectation(self, entry: schema.StateEntry, gradient: int | None, device: torch.device) -> Expected:
        if entry.subclass is None:
            return super()._expectation(entry, gradient, device)
        return ExpectedSubclass(entry, gradient, device, Wrapper(entry.subclass, self._classes))


class ExpectedSubclass(Expected):
    """What the graphs assume of a subclass parameter or buffer: its class, its metadata and its parts."""

    def __init__(self, entry: schema.StateEntry, gradient: int | None, device: torch.device, wrapper: Wrapper) -> None:
        super().__init__(entry, gradient, device)
        self.wrapper = wrapper

    def mismatch(self, value: torch.Tensor | None) -> str:
        """What is wrong with ``value``, or nothing."""
        if value is None:
            return "was removed"
        for path, message in self.wrapper.mismatch(value, {}):
            return f"{path}: {message}" if path else message
        if not is_on(value, self.device):
            return f"expected it on {self.device}, got it on {value.device}"
        return UNFROZEN_MESSAGE if self.frozen and value.requires_grad and torch.is_grad_enabled() else ""
