"""Finds where each node of a graph comes from in the original: its module, and the line of its source."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath

from torch.fx import GraphModule
from torch.fx import Node as FxNode

from aotpack_loader.format import schema

from .. import origin
from .convert import source_line

_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_STEP = re.compile(r"""(?:\._modules)?\[['"]?([^\]'"]+)['"]?\]""")


class OriginsRecorder:
    """Collects the origins of several graphs.

    Args:
        modules: the paths of the original's modules; the root's is empty.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        self._known = frozenset(modules) | {""}
        self._modules: dict[str, int] = {}
        self._lines: dict[str, int] = {}
        self._by_trace: dict[str, int | None] = {}
        self._graphs: dict[str, schema.GraphOrigins] = {}

    def add(self, key: str, module: GraphModule) -> None:
        """Record the nodes of the graph called ``key`` (``train.forward``), in order."""
        nodes = [node for node in module.graph.nodes if node.op == "call_function"]
        paths: dict[FxNode, str] = {}
        for node in nodes:
            paths[node] = self._common(node, paths) if node.meta.get("is_gradient_acc") else module_path(node, self._known)
        modules = [_number(self._modules, paths[node]) for node in nodes]
        self._graphs[key] = schema.GraphOrigins(modules, list(map(self._line, nodes)))

    def document(self) -> schema.Origins:
        """Return what was recorded."""
        return schema.Origins(list(self._modules), list(self._lines), self._graphs)

    def _common(self, node: FxNode, paths: Mapping[FxNode, str]) -> str:
        """The innermost module around all that a sum of gradients adds. Such a node has no module of its own."""
        added = [paths[given].split(".") for given in node.all_input_nodes if given in paths]
        steps = [each[0] for each in itertools.takewhile(lambda each: len(set(each)) == 1, zip(*added, strict=False))]
        while (path := ".".join(steps)) not in self._known:
            steps.pop()
        return path

    def _line(self, node: FxNode) -> int | None:
        trace = node.meta.get("stack_trace") or ""
        if trace not in self._by_trace:
            match = _LINE.match(source_line(node))
            found = match is not None and origin.is_model(match[1])
            self._by_trace[trace] = _number(self._lines, f"{PurePath(match[1]).name}:{match[2]}") if match and found else None
        return self._by_trace[trace]


def module_path(node: FxNode, known: Collection[str]) -> str:
    """Return the path of the innermost module that a node runs in; the root's is empty.

    A node of the backward has the module of its node of the forward.
    """
    for path in reversed(_stack(node)):
        steps = [step for step in _STEP.sub(r".\1", re.sub(r"^L\[[^\]]*\]", "", path)).split(".") if step]
        for start in range(len(steps)):  # without the names of what wraps the model
            if (found := ".".join(steps[start:])) in known:
                return found
    return ""


def _stack(node: FxNode) -> list[str]:
    """The modules around a node, outermost first, as the front end names them: ``L['self'].layers.0`` or ``layers.0``."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    return [str(entry[0]) for entry in stack.values()]


def _number(table: dict[str, int], text: str) -> int:
    return table.setdefault(text, len(table))
