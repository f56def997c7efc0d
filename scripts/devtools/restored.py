"""Checks that stored graphs survive the way to ``torch.fx`` and back."""

from __future__ import annotations

from pathlib import Path

from aotpack._torch.api.fake_tensors import free_sizes
from aotpack.graph import from_fx
from aotpack.graph.restore import symbols_of, to_fx
from aotpack_loader.archive.bundle import Bundle

from .harness import MismatchError


def check_restored(path: Path) -> None:
    """Check that each graph of a bundle equals itself after conversion to ``torch.fx`` with fake values and back.

    Raises:
        MismatchError: names the graphs that differ, and the first different value of each.
    """
    found = []
    with Bundle.open(path) as bundle, free_sizes():
        for name, method in bundle.program.methods.items():
            graphs = [bundle.graph(method.forward), *([bundle.graph(method.backward.graph)] if method.backward else [])]
            symbols = symbols_of(method, graphs)
            for graph in graphs:
                again = from_fx(to_fx(graph, symbols), symbols.env)
                if again != graph:
                    pairs = zip(graph.nodes, again.nodes, strict=False)
                    found.append(
                        f"{name}: {next((pair for pair in pairs if pair[0] != pair[1]), 'inputs, outputs or subgraphs')}"
                    )
    if found:
        raise MismatchError("\n".join(found))
