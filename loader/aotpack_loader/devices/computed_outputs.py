"""Builds the outputs of a graph from the results of a computation of XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..format import schema
from . import operators
from .literals import literals

Passed = dict[int, Any]


class Outputs:
    """Builds a graph's outputs: results, views of results, and unchanged inputs."""

    def __init__(self, executable: schema.XlaExecutable) -> None:
        self._parts = [_part(item) for item in executable.outputs]
        self._passed = [item.index for item in executable.outputs if isinstance(item, schema.GivenInput)]

    def passed(self, inputs: list[Any]) -> Passed:
        """The inputs that are also outputs, by index."""
        return {index: inputs[index] for index in self._passed}

    def __call__(self, results: list[Any], passed: Passed) -> list[Any]:
        """The outputs, in the graph's order."""
        return [part(results, passed) for part in self._parts]


def _part(item: int | schema.GivenInput | schema.ResultView) -> Callable[[list[Any], Passed], Any]:
    if isinstance(item, int):
        return lambda results, passed: results[item]
    if isinstance(item, schema.GivenInput):
        return lambda results, passed: passed[item.index]
    steps = [(operators.view_step(step), literals(step.args), literals(step.kwargs), step.select) for step in item.view]

    def view(results: list[Any], passed: Passed) -> Any:
        value = results[item.result]
        for operator, args, kwargs, select in steps:
            found = operator(value, *args, **kwargs)
            value = found if select is None else found[select]
        return value

    return view
