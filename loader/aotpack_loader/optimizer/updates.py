"""Runs the updates of parameters: the methods of a bundle that compute a step of an optimizer.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch

from ..devices.aoti import AotiExecutable
from ..devices.base import Executable
from ..devices.call_library import CallLibrary, NativeUpdate, Row
from ..errors import CorruptBundleError
from ..format import schema
from ..format.optimizers import PARAMETER, arguments_of
from ..runtime.memory import has_address, is_dense, overlap


class OpenedUpdate(NamedTuple):
    """A method, its graph on the device, and the tensors that it closes over, by name.

    ``scalars`` is where the graph takes tensors without dimensions.
    """

    method: schema.Method
    executable: Executable
    constants: Mapping[str, torch.Tensor]
    library: CallLibrary | None
    scalars: torch.device


class BySize:
    """The graph of a flat update, compiled for each number of elements."""

    def __init__(self, codes: Mapping[int, Executable]) -> None:
        self.codes = codes

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return self.codes[next(x.numel() for x in inputs if x.dim())](inputs)  # numbers have no dimensions


OpenUpdate = Callable[[str], OpenedUpdate]
"""Opens the method of an update by its name."""


class Update:
    """The update of the parameters of one kind in one group.

    Args:
        described: what the program says about it.
        opened: its method.
    """

    def __init__(self, described: schema.OptimizerUpdate, opened: OpenedUpdate) -> None:
        method = opened.method
        self.names, self.group = described.parameters, described.group
        self.parameters: list[torch.nn.Parameter] = []
        self.rows: list[Row | None] = [None] * len(self.names)
        parameter, _, self._state, numbers = arguments_of(method)
        self.flat, self.integers, self._initial = described.flat, described.integers, described.initial
        self.code_sizes = opened.executable.codes.keys() if isinstance(opened.executable, BySize) else None
        self.sparse = "never" if self.code_sizes is not None else described.sparse
        self.scalars = opened.scalars
        self.dtype: torch.dtype = getattr(torch, parameter.dtype)
        self.numbers = [*numbers]
        self._shape, self._stride = (torch.Size(), ()) if described.flat else _geometry(parameter)
        self._expected = {name: (self._is_like(leaf), getattr(torch, leaf.dtype)) for name, leaf in self._state.items()}
        self._sizes = {name: _geometry(leaf) for name, leaf in self._state.items() if not self._is_like(leaf)}
        self._alike = [True, *(like for like, _ in self._expected.values())]
        self._run = opened.executable
        taken = [primal for primal in method.primals if isinstance(primal, (schema.InputPrimal, schema.ConstantPrimal))]
        constants = [primal.name for primal in taken if isinstance(primal, schema.ConstantPrimal)]
        self._constants = [opened.constants[name] for name in constants]
        count = len(method.leaves)
        self._inputs = [p.leaf if isinstance(p, schema.InputPrimal) else count + constants.index(p.name) for p in taken]
        self._writes = [(self._inputs[mutation.primal], mutation.output) for mutation in method.mutations]
        self._native = None if self.integers else self._natively(opened)

    def _natively(self, opened: OpenedUpdate) -> NativeUpdate | None:
        """The update in native code; None if Python makes it."""
        code, library = opened.executable, opened.library
        if library is None or not isinstance(code, AotiExecutable) or not code.returns_tensors:
            return None
        written = self._inputs, self._writes, self._alike, self.flat
        return library.update(code.run, code.positions, code.fail, *written, self._constants)

    def problems(self, parameter: torch.Tensor) -> Iterator[str]:
        """Why the code cannot update a parameter."""
        if parameter.dtype != self.dtype:
            yield f"is of {parameter.dtype}, the bundle was built for {self.dtype}"
        elif self.flat:
            if self.code_sizes is not None and parameter.numel() not in self.code_sizes:
                yield f"has {parameter.numel()} elements, for which this target has no code"
            elif not (parameter.is_contiguous() or is_dense(parameter.shape, parameter.stride())):
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
            if value.shape != shape or value.dtype is not dtype or not self._is_beside(value, parameter):
                found = f"{value.dtype}{list(value.shape)} on {value.device}"
                yield f"has {found} as {name}, and not {dtype}{list(shape)} on {parameter.device}"
            elif value.stride() != strides:
                yield f"has the strides {list(value.stride())} in {name}, and not {list(strides)}"
            elif value.is_inference():
                yield f"has an inference tensor as {name}, which steps cannot write to: make it outside of inference_mode()"

    def _is_like(self, leaf: schema.TensorLeaf) -> bool:
        """Whether a state has the sizes and strides of its parameter."""
        return self.flat and len(leaf.shape) == 1

    def _is_beside(self, state: torch.Tensor, parameter: torch.Tensor) -> bool:
        """Whether a state is on the device of its parameter, or a number where the graph takes numbers."""
        return state.device == parameter.device or (state.device == self.scalars and state.dim() == 0)

    def new_state(self, parameter: torch.Tensor, numbers: Mapping[str, float]) -> dict[str, Any]:
        """The state of a parameter before its first step. ``numbers`` are the options of its group, by path."""
        state: dict[str, Any] = {}
        for name in self._state:
            initial = self._initial[name]
            if initial == PARAMETER:
                state[name] = self._blank(name, parameter).copy_(parameter.detach())
                continue
            value = numbers[initial] if isinstance(initial, str) else float(initial.value)
            try:
                state[name] = int(value) if name in self.integers else self._blank(name, parameter).fill_(value)
            except (RuntimeError, ValueError, OverflowError) as error:
                raise CorruptBundleError(f"The state {name!r} cannot begin as {value} in all elements: {error}") from error
        return state

    def in_order(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state in the order of the method, then what the method does not have."""
        return {**{name: state[name] for name in self._state if name in state}, **state}

    def laid_out(self, name: str, value: Any, given: Any, parameter: torch.Tensor) -> Any:
        """A state as the code takes it: itself, or a copy. ``given`` is the state before a conversion."""
        if name in self.integers or name not in self._expected or not isinstance(value, torch.Tensor):
            return value
        if value.dtype is not self._expected[name][1] and given.dtype is self._expected[name][1]:
            value = given if given.dim() == 0 else given.to(parameter.device)
        blank = self._blank(name, parameter)
        is_there = value.device == blank.device and value.stride() == blank.stride()
        if value.shape != blank.shape or (is_there and not value.is_inference()):
            return value
        return blank.copy_(value)

    def _blank(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        like, dtype = self._expected[name]
        with torch.inference_mode(False):  # further steps may write to it in another mode
            if like:
                return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
            sizes, strides = self._sizes[name]
            return torch.empty_strided(sizes, strides, dtype=dtype, device=parameter.device if sizes else self.scalars)

    def row(self, parameter: torch.Tensor, state: dict[str, Any]) -> Row:
        """A parameter and its state, which fit, as :meth:`run` takes them."""
        if self._native is not None:
            return self._native.row([parameter, *(state[name] for name in self._state)])
        held = [
            parameter,
            *(torch.tensor(state[name], device=self.scalars) if name in self.integers else state[name] for name in self._state),
        ]
        if self.flat:
            alike = zip(held, self._alike, strict=True)
            held = [_flattened(x) if flat else x for x, flat in alike]
        return PythonRow(parameter, state, held)

    def run(self, rows: Sequence[Any], numbers: Sequence[torch.Tensor]) -> None:
        """Update parameters and their state in place. ``numbers`` are in the order of ``self.numbers``.

        Twin: csrc/update.cpp, Update.
        """
        if self._native is not None:
            self._native.run(rows, numbers)
            return
        for row in rows:
            self._one(row, numbers)

    def gradient_problem(self, parameter: torch.Tensor, state: Mapping[str, Any]) -> str:
        """What is wrong with the gradient of a parameter, or an empty string."""
        gradient = parameter.grad
        assert gradient is not None
        if self.takes_rows(parameter):
            return ""
        if self.sparse == "required" or not is_like(gradient, parameter):
            kind = "sparse " if gradient.layout is not torch.strided else ""
            wanted = (
                "; this optimizer takes gradients that are sparse in the first dimension" if self.sparse == "required" else ""
            )
            return f"is a {kind}{gradient.dtype}{list(gradient.shape)} on {gradient.device}{wanted}"
        if any(overlap(gradient, x) for x in (parameter, *state.values()) if isinstance(x, torch.Tensor)):
            return "shares memory with the parameter or its state, which a step writes to: clone it"
        return ""

    def takes_rows(self, parameter: torch.Tensor) -> bool:
        """Whether the gradient of a parameter is a sparse tensor of rows, which this update takes."""
        gradient = parameter.grad
        is_sparse = self.sparse != "never" and gradient is not None and gradient.layout is torch.sparse_coo
        return is_sparse and gradient.sparse_dim() == 1 and _is_of(gradient, parameter)  # type: ignore[union-attr,arg-type]

    def run_rows(self, parameter: torch.Tensor, state: dict[str, Any], numbers: Sequence[torch.Tensor]) -> None:
        """Update the rows of a parameter and its state that its sparse gradient has."""
        gradient = parameter.grad.coalesce()  # type: ignore[union-attr]
        index = gradient.indices()[0]
        whole = {name: value for name, value in state.items() if self._expected[name][0]}
        rows = {name: value[index] for name, value in whole.items()}
        some, some_state = parameter.detach()[index], {**state, **rows}
        some.grad = gradient.values()
        self.run([self.row(some, some_state)], numbers)
        parameter.index_copy_(0, index, some)
        for name, value in whole.items():
            value.index_copy_(0, index, rows[name])
        state.update({name: some_state[name] for name in self.integers})

    def _one(self, row: PythonRow, numbers: Sequence[torch.Tensor]) -> None:
        parameter, gradient = row.parameter, row.parameter.grad
        assert gradient is not None
        if gradient.stride() != parameter.stride() and not (gradient.is_contiguous() and parameter.is_contiguous()):
            gradient = torch.empty_like(parameter, requires_grad=False).copy_(gradient)
        if self.flat:
            gradient = _flattened(gradient)
        first, *held = row.taken
        leaves = [first, gradient, *held, *numbers, *self._constants]
        outputs = self._run([leaves[leaf] for leaf in self._inputs])
        written = [(leaves[leaf], outputs[output]) for leaf, output in self._writes]
        for target, value in written:
            if not isinstance(value, torch.Tensor) or value.shape != target.shape or value.dtype != target.dtype:
                found = f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
                raise CorruptBundleError(f"A step returns {found} for {target.dtype}{list(target.shape)}.")
        for target, value in written:
            if not has_address(value) or value.data_ptr() != target.data_ptr():  # else the code has written there itself
                target.copy_(value)
        torch.autograd.graph.increment_version(parameter)
        for name, value in zip(self._state, held, strict=True):
            if name in self.integers:
                row.state[name] = int(value)


class PythonRow:
    """A parameter and its state, as the graph takes them."""

    def __init__(self, parameter: torch.Tensor, state: dict[str, Any], taken: list[torch.Tensor]) -> None:
        self.parameter, self.state, self.taken = parameter, state, taken
        self._has_address = has_address(parameter)
        if self._has_address:
            self._held, self._place = [*state.values()], _place(parameter, state)
            self._storages = {x.untyped_storage().data_ptr() for x in (parameter, *self._held) if isinstance(x, torch.Tensor)}

    def fits(self, state: Mapping[str, Any]) -> bool:
        """Whether nothing has taken the place of the state, and the parameter has a gradient that fits, in another storage.

        False where tensors have no address. Twin: csrc/python.cpp, row_fits.
        """
        if not self._has_address:
            return False
        same = len(state) == len(self._held) and all(x is y for x, y in zip(state.values(), self._held, strict=True))
        gradient = self.parameter.grad
        return (
            same
            and _place(self.parameter, state) == self._place
            and is_like(gradient, self.parameter)
            and gradient.untyped_storage().data_ptr() not in self._storages
        )


def _flattened(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor without gaps, in the order of memory."""
    return tensor.as_strided((tensor.numel(),), (1,)) if has_address(tensor) else tensor.view(-1)


def _place(parameter: torch.Tensor, state: Mapping[str, Any]) -> list[Any]:
    """Where a parameter and its state are in memory."""
    tensors = [parameter, *(x for x in state.values() if isinstance(x, torch.Tensor))]
    return [(x.data_ptr(), x.shape, x.stride()) for x in tensors]


def values_of(parameter: torch.Tensor) -> torch.Tensor:
    """The elements of a gradient. One that is sparse gets each index once, so that the elements can be changed in place."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout is not torch.sparse_coo:
        return gradient
    parameter.grad = gradient.coalesce()
    return parameter.grad.values()


def is_like(gradient: torch.Tensor | None, parameter: torch.Tensor) -> TypeGuard[torch.Tensor]:
    """Whether a gradient is a plain tensor of the parameter's sizes and type."""
    return gradient is not None and gradient.layout is torch.strided and _is_of(gradient, parameter)


def _is_of(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    return (
        type(gradient) is torch.Tensor
        and gradient.shape == parameter.shape
        and gradient.dtype is parameter.dtype
        and gradient.device == parameter.device
    )


def _geometry(leaf: schema.TensorLeaf) -> tuple[torch.Size, tuple[int, ...]]:
    """The sizes and strides of a tensor that does not vary."""
    return torch.Size(map(int, leaf.shape)), tuple(map(int, leaf.stride or []))
