"""Compares the graphs of two bundles by module: operators that were added, removed or moved, and what is saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .memory import step_memory
from .operations import GraphView, Half, views

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle


@dataclass(frozen=True)
class ModuleChange:
    """What changed in one module of one graph.

    ``added`` and ``removed`` count operators; ``moved`` are those that another module of the graph lost
    or gained as well. ``saved`` are bytes that the module saves for the backward: before and now.
    """

    graph: str
    module: str
    added: dict[str, int]
    removed: dict[str, int]
    moved: dict[str, int]
    saved: tuple[int, int]


def module_changes(first: Bundle, second: Bundle) -> Iterator[ModuleChange]:
    """Yield the modules with other operators or other saved bytes, in the order of the graphs.

    Only graphs that both bundles have, and that both record modules of, are compared.
    """
    for name in first.program.methods:
        if name not in second.program.methods:
            continue
        old, new = views(first, name), views(second, name)
        saved = [_saved(bundle, name, found) for bundle, found in ((first, old), (second, new))]
        for half, before in old.items():
            after = new.get(half)
            if after is not None and before.located and after.located:
                yield from _changes(before, after, saved if half == "forward" else [Counter(), Counter()])


def _changes(before: GraphView, after: GraphView, saved: list[Counter[str]]) -> Iterator[ModuleChange]:
    old, new = _operators(before), _operators(after)
    totals = [sum(counts.values(), Counter[str]()) for counts in (old, new)]
    for module in dict.fromkeys([*new, *old, *saved[0], *saved[1]]):
        added = new.get(module, Counter()) - old.get(module, Counter())
        removed = old.get(module, Counter()) - new.get(module, Counter())
        moved = {op: count for op, count in (added + removed).items() if totals[0][op] == totals[1][op]}
        sizes = saved[0][module], saved[1][module]
        if added or removed or sizes[0] != sizes[1]:
            yield ModuleChange(before.key, module, _without(added, moved), _without(removed, moved), moved, sizes)


def _without(counts: Counter[str], moved: Mapping[str, int]) -> dict[str, int]:
    return {op: count for op, count in counts.items() if op not in moved}


def _operators(view: GraphView) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for operation in view.operations:
        found.setdefault(operation.module, Counter())[operation.op] += 1
    return found


def _saved(bundle: Bundle, name: str, found: Mapping[Half, GraphView]) -> Counter[str]:
    """Saved bytes by module."""
    sizes: Counter[str] = Counter()
    for tensor in step_memory(bundle, name, found).saved:
        sizes[tensor.module] += tensor.size
    return sizes
