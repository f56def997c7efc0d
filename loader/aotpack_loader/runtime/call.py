"""A method ready to be called: inputs, executables and epilogue joined."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._torch_compat import is_plain_tensor
from ..errors import InputError, ModeError, Problem
from ..format import schema
from .autograd import Differentiable, Executable
from .epilogue import Epilogue
from .inputs import Inputs


class MethodCall:
    """Calls one method. Holds nothing of the module it is called for, so copies of a module share it.

    Args:
        name: the method's name, for messages.
        method: its description.
        forward: the forward graph on the device.
        backward: the backward graph, where the method has one.
        constants: tensors the graphs close over, by stored name.
        device: where the executables run.
    """

    def __init__(
        self,
        name: str,
        method: schema.Method,
        forward: Executable,
        backward: Executable | None,
        constants: Mapping[str, torch.Tensor],
        entries: Mapping[str, schema.StateEntry],
        device: torch.device,
    ) -> None:
        self.name = name
        self._device = device
        self._autocast: torch.dtype | None = None if method.autocast is None else getattr(torch, method.autocast)
        self._inputs = Inputs(method, device)
        self._forward = forward
        self._differentiable = None
        if backward is not None and method.backward is not None:
            self._differentiable = Differentiable(method, method.backward, forward, backward)
        self._epilogue = Epilogue(method)
        self._primals = [_source(primal, constants) for primal in method.primals]
        self._expected = {
            primal.name: _Expected(entries[primal.name], gradient, device)
            for primal, gradient in zip(method.primals, _gradients(method), strict=True)
            if isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal))
        }
        written = {mutation.primal for mutation in method.mutations}
        inputs = [i for i, primal in enumerate(method.primals) if isinstance(primal, schema.InputPrimal)]
        self._paths = {i: method.leaves[method.primals[i].leaf].path for i in inputs}  # type: ignore[union-attr]
        leaf_of = {primal.leaf: i for i, primal in enumerate(method.primals) if isinstance(primal, schema.InputPrimal)}
        self._identical = {
            (leaf_of[a], leaf_of[b]) for group in method.identical for a in group for b in group if a in leaf_of and b in leaf_of
        }
        self._writes_inputs = [i for i in inputs if i in written] if len(inputs) > 1 else []
        self._apart = _kept_apart(method, entries, written)

    def __deepcopy__(self, memo: dict[int, Any]) -> MethodCall:
        return self

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], state: Mapping[str, Any]) -> Any:
        """Run the method on the caller's arguments; ``state`` has the module's current parameters and buffers by name, or None.

        Raises:
            InputError: arguments, parameters or buffers that do not fit; nothing was run.
        """
        self._check_autocast()
        given, laid_out, environment = self._inputs(args, kwargs)
        self._check_state(state)
        primals = [read(state, given) for read in self._primals]
        for i, others in self._apart:
            self._refuse_overlap_with_state(i, primals[i], others, state)
        for written in self._writes_inputs:
            self._refuse_overlap(written, primals)
        # The forward empties its list, the epilogue needs the caller's own tensors: read again only if some had to be laid out.
        as_given = all(map(operator.is_, given, laid_out))
        arguments = primals.copy() if as_given else [read(state, laid_out) for read in self._primals]
        if self._autocast is None:
            outputs = self._run(arguments, environment)
        else:
            with torch.autocast(self._device.type, enabled=False):  # the graphs hold their own casts
                outputs = self._run(arguments, environment)
        return self._epilogue(primals, outputs, environment)

    def _run(self, primals: list[torch.Tensor], environment: Mapping[str, int]) -> list[Any]:
        if self._differentiable is not None and torch.is_grad_enabled() and any(p.requires_grad for p in primals):
            return self._differentiable(primals, environment)
        with torch.no_grad():
            return self._forward(primals)

    def _check_autocast(self) -> None:
        """Eager under autocast computes something else than the graphs, unless they were traced under the same."""
        kind = self._device.type
        current = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        if current is not self._autocast:
            built = "without autocast" if self._autocast is None else f"under autocast to {self._autocast}"
            now = "off" if current is None else f"on, to {current}"
            raise ModeError(
                f"This bundle was built {built}, and autocast is {now} at this call.",
                hint="Call it in the state it was built in, or build it in the state it is called in.",
            )

    def _check_state(self, state: Mapping[str, Any]) -> None:
        problems = [
            Problem(name, message) for name, expected in self._expected.items() if (message := expected.mismatch(state[name]))
        ]
        if problems:
            raise InputError(
                "Parameters or buffers of the module no longer fit this bundle.",
                problems,
                hint="The bundle's code was compiled for the original types and shapes; load it again to get them back.",
            )

    def _refuse_overlap(self, written: int, primals: list[torch.Tensor]) -> None:
        """The graphs were built for arguments that do not share memory with one they write to."""
        start, stop = _memory(primals[written])
        for other, path in self._paths.items():
            low, high = _memory(primals[other])
            if other != written and (written, other) not in self._identical and low < stop and start < high:
                raise _overlap(self._paths[written], path)

    def _refuse_overlap_with_state(
        self, i: int, argument: torch.Tensor, others: list[tuple[str, int]], state: Mapping[str, torch.Tensor]
    ) -> None:
        low, high = _memory(argument)
        for name, span in others:
            start = state[name].data_ptr()
            if start < high and low < start + span:
                raise _overlap(name, self._paths[i])


def _overlap(written: str, other: str) -> InputError:
    return InputError(
        "Tensors of this call share memory, and the model writes to one of them.",
        [Problem(written, f"shares its memory with {other}")],
        hint="Pass a clone of one, or build with example inputs that share memory in the same way.",
    )


def _kept_apart(
    method: schema.Method, entries: Mapping[str, schema.StateEntry], written: set[int]
) -> list[tuple[int, list[tuple[str, int]]]]:
    """For each argument the state it must share no memory with, as name and span: what is written to; buffers if it is itself."""
    found = []
    for i, primal in enumerate(method.primals):
        if isinstance(primal, schema.InputPrimal):
            others = [
                (other.name, _span(entries[other.name]))
                for j, other in enumerate(method.primals)
                if (isinstance(other, (schema.ParameterPrimal, schema.BufferPrimal)) and j in written)
                or (isinstance(other, schema.BufferPrimal) and i in written)
            ]
            if others:
                found.append((i, others))
    return found


def _span(entry: schema.StateEntry) -> int:
    """How many bytes an entry reaches over; its tensor is known to have its sizes and strides."""
    if 0 in entry.shape:
        return 0
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return (1 + sum((size - 1) * step for size, step in zip(entry.shape, entry.stride, strict=True))) * dtype.itemsize


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last byte a tensor may touch, as addresses; empty for a tensor without elements."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return start, start + span * tensor.element_size()


def _gradients(method: schema.Method) -> list[int | None]:
    return [None] * len(method.primals) if method.backward is None else method.backward.gradients


def _source(
    primal: schema.Primal, constants: Mapping[str, torch.Tensor]
) -> Callable[[Mapping[str, torch.Tensor], list[Any]], torch.Tensor]:
    if isinstance(primal, schema.InputPrimal):
        leaf = primal.leaf
        return lambda state, given: given[leaf]
    if isinstance(primal, schema.ConstantPrimal):
        constant = constants[primal.name]
        return lambda state, given: constant
    name = primal.name
    return lambda state, given: state[name]


class _Expected:
    """What compiled code assumes of one parameter or buffer."""

    def __init__(self, entry: schema.StateEntry, gradient: int | None, device: torch.device) -> None:
        self.dtype: torch.dtype = getattr(torch, entry.dtype)
        self.shape = tuple(entry.shape)
        self.stride = tuple(entry.stride)
        self.complex = self.dtype.is_complex
        self.device = device
        self.on_cpu = device.type == "cpu"
        self.frozen = entry.kind == "parameter" and gradient is None and not entry.requires_grad

    def mismatch(self, value: torch.Tensor | None) -> str:
        """What is wrong with ``value``, or nothing."""
        if value is None:
            return "was removed"
        if not is_plain_tensor(value):
            return f"is a {type(value).__name__}, which intercepts operations; compiled code reads memory"
        if value.shape != self.shape or value.dtype is not self.dtype or value.is_cpu is not self.on_cpu:
            found = f"{value.dtype}{list(value.shape)} on {value.device}"
            return f"expected {self.dtype}{list(self.shape)} on {self.device}, got {found}"
        if value.stride() != self.stride and value.numel() > 1:
            return f"expected strides {list(self.stride)}, got {list(value.stride())}"
        if value.is_neg() or (self.complex and value.is_conj()):
            return "is lazily negated or conjugated; compiled code reads memory: resolve it first"
        if self.frozen and value.requires_grad and torch.is_grad_enabled():
            return "was frozen when the bundle was built and now requires a gradient, for which there is no code"
        return ""
