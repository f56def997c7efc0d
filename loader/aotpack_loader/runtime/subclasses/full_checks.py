"""The checks of ``load(..., check="full")`` for methods with values that are tensor subclasses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import Problem
from ...format import schema, subclasses
from ..checks import Checks, Environment, Remembered
from .wrappers import Wrapper

if TYPE_CHECKING:
    from ..loaded_method import LoadedMethod


class SubclassChecks(Checks):
    """The checks of a method with values that are subclasses, or whose forward takes sizes.

    An executable here takes the caller's tensors to the graph and back. Beside its arguments it
    gets a function that runs the graph itself on plain tensors.
    """

    def __init__(self, loaded: LoadedMethod, forward: schema.Graph, backward: schema.Graph | None, *, own_layout: bool) -> None:
        super().__init__(loaded, forward, backward, own_layout=own_layout)
        name, method, classes = loaded.name, loaded.method, loaded.classes
        outputs = zip(self._output_names, subclasses.of_outputs(method), strict=True)
        self._made = [
            (i, f"{name}.forward, {output}", Wrapper(subclass, classes))
            for i, (output, subclass) in enumerate(outputs)
            if subclass is not None
        ]
        convention = method.backward
        gradients = [] if convention is None else convention.gradients
        of_gradients = [] if convention is None else subclasses.of_gradients(convention)
        self._made_gradients = [
            (position, f"{name}.backward, the gradient of {path}", Wrapper(subclass, classes))
            for path, position in zip(self._paths, gradients, strict=False)
            if position is not None and (subclass := of_gradients[position]) is not None
        ]

    def run_forward(self, forward: Callable[..., list[Any]], inputs: Sequence[Any], environment: Environment) -> list[Any]:
        """Check as for plain tensors, and that the subclasses made from the outputs match the description."""
        run = super().run_forward
        outputs = forward(list(inputs), lambda graph, plain: run(graph, plain, environment))
        self._raise([*_subclass_mismatches(self._made, outputs, environment)])
        return outputs

    def run_backward(
        self,
        backward: Callable[..., list[Any]],
        arguments: list[Any],
        remembered: Remembered,
        environment: Environment,
        *,
        retained: bool,
    ) -> list[Any]:
        """Check as for plain tensors, and that the subclasses made from the gradients match the description."""
        run = super().run_backward
        results = backward(arguments, lambda graph, plain: run(graph, plain, remembered, environment, retained=retained))
        self._raise([*_subclass_mismatches(self._made_gradients, results, environment)])
        return results


def _subclass_mismatches(
    made: Sequence[tuple[int, str, Wrapper]], values: Sequence[Any], environment: Environment
) -> Iterator[Problem]:
    for position, where, wrapper in made:
        for path, message in wrapper.deviations(values[position], environment):
            yield Problem(f"{where}{path}", message)
