"""Calls of methods with tensor subclasses, or whose forward takes sizes.

Subclasses may be arguments, state, results or gradients. Autograd sees subclasses and the graphs
see plain tensors. The one autograd node of a call converts between them, in its forward and its
backward. AOTAutograd's ``AOTDispatchSubclassWrapper`` does the same.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ..._torch_compat import as_part, is_plain_tensor
from ...errors import AutogradError, Problem
from ...format import expressions, schema
from ...format.subclasses import of_primals
from ..autograd import Differentiable, Executable
from ..backward_inputs import Tangent
from ..call import MethodCall
from ..identity import Memory, StateMemory, shared
from ..inputs import Inputs
from ..loaded_method import LoadedMethod
from ..memory import overlap, plain_tensors
from ..state import State
from .checks import SubclassInputs, SubclassState
from .wrappers import Classes, Environment, Wrapper, zeros

if TYPE_CHECKING:
    from ..checks import Checks

_Wrappers = Sequence[Wrapper | None]


class SubclassCall(MethodCall):
    """A method with values that are subclasses, or whose forward takes sizes."""

    def __init__(
        self,
        loaded: LoadedMethod,
        forward: Executable,
        backward: Executable | None = None,
        checks: Checks | None = None,
        *,
        native: bool = False,
    ) -> None:
        self._classes = classes = loaded.classes
        method = loaded.method
        primals = _wrappers(of_primals(method, loaded.entries), classes)
        self._boundary = _Boundary(forward, primals, method.sizes, _wrappers(method.subclasses, classes))
        super().__init__(loaded, forward, backward, checks, native=native)

    def _arguments(self, method: schema.Method, device: torch.device) -> Inputs:
        return SubclassInputs(method, device, self._classes)

    def _assumed(self, method: schema.Method, entries: Mapping[str, schema.StateEntry], device: torch.device) -> State:
        return SubclassState(method, entries, device, self._classes)

    def _bridge(self, convention: schema.Backward, backward: Executable, *, native: bool) -> Differentiable:
        graphs = self._boundary, backward
        return _Differentiable(self.method, convention, *graphs, self._classes, self.checks, native=native)

    def _memory_rules(self, method: schema.Method, entries: Mapping[str, schema.StateEntry]) -> Memory:
        return _Memory(method, entries)

    def _without_gradients(self, primals: list[torch.Tensor], environment: dict[str, int]) -> list[Any]:
        if self.checks is None:
            return self._boundary(primals, environment=environment)
        return self.checks.run_forward(partial(self._boundary, environment=environment), primals, environment)


class _Memory(Memory):
    """Memory that tensors of a call must not share. Subclasses are compared by their plain tensors."""

    def __init__(self, method: schema.Method, entries: Mapping[str, schema.StateEntry]) -> None:
        super().__init__(method, entries)
        written = (method.primals[mutation.primal] for mutation in method.mutations)
        self._written = [primal.leaf for primal in written if isinstance(primal, schema.InputPrimal)]

    def check(self, leaves: Sequence[Any], state: Mapping[str, torch.Tensor]) -> None:
        """Check as for plain tensors. In addition, two parts of one written argument must not overlap."""
        super().check(leaves, state)
        for leaf in self._written:
            if any(overlap(a, b) for a, b in itertools.combinations(plain_tensors(leaves[leaf]), 2)):
                raise shared(self._paths[leaf], "itself: two of its parts are the same")

    def _overlapping(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        return any(overlap(a, b) for a, b in itertools.product(plain_tensors(first), plain_tensors(second)))

    def _in_one_storage(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        return bool(_storages(first) & _storages(second))

    def _near(
        self, tensor: torch.Tensor, entries: Sequence[StateMemory], state: Mapping[str, torch.Tensor]
    ) -> Sequence[StateMemory]:
        """All state tensors, because a wrapper has no address of its own."""
        return entries


def _storages(tensor: torch.Tensor) -> set[int]:
    return {part.untyped_storage().data_ptr() for part in plain_tensors(tensor)} - {0}


_Run = Callable[[Executable, list[Any]], list[Any]]
"""Runs a graph on plain tensors; checks do so their own way."""


def _call_graph(graph: Executable, arguments: list[Any]) -> list[Any]:
    return graph(arguments)


class _Boundary:
    """Converts the caller's tensors to the forward graph's plain tensors, and its outputs back."""

    def __init__(self, forward: Executable, primals: _Wrappers, sizes: Sequence[schema.Dim], outputs: _Wrappers) -> None:
        self.forward, self.primals, self.sizes, self.outputs = forward, primals, sizes, outputs

    def __call__(self, primals: list[torch.Tensor], run: _Run = _call_graph, *, environment: Environment) -> list[Any]:
        arguments = _flattened(self.primals, primals, environment)
        arguments += [expressions.evaluate(size, environment) for size in self.sizes]
        primals.clear()
        return _unflattened(self.outputs, run(self.forward, arguments), environment)


class _Differentiable(Differentiable):
    """A forward and a backward whose arguments and results are subclasses for autograd."""

    def __init__(
        self,
        method: schema.Method,
        convention: schema.Backward,
        boundary: _Boundary,
        backward: Executable,
        classes: Classes,
        checks: Checks | None,
        *,
        native: bool,
    ) -> None:
        super().__init__(method, convention, boundary.forward, backward, checks, native=native)
        self._boundary, self._backward, self._items = boundary, backward, convention.saved
        self._tangents = _wrappers([tangent.subclass for tangent in convention.tangents], classes)
        self._gradients = _Gradients(convention, classes)
        self.tangents = [
            _Tangent(plain.position, tangent, wrapper)
            for plain, tangent, wrapper in zip(self.tangents, convention.tangents, self._tangents, strict=True)
        ]

    def __call__(self, primals: list[torch.Tensor], environment: Environment) -> list[Any]:
        """Run as for plain tensors. The sizes of this call determine subclasses with dynamic sizes."""
        call = copy.copy(self)
        call.forward = partial(self._boundary, environment=environment)
        call.backward = partial(self._run_backward, self._backward, environment=environment)
        call.retaining = partial(self._run_backward, self.retaining, environment=environment)
        return super(_Differentiable, call).__call__(primals, environment)

    def _run_backward(
        self, backward: Executable, arguments: list[Any], run: _Run = _call_graph, *, environment: Environment
    ) -> list[Any]:
        saved = [
            self._part(item, value, environment) if isinstance(item, schema.SavedPrimal) else value
            for item, value in zip(self._items, arguments[: len(self._items)], strict=True)
        ]
        tangents = arguments[len(self._items) :]
        flattened = [
            _flattened([wrapper], [tangent], environment) for wrapper, tangent in zip(self._tangents, tangents, strict=True)
        ]
        arguments.clear()
        # Primals and tangents stay alive, so no gradient may use their memory. Activations are
        # freed as they are used.
        lent = [value for item, value in zip(self._items, saved, strict=True) if isinstance(item, schema.SavedPrimal)]
        lent += itertools.chain(*flattened)
        saved += itertools.chain(*flattened)
        return self._gradients(run(backward, saved), list(zip(tangents, flattened, strict=True)), lent, environment)

    def _part(self, item: schema.SavedPrimal, value: Any, environment: Environment) -> torch.Tensor:
        """A saved primal, or a part of it. A subclass is saved whole, so that changes are detected as in eager."""
        if item.part is None:
            return value  # type: ignore[no-any-return]
        wrapper: Any = self._boundary.primals[item.primal]
        if type(value) is not wrapper.kind:
            raise AutogradError(
                f"A {wrapper.kind.__name__} was saved for the backward, and a {type(value).__name__} came back.",
                hint="The unpack hook for saved tensors must return a tensor of the class that was packed.",
            )
        return wrapper.flatten(value, environment)[item.part]  # type: ignore[no-any-return]


class _Tangent(Tangent):
    """Converts an incoming gradient to the class that the backward graph was traced for.

    For a missing gradient, the class itself makes the zeros.
    """

    def __init__(self, position: int, tangent: schema.Tangent, wrapper: Wrapper | None) -> None:
        super().__init__(position, tangent)
        self.wrapper = wrapper

    def __call__(
        self, gradient: torch.Tensor | None, shape: torch.Size, environment: Environment, device: torch.device
    ) -> torch.Tensor:
        if self.wrapper is None:
            if gradient is not None and not is_plain_tensor(gradient):
                gradient = _coerced(gradient, torch.Tensor, None)
                if not is_plain_tensor(gradient):
                    raise _wrong_gradient([Problem("the gradient", f"expected a plain tensor, got a {type(gradient).__name__}")])
            return super().__call__(gradient, shape, environment, device)
        if gradient is None:
            gradient = _zeros(self.wrapper, environment, device)
        if any(self.wrapper.mismatch(gradient, environment)):
            gradient = _coerced(gradient, self.wrapper.kind, self.wrapper.metadata)
        problems = [Problem(f"the gradient{path}", message) for path, message in self.wrapper.mismatch(gradient, environment)]
        if problems:
            raise _wrong_gradient(problems)
        return gradient


class _Gradients:
    """Builds subclasses from the gradients of a backward.

    Autograd accumulates in place into a gradient that has no other reference. Eager returns one
    object for all inputs with the same gradient, or the tangent itself. Two wrappers of the same
    tensors would look like two gradients, and autograd would add to the tensors twice.
    """

    def __init__(self, convention: schema.Backward, classes: Classes) -> None:
        wrappers = _wrappers(convention.subclasses, classes)
        self.wrappers, self._wrapped = wrappers, any(wrappers)
        described: list[schema.Subclass | None] = []
        for subclass in [*convention.subclasses, *[tangent.subclass for tangent in convention.tangents]]:
            if subclass not in described:
                described.append(subclass)
        self._items = [
            (wrapper, described.index(subclass), 0 if wrapper is None else len([*wrapper.plain_parts()]))
            for wrapper, subclass in zip(wrappers, convention.subclasses, strict=True)
        ]
        self._tangents = [described.index(tangent.subclass) for tangent in convention.tangents]

    def __call__(
        self,
        values: list[Any],
        tangents: Sequence[tuple[torch.Tensor, Sequence[torch.Tensor]]],
        lent: Sequence[Any],
        environment: Environment,
    ) -> list[Any]:
        """The gradients.

        ``lent`` are the tensors that were passed to the backward. ``tangents`` are the tangents,
        each with its plain tensors.
        """
        if not self._wrapped:
            return values
        made = {(kind, *map(id, parts)): whole for kind, (whole, parts) in zip(self._tangents, tangents, strict=True)}
        taken = {*map(id, lent)}
        rest = iter(values)
        found = []
        for wrapper, kind, count in self._items:
            if wrapper is None:
                found.append(next(rest))
                continue
            parts = [*itertools.islice(rest, count)]
            key = (kind, *map(id, parts))
            if key not in made:
                made[key] = wrapper.unflatten(iter([as_part(part) for part in _own(parts, taken)]), environment)
            found.append(made[key])
        return found


def _own(parts: Sequence[torch.Tensor], taken: set[int]) -> list[torch.Tensor]:
    """``parts``, copied if they are among ``taken``. All of them are added to ``taken``."""
    found = []
    for part in parts:
        found.append(part.clone() if id(part) in taken else part)
        taken.add(id(part))
    return found


def _coerced(gradient: Any, kind: Any, metadata: Any) -> Any:
    """The gradient as converted by its own class, with AOTAutograd's protocol.

    It is unchanged if the class has no such method.
    """
    if not hasattr(gradient, "__coerce_same_metadata_as_tangent__"):
        return gradient
    if type(gradient) is kind:
        return gradient.__coerce_same_metadata_as_tangent__(metadata)
    return gradient.__coerce_same_metadata_as_tangent__(metadata, kind)


def _zeros(wrapper: Wrapper, environment: Environment, device: torch.device) -> torch.Tensor:
    try:
        return zeros(wrapper, environment, device)
    except Exception as error:
        raise AutogradError(
            f"A {wrapper.kind.__name__} that this bundle returned got no gradient, and its class cannot make zeros.",
            [Problem("zeros_like", f"{type(error).__name__}: {error}")],
            hint="Use all results that require a gradient in the loss, or detach the others.",
        ) from error


def _wrong_gradient(problems: list[Problem]) -> AutogradError:
    return AutogradError(
        "A gradient is of another class, or has other metadata, than this bundle was built for.",
        problems,
        hint="Pass a gradient like the result, or give its class __coerce_same_metadata_as_tangent__.",
    )


def _wrappers(subclasses: Sequence[schema.Subclass | None], classes: Classes) -> list[Wrapper | None]:
    return [None if subclass is None else Wrapper(subclass, classes) for subclass in subclasses]


def _flattened(wrappers: _Wrappers, values: Sequence[Any], environment: Environment) -> list[Any]:
    plain: list[Any] = []
    for wrapper, value in zip(wrappers, values, strict=True):
        if wrapper is None:
            plain.append(value)
        else:
            plain += wrapper.flatten(value, environment)
    return plain


def _unflattened(wrappers: _Wrappers, values: list[Any], environment: Environment) -> list[Any]:
    if not any(wrappers):
        return values
    rest = iter(values)
    return [next(rest) if wrapper is None else wrapper.unflatten(rest, environment) for wrapper in wrappers]
