"""Checks at every call that the module's parameters and buffers still match what the code assumes.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from .._torch_compat import is_plain_tensor, likeness
from ..errors import InputError, Problem
from ..format import schema
from .memory import is_on


class State:
    """What one method assumes of its parameters and buffers.

    The checked properties of the last valid state are remembered, not the contents. One call into
    torch then confirms that all tensors still have the same properties.
    """

    remembers = True

    def __init__(self, method: schema.Method, entries: Mapping[str, schema.StateEntry], device: torch.device) -> None:
        gradients = [None] * len(method.primals) if method.backward is None else method.backward.gradients
        self.expected = {
            primal.name: self._expectation(entries[primal.name], gradient, device)
            for primal, gradient in zip(method.primals, gradients, strict=True)
            if isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal))
        }
        self.ties = [(entry.name, entry.tied_to) for entry in entries.values() if entry.tied_to and method.role == "call"]
        self._alike: dict[bool, Callable[..., bool]] = {}

    def _expectation(self, entry: schema.StateEntry, gradient: int | None, device: torch.device) -> Expected:
        return Expected(entry, gradient, device)

    def check(self, state: Mapping[str, torch.Tensor]) -> None:
        """Check the module's current tensors, by name; None where one was removed.

        Raises:
            InputError: lists all that do not fit; nothing was run.
        """
        values = [state[name] for name in self.expected]
        grad = torch.is_grad_enabled()
        alike = self._alike.get(grad)
        problems: list[Problem] = []
        if alike is None or not alike(*values):
            problems = self._mismatches(values)
            if not problems and self.remembers:
                self._alike[grad] = likeness(values)
        for name, other in self.ties:
            if state[name] is not state[other]:
                problems.append(Problem(name, f"was tied to {other} when the bundle was built, and no longer is"))
        if problems:
            raise self._error(problems, values)

    def joined(self, error: InputError, state: Mapping[str, torch.Tensor]) -> InputError:
        """An error that lists the problems of the arguments and those of the state, if any."""
        values = [state[name] for name in self.expected]
        problems = self._mismatches(values)
        return self._error([*error.problems, *problems], values) if problems else error

    def _mismatches(self, values: Sequence[Any]) -> list[Problem]:
        pairs = zip(self.expected.items(), values, strict=True)
        found = [(name, expected.mismatch(value)) for (name, expected), value in pairs]
        return [Problem(name, message) for name, message in found if message]

    def _error(self, problems: Sequence[Problem], values: Sequence[Any]) -> InputError:
        cast = [
            value.dtype
            for expected, value in zip(self.expected.values(), values, strict=True)
            if isinstance(value, torch.Tensor) and is_plain_tensor(value) and value.dtype != expected.dtype
        ]
        hint = "The bundle's code was compiled for the original types and shapes; load it again to get them back."
        if any(_is_laid_out_otherwise(expected, value) for expected, value in zip(self.expected.values(), values, strict=True)):
            hint = (
                "The bundle's code was compiled for the original strides; to(memory_format=torch.contiguous_format) undoes "
                "to(memory_format=torch.channels_last). To compute in channels_last, build the bundle from a model that is in it."
            )
        if moved := _other_device(self.expected.values(), values):
            hint = moved
        from .tool_hints import advice  # only for errors

        if instead := advice(type(value).__module__ for value in values):
            hint = instead
        elif cast:
            hint = (
                "The bundle's code was compiled for the original element types: half(), bfloat16(), double() and to(dtype) "
                "cannot change them. Put them back, or load the bundle again. "
                f"To compute in {cast[0]}, build the bundle from a model in it, or build and call it under torch.autocast. "
                "A policy that casts parameters (FSDP) works with a bundle built in that type: load(...).float(), then wrap it."
            )
        return InputError("Parameters or buffers of the module no longer fit this bundle.", problems, hint=hint, shown=_SHOWN)


_SHOWN = 10
"""How many problems the text of an error has: ``half()`` of a large model changes hundreds of parameters."""


def _other_device(expected: Iterable[Expected], values: Sequence[Any]) -> str:
    """What to do about parameters that were moved to one other device; empty: none were."""
    pairs = [(one.device, value.device) for one, value in zip(expected, values, strict=True) if isinstance(value, torch.Tensor)]
    found = {(str(device), str(there)) for device, there in pairs if device != there}
    if len(found) != 1:
        return ""
    ((device, there),) = found
    return (
        f"The bundle was loaded on {device}, and to(), cpu() or cuda() moved its parameters alone: load it there with "
        f"aotpack.load(…, device={there!r}), and move the arguments. to({device!r}) undoes the move."
    )


def _is_laid_out_otherwise(expected: Expected, value: Any) -> bool:
    """Whether the only difference of ``value`` are strides of images or volumes."""
    return expected.mismatch(value).startswith("expected strides") and value.dim() in (4, 5)


UNFROZEN_MESSAGE = "was frozen when the bundle was built and now requires a gradient, for which there is no code"


class Expected:
    """What compiled code assumes of one parameter or buffer."""

    def __init__(self, entry: schema.StateEntry, gradient: int | None, device: torch.device) -> None:
        self.dtype: torch.dtype = getattr(torch, entry.dtype)
        self.shape = tuple(entry.shape)
        self.stride = tuple(entry.stride)
        self.complex = self.dtype.is_complex
        self.device = device
        self.frozen = gradient is None and not entry.requires_grad

    def mismatch(self, value: torch.Tensor | None) -> str:
        """What is wrong with ``value``, or nothing."""
        if value is None:
            return "was removed"
        if not is_plain_tensor(value):
            return f"is a {type(value).__name__}, which intercepts operations; compiled code reads memory"
        is_placed = is_on(value, self.device)
        if value.shape == self.shape and value.dtype is not self.dtype and is_placed:
            return f"expected {self.dtype}, got {value.dtype}"
        if value.shape != self.shape or value.dtype is not self.dtype or not is_placed:
            found = f"{value.dtype}{list(value.shape)} on {value.device}"
            return f"expected {self.dtype}{list(self.shape)} on {self.device}, got {found}"
        if value.stride() != self.stride and value.numel() > 1:
            return f"expected strides {list(self.stride)}, got {list(value.stride())}"
        if value.is_neg() or (self.complex and value.is_conj()):
            return "is lazily negated or conjugated; compiled code reads memory: resolve it first"
        if self.frozen and value.requires_grad and torch.is_grad_enabled():
            return UNFROZEN_MESSAGE
        return ""
