"""A method that can be called: it joins checked inputs, executables and the epilogue.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from .._torch_compat import backward_is_compiled
from ..errors import CorruptBundleError, InputError, Problem
from ..format import schema
from ..format.containers import holds_given
from ..format.traits import traits_of
from .autograd import Differentiable, Executable, RecomputationStopped
from .epilogue import Epilogue
from .identity import Memory
from .inputs import Inputs
from .loaded_method import LoadedMethod
from .modes import Modes
from .mutations import Layouts, WrittenLeaves
from .state import State
from .views import CallValues, detach_outputs, detached_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..devices.call_library import NativeCall, Slots
    from .bases import Base
    from .checks import Checks
    from .containers import Containers


class MethodCall:
    """Calls one method. It holds no reference to the module, so copies of a module share it.

    Args:
        loaded: the method.
        forward: the forward graph on the device.
        backward: the backward graph, if the method has one.
        checks: what to assert at every call; None: nothing.
        native: whether the executables are compiled code rather than an interpreter.
    """

    def __init__(
        self,
        loaded: LoadedMethod,
        forward: Executable,
        backward: Executable | None = None,
        checks: Checks | None = None,
        *,
        native: bool = False,
    ) -> None:
        method, constants, entries, device = loaded.method, loaded.constants, loaded.entries, loaded.device
        self.name, self.flags = loaded.name, method.flags
        self.checks, self.method, self.constants = checks, method, constants
        self.device = device
        self.traits = traits_of(method, entries)
        self.modes = Modes(method, device, native=native)
        self.inputs = self._arguments(method, device)
        self.forward = forward
        self.differentiable = None
        if backward is not None and method.backward is not None:
            self.differentiable = self._bridge(method.backward, backward, native=native)
        self._made_to_require = [i for i, leaf in enumerate(method.leaves) if getattr(leaf, "sets_requires_grad", False)]
        # The original enables gradients although its caller has disabled them.
        self._turns_on = method.role == "call" and not any(mode.grad for mode in method.serves)
        self._untrusted: bool = getattr(forward, "is_untrusted", False)
        self._epilogue = Epilogue(method, checks, restores=self._untrusted)
        self.detached_outputs = detached_outputs(method.results)
        self._measured = [(symbol.name, symbol.output, symbol.dim) for symbol in method.output_symbols if symbol.needed]
        self._primals = _sources(method, constants)
        self.state = self._assumed(method, entries, device)
        bases = [p for p in method.primals if isinstance(p, (schema.SyntheticBasePrimal, schema.ViewBasePrimal))]
        self._bases = _bases_of(bases, method) if bases else []
        self.memory = self._memory_rules(method, entries) if method.mutations else None
        self.written_leaves = WrittenLeaves(method)
        self.native: NativeCall | None = None
        self.unflatten = self._epilogue.unflatten
        self.containers = _containers_of(method)
        self._layouts = Layouts(method) if any(mutation.kind != "data" for mutation in method.mutations) else None

    def differentiate_again(self, second: MethodCall) -> None:
        """Use ``second`` for gradients that are differentiated again."""
        from .second import SecondDerivative  # rarely there: not part of what every start imports

        for bridge in second.bridges():
            bridge.order = "first and second"
        convention = self.method.backward.second  # type: ignore[union-attr]
        assert convention is not None
        for bridge in self.bridges():
            bridge.second = SecondDerivative(self.method, convention, second, self.device)

    def bridges(self) -> list[Differentiable]:
        """The connections of this method to autograd: one for each compiled variant, none without gradients."""
        return [] if self.differentiable is None else [self.differentiable]

    def _arguments(self, method: schema.Method, device: torch.device) -> Inputs:
        return Inputs(method, device)

    def _assumed(self, method: schema.Method, entries: Mapping[str, schema.StateEntry], device: torch.device) -> State:
        return State(method, entries, device)

    def _bridge(self, convention: schema.Backward, backward: Executable, *, native: bool) -> Differentiable:
        return Differentiable(self.method, convention, self.forward, backward, self.checks, native=native)

    def _memory_rules(self, method: schema.Method, entries: Mapping[str, schema.StateEntry]) -> Memory:
        return Memory(method, entries)

    def _without_gradients(self, primals: list[torch.Tensor], environment: dict[str, int]) -> list[Any]:
        checks = self.checks
        return self.forward(primals) if checks is None else checks.run_forward(self.forward, primals, environment)

    def natively(self, args: tuple[Any, ...], kwargs: dict[str, Any], slots: Slots) -> list[Any] | None:
        """The flat results of a call in native code.

        None if native code cannot make this call. Nothing has run then.
        """
        if self.native is None or (self.differentiable is not None and backward_is_compiled()):
            return None
        problems: list[Problem] = []
        leaves = self.inputs.flatten(args, kwargs, problems)
        return None if problems else self.native(leaves, slots)

    def __deepcopy__(self, memo: dict[int, Any]) -> MethodCall:
        return self

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], state: Mapping[str, torch.Tensor]) -> Any:
        """Run the method on the caller's arguments.

        ``state`` has the module's current parameters and buffers by name; None for a removed one.

        Raises:
            InputError: arguments, parameters or buffers do not fit; nothing was run.
        """
        self.modes.check()
        try:
            leaves, strided_leaves, environment = self.inputs(args, kwargs)
        except InputError as error:
            raise self.state.joined(error, state) from None
        if self.containers is not None:
            args, kwargs = self.inputs.bound(args, kwargs)
            self.containers.check((args, kwargs))
        self.state.check(state)
        if self.memory is not None:
            self.memory.check(leaves, state)
            self.written_leaves.check(leaves)
        if self._layouts is not None:
            self._layouts.check(leaves, strided_leaves)
        if self._made_to_require:
            leaves, strided_leaves, environment = self._requiring_gradients(leaves, strided_leaves, environment, args, kwargs)
        versions = self._add_bases(leaves, strided_leaves) if self._bases else []
        primals = self.primals(state, leaves)
        # The epilogue needs the caller's own tensors, too. Read again only if some had to be copied
        # to other strides.
        unchanged = all(map(operator.is_, leaves, strided_leaves))
        strided_primals = primals if unchanged else self.primals(state, strided_leaves)
        arguments = strided_primals.copy()  # the forward empties its list
        try:
            if self.modes.autocast is None:
                outputs = self.run(arguments, environment)
            else:
                with torch.autocast(self.device.type, enabled=False):  # the graphs hold their own casts
                    outputs = self.run(arguments, environment)
        except RecomputationStopped as stopped:
            self._measure(stopped.outputs, environment)
            self._epilogue(CallValues(primals, strided_primals, stopped.outputs), environment)
            raise stopped.__cause__ from None  # type: ignore[misc]
        results = self._epilogue(CallValues(primals, strided_primals, outputs), environment)
        for base, before in zip(self._bases, versions, strict=True):
            base.count_writes(leaves, before)
        return results if self.containers is None else self.containers((args, kwargs), results)

    def _requiring_gradients(
        self,
        leaves: list[Any],
        strided_leaves: list[Any],
        environment: dict[str, int],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[list[Any], list[Any], dict[str, int]]:
        """Call ``requires_grad_()`` on the arguments on which the original does. Copies of them are made again."""
        for leaf in self._made_to_require:
            leaves[leaf].requires_grad_()
        if all(leaves[leaf] is strided_leaves[leaf] for leaf in self._made_to_require):
            return leaves, strided_leaves, environment
        return self.inputs(args, kwargs)

    def _add_bases(self, leaves: list[Any], strided_leaves: list[Any]) -> list[list[int]]:
        """Add the bases to the leaves. Returns the versions of the leaves written through each base."""
        bases = [base(leaves, strided_leaves) for base in self._bases]
        versions = [[leaves[leaf]._version for leaf in base.written] for base in self._bases]
        leaves += bases
        strided_leaves += bases
        return versions

    def primals(self, state: Mapping[str, torch.Tensor], leaves: list[Any]) -> list[Any]:
        """The inputs of the forward graph before subclasses are taken apart: parameters, buffers, constants and arguments."""
        return [read(state, leaves) for read in self._primals]

    def run(self, primals: list[torch.Tensor], environment: dict[str, int]) -> list[Any]:
        """The outputs of the forward graph on these primals, which the list then lacks."""
        if not self._untrusted:
            return self._forward(primals, environment)
        try:
            return self._forward(primals, environment)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            from ..devices.sandbox.untrusted_calls import refused  # not imported for trusted bundles

            raise refused(error) from error

    def _forward(self, primals: list[torch.Tensor], environment: dict[str, int]) -> list[Any]:
        differentiable = self.differentiable
        if differentiable is not None and (self._turns_on or torch.is_grad_enabled()) and any(p.requires_grad for p in primals):
            self.modes.check_gradients()
            if self._turns_on:
                with torch.enable_grad():
                    outputs = differentiable(primals, environment)
            else:
                outputs = differentiable(primals, environment)
        else:
            with torch.no_grad():
                outputs = self._without_gradients(primals, environment)
                detach_outputs(outputs, self.detached_outputs, primals)
        self._measure(outputs, environment)
        return outputs

    def _measure(self, outputs: list[Any], environment: dict[str, int]) -> None:
        """Add the sizes that ``outputs`` give. The backward reads them from the same environment."""
        for name, output, dim in self._measured:
            environment[name] = _measure(outputs[output], dim)


def _bases_of(primals: Sequence[schema.SyntheticBasePrimal | schema.ViewBasePrimal], method: schema.Method) -> list[Base]:
    from .bases import Base  # most programs have none

    return [Base(primal, method.leaves, records=method.backward is not None) for primal in primals]


def _containers_of(method: schema.Method) -> Containers | None:
    """The changes to make to the caller's containers; None if the method changes and returns none."""
    if not method.updates and not holds_given(method.outputs):
        return None
    from .containers import Containers  # most programs have none

    return Containers(method)


def _measure(value: Any, dim: int | None) -> int:
    """The size that output ``value`` gives: its own value, or its size in dimension ``dim``."""
    if dim is None and type(value) is int:
        return value
    if dim is not None and isinstance(value, torch.Tensor) and dim < value.dim():
        return value.shape[dim]
    raise CorruptBundleError("C24: an output of the forward graph should give a size, and does not.")


_Read = Callable[[Mapping[str, torch.Tensor], list[Any]], torch.Tensor]


def _sources(method: schema.Method, constants: Mapping[str, torch.Tensor]) -> list[_Read]:
    """Where each primal comes from: the state or the leaves. The bases follow the leaves."""
    bases = itertools.count(len(method.leaves))
    return [_source(primal, constants, bases) for primal in method.primals]


def _source(primal: schema.Primal, constants: Mapping[str, torch.Tensor], bases: Iterator[int]) -> _Read:
    if isinstance(primal, schema.ConstantPrimal):
        constant = constants[primal.name]
        return lambda state, leaves: constant
    if isinstance(primal, (schema.ParameterPrimal, schema.BufferPrimal)):
        name = primal.name
        return lambda state, leaves: state[name]
    position = primal.leaf if isinstance(primal, schema.InputPrimal) else next(bases)
    return lambda state, leaves: leaves[position]
