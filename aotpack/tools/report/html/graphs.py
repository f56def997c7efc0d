"""Graphs as compact JSON for ``static/graph.js``: one list a column, and texts that repeat as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..operations import GraphView, Half, Input


class Texts:
    """Numbers texts in order of appearance."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.all)
            self.all.append(text)
        return self._numbers[text]


def graph_data(views: Mapping[Half, GraphView], texts: Texts) -> dict[str, Any]:
    """Return the graphs of a method.

    Of each operation ``takes`` lists the operations that it reads, and ``-1 - i`` for input i of the
    graph.
    """
    names = {operation.name: i for i, operation in enumerate(views["forward"].operations)} if "forward" in views else {}
    return {half: _half(view, texts, names if half == "backward" else {}) for half, view in views.items()}


def _half(view: GraphView, texts: Texts, forward: Mapping[str, int]) -> dict[str, Any]:
    numbers = {item.name: -1 - i for i, item in enumerate(view.inputs)}
    numbers |= {operation.name: i for i, operation in enumerate(view.operations)}
    operations = view.operations
    return {
        "name": [operation.name for operation in operations],
        "op": [texts(operation.op) for operation in operations],
        "type": [texts(operation.type) for operation in operations],
        "size": [operation.size for operation in operations],
        "module": [texts(operation.module) for operation in operations],
        "line": [texts(operation.line) for operation in operations],
        "takes": [[numbers[name] for name in operation.inputs if name in numbers] for operation in operations],
        "inputs": [_input(item, texts, forward) for item in view.inputs],
        "outputs": [
            [output.kind, texts(output.label), numbers[output.source]] for output in view.outputs if output.source in numbers
        ],
    }


def _input(item: Input, texts: Texts, forward: Mapping[str, int]) -> list[Any]:
    """Kind, label, type, size, and the number of the forward operation that saved it."""
    return [item.kind, texts(item.label), texts(item.type), item.size, forward.get(item.source, -1)]
