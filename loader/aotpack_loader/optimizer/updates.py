"""Runs the update of one parameter: the method of a bundle that computes a step of an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..devices.base import Executable
from ..errors import CorruptBundleError
from ..format import schema
from ..format.optimizers import arguments_of


class OpenedUpdate(NamedTuple):
    """A method, its graph on the device, and the tensors that it closes over, by name."""

    method: schema.Method
    executable: Executable
    constants: Mapping[str, torch.Tensor]


class Bound(NamedTuple):
    """A parameter and its state as code takes them, for as long as they are the same memory."""

    addresses: list[int]
    shape: torch.Size
    dtype: torch.dtype
    tensors: list[torch.Tensor]

    def is_of(self, parameter: torch.Tensor, state: Mapping[str, Any]) -> bool:
        """Whether a parameter and its state have not been replaced."""
        same = self.shape == parameter.shape and self.dtype is parameter.dtype
        return same and self.addresses == addresses(parameter, state)


OpenUpdate = Callable[[str], OpenedUpdate]
"""Opens the method of an update by its name."""


class Update:
    """The update of the parameters of one kind.

    Args:
        described: what the program says about it.
        opened: its method.
    """

    def __init__(self, described: schema.OptimizerUpdate, opened: OpenedUpdate) -> None:
        method = opened.method
        parameter, _, self._state, numbers = arguments_of(method)
        self.flat, self.integers, self._initial = described.flat, described.integers, described.initial
        self.dtype: torch.dtype = getattr(torch, parameter.dtype)
        self.numbers = [*numbers]
        self._shape, self._stride = (torch.Size(), ()) if described.flat else _geometry(parameter)
        self._expected = {name: (self._is_like(leaf), getattr(torch, leaf.dtype)) for name, leaf in self._state.items()}
        self._sizes = {name: _geometry(leaf) for name, leaf in self._state.items() if not self._is_like(leaf)}
        self._like = [True, True, *(like for like, _ in self._expected.values())]
        self._run = opened.executable
        taken = [primal for primal in method.primals if isinstance(primal, (schema.InputPrimal, schema.ConstantPrimal))]
        constants = [primal.name for primal in taken if isinstance(primal, schema.ConstantPrimal)]
        self._constants = [opened.constants[name] for name in constants]
        count = len(method.leaves)
        self._inputs = [p.leaf if isinstance(p, schema.InputPrimal) else count + constants.index(p.name) for p in taken]
        self._writes = [(mutation.primal, mutation.output) for mutation in method.mutations]

    def problems(self, parameter: torch.Tensor) -> Iterator[str]:
        """Why the code cannot update a parameter."""
        if parameter.dtype != self.dtype:
            yield f"is of {parameter.dtype}, the bundle was built for {self.dtype}"
        elif self.flat:
            if not (parameter.is_contiguous() or _is_dense(parameter)):
                yield f"has the strides {list(parameter.stride())}, so that there are gaps between its elements"
        elif parameter.shape != self._shape or parameter.stride() != self._stride:
            found = f"{list(parameter.shape)}, strides {list(parameter.stride())}"
            yield f"has the sizes {found}, the bundle was built for {list(self._shape)}, {list(self._stride)}"

    def state_problems(self, parameter: torch.Tensor, state: Mapping[str, Any]) -> Iterator[str]:
        """What differs between ``state`` and the state that the code takes for a parameter."""
        if state.keys() != self._state.keys():
            yield f"has the state {', '.join(sorted(state))}, and not {', '.join(sorted(self._state))}"
            return
        for name, (like, dtype) in self._expected.items():
            value = state[name]
            if name in self.integers:
                if type(value) is not int:
                    yield f"has a {type(value).__name__} as {name}, and no integer"
                continue
            if not isinstance(value, torch.Tensor):
                yield f"has a {type(value).__name__} as {name}, and no tensor"
                continue
            shape, strides = (parameter.shape, parameter.stride()) if like else self._sizes[name]
            if value.shape != shape or value.dtype is not dtype or value.device != parameter.device:
                found = f"{value.dtype}{list(value.shape)} on {value.device}"
                yield f"has {found} as {name}, and not {dtype}{list(shape)} on {parameter.device}"
            elif value.stride() != strides:
                yield f"has the strides {list(value.stride())} in {name}, and not {list(strides)}"

    def _is_like(self, leaf: schema.TensorLeaf) -> bool:
        """Whether a state has the sizes and strides of its parameter."""
        return self.flat and len(leaf.shape) == 1

    def new_state(self, parameter: torch.Tensor, numbers: Mapping[str, float]) -> dict[str, Any]:
        """The state of a parameter before its first step. ``numbers`` are the options of its group, by path."""
        state: dict[str, Any] = {}
        for name, initial in self._initial.items():
            value = numbers[initial] if isinstance(initial, str) else float(initial.value)
            state[name] = int(value) if name in self.integers else self._blank(name, parameter).fill_(value)
        return state

    def laid_out(self, name: str, value: Any, parameter: torch.Tensor) -> Any:
        """A state with the strides that the code takes: itself, or a copy."""
        if name in self.integers or name not in self._expected or not isinstance(value, torch.Tensor):
            return value
        blank = self._blank(name, parameter)
        return value if value.stride() == blank.stride() or value.shape != blank.shape else blank.copy_(value)

    def _blank(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        like, dtype = self._expected[name]
        if like:
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        return torch.empty_strided(*self._sizes[name], dtype=dtype, device=parameter.device)

    def bound(self, parameter: torch.Tensor, state: Mapping[str, Any]) -> Bound:
        """A parameter and its state, which fit, as the code takes them."""
        held = [torch.tensor(state[name]) if name in self.integers else state[name] for name in self._state]
        tensors = [parameter, *held]
        if self.flat:
            like = self._like[1:]
            tensors = [x.as_strided((parameter.numel(),), (1,)) if flat else x for x, flat in zip(tensors, like, strict=True)]
        return Bound(addresses(parameter, state), parameter.shape, parameter.dtype, tensors)

    def __call__(
        self,
        parameter: torch.Tensor,
        gradient: torch.Tensor,
        state: dict[str, Any],
        numbers: Sequence[torch.Tensor],
        bound: Bound,
    ) -> None:
        """Update a parameter and its state in place.

        ``gradient`` has the parameter's sizes, and may have other strides. ``numbers`` are in the order of ``self.numbers``.
        """
        if gradient.stride() != parameter.stride() and not (gradient.is_contiguous() and parameter.is_contiguous()):
            gradient = torch.empty_like(parameter, requires_grad=False).copy_(gradient)
        if self.flat:
            gradient = gradient.as_strided((gradient.numel(),), (1,))
        first, *held = bound.tensors
        leaves = [first, gradient, *held, *numbers, *self._constants]
        arguments = [leaves[leaf] for leaf in self._inputs]
        outputs = self._run(arguments.copy())
        for primal, output in self._writes:
            target, value = arguments[primal], outputs[output]
            if value.shape != target.shape or value.dtype != target.dtype:
                found = f"{value.dtype}{list(value.shape)}"
                raise CorruptBundleError(f"A step returns {found} for {target.dtype}{list(target.shape)}.")
            if value.data_ptr() != target.data_ptr():  # else the code has written there itself
                target.copy_(value)
        torch.autograd.graph.increment_version(parameter)
        for name, value in zip(self._state, held, strict=True):
            if name in self.integers:
                state[name] = int(value)


def addresses(parameter: torch.Tensor, state: Mapping[str, Any]) -> list[int]:
    """Where a parameter and its state are in memory. Integers have their value."""
    return [parameter.data_ptr(), *(x.data_ptr() if isinstance(x, torch.Tensor) else x for x in state.values())]


def _geometry(leaf: schema.TensorLeaf) -> tuple[torch.Size, tuple[int, ...]]:
    """The sizes and strides of a tensor that does not vary."""
    return torch.Size(map(int, leaf.shape)), tuple(map(int, leaf.stride or []))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory, in any order of the dimensions."""
    expected = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step != expected:
            return False
        expected *= size
    return True
