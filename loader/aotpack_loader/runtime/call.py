"""A method ready to be called: inputs, executables and epilogue joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import InputError, Problem
from ..format import schema
from .autograd import Differentiable, Executable
from .epilogue import Epilogue
from .inputs import Inputs

StateReader = Callable[[], Mapping[str, torch.Tensor]]


class MethodCall:
    """Calls one method.

    Args:
        name: the method's name, for messages.
        method: its description.
        forward: the forward graph on the device.
        backward: the backward graph, where the method has one.
        state: reads the module's current parameters and buffers by name.
        constants: tensors the graphs close over, by stored name.
        device: where the executables run.
    """

    def __init__(
        self,
        name: str,
        method: schema.Method,
        forward: Executable,
        backward: Executable | None,
        state: StateReader,
        constants: Mapping[str, torch.Tensor],
        entries: Mapping[str, schema.StateEntry],
        device: torch.device,
    ) -> None:
        self.name = name
        self._inputs = Inputs(method, device)
        self._forward = forward
        self._differentiable = None if backward is None else Differentiable(method, forward, backward)
        self._epilogue = Epilogue(method)
        self._primals = [_source(primal, constants) for primal in method.primals]
        self._state = state
        self._expected = {
            primal.name: _Expected(entries[primal.name], gradient, device)
            for primal, gradient in zip(method.primals, _gradients(method), strict=True)
            if isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal))
        }
        written = {mutation.primal for mutation in method.mutations}
        inputs = [i for i, primal in enumerate(method.primals) if isinstance(primal, schema.InputPrimal)]
        self._paths = {i: method.leaves[method.primals[i].leaf].path for i in inputs}  # type: ignore[union-attr]
        self._writes_inputs = [i for i in inputs if i in written] if len(inputs) > 1 else []

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the method on the caller's arguments.

        Raises:
            InputError: arguments, parameters or buffers that do not fit; nothing was run.
        """
        given, environment = self._inputs(args, kwargs)
        state = self._state()
        self._check_state(state)
        primals = [read(state, given) for read in self._primals]
        for written in self._writes_inputs:
            self._refuse_overlap(written, primals)
        if self._differentiable is not None and torch.is_grad_enabled() and any(p.requires_grad for p in primals):
            outputs = self._differentiable(primals, environment)
        else:
            with torch.no_grad():
                outputs = self._forward(list(primals))
        return self._epilogue(primals, outputs, environment)

    def _check_state(self, state: Mapping[str, torch.Tensor]) -> None:
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
        storage = primals[written].untyped_storage().data_ptr()
        for other, path in self._paths.items():
            if other != written and storage and primals[other].untyped_storage().data_ptr() == storage:
                raise InputError(
                    "Two arguments share memory, and the model writes to one of them.",
                    [Problem(self._paths[written], f"written to; shares its storage with {path}")],
                    hint="Pass a clone of one, or build with example inputs that share memory in the same way.",
                )


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
        self.device = device
        self.frozen = entry.kind == "parameter" and gradient is None and not entry.requires_grad

    def mismatch(self, value: torch.Tensor) -> str:
        """What is wrong with ``value``, or nothing."""
        if value.shape != self.shape or value.dtype is not self.dtype or value.device.type != self.device.type:
            found = f"{value.dtype}{list(value.shape)} on {value.device}"
            return f"expected {self.dtype}{list(self.shape)} on {self.device}, got {found}"
        if value.stride() != self.stride and value.numel() > 1:
            return f"expected strides {list(self.stride)}, got {list(value.stride())}"
        if self.frozen and value.requires_grad:
            return "was frozen when the bundle was built and now requires a gradient, for which there is no code"
        return ""
