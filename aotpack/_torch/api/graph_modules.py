"""Graph modules: those inside of one, and those whose Python code is generated only when they are called.

A build changes a graph in many steps and hardly ever calls it. To generate the code of a large graph
takes as long as such a step.
"""

from __future__ import annotations

import contextlib

import torch
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module


def lazy_graph_module(root: torch.nn.Module, graph: Graph) -> GraphModule:
    """A graph module of our own."""
    return _LazyGraphModule(root, graph)


def graph_modules_in(module: torch.nn.Module) -> list[GraphModule]:
    """A graph module itself, and those of its regions and branches."""
    return [part for part in module.modules() if isinstance(part, GraphModule)]


def lazy_graph_modules() -> contextlib.AbstractContextManager[None]:
    """Let torch make such modules too."""
    return _use_lazy_graph_module(True)
