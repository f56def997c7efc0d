"""Finds loops in a graph of Dynamo: runs of nodes in which each node equals the one a period before."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ..._torch.api.writes import is_in_place
from .nodes import JOINS, Row, key_of, memory, row_of, value_of, written_row

_CANDIDATES: Final = 8
_READS: Final = (operator.getitem, getattr)


class Place(NamedTuple):
    """A node of a loop: its iteration, and its number in the body."""

    iteration: int
    number: int


class Inner(NamedTuple):
    """A value of the same iteration."""

    number: int


class Carried(NamedTuple):
    """A value of the iteration before; ``first`` is read by the first iteration."""

    number: int
    first: Node


class Same(NamedTuple):
    """A value from before the loop."""

    node: Node


class Rows(NamedTuple):
    """Rows of a value from before the loop: ``position``, ``position + step``, …"""

    source: Node
    dim: int
    position: int
    step: int
    keeps: bool


class Store(NamedTuple):
    """Rows of a tensor from before the loop, to which the iterations write a value each: ``x[:, t] = value``."""

    rows: Rows
    value: int


Operand = Inner | Carried | Same | Rows


@dataclass(frozen=True)
class Loop:
    """A run of nodes, ``period`` in each of ``count`` iterations.

    ``operands`` are what each node of the body reads, and ``stores`` those nodes that write rows.
    """

    nodes: Sequence[Node]
    period: int
    count: int
    operands: Sequence[Sequence[Operand]]
    stores: Mapping[int, Store]

    def at(self, iteration: int, number: int) -> Node:
        return self.nodes[iteration * self.period + number]

    def each(self, kind: type[Any]) -> list[Any]:
        """The operands of a kind, each once."""
        return list(dict.fromkeys(found for row in self.operands for found in row if isinstance(found, kind)))


def repeats(graph: Graph, least: int, keys: dict[Node, Hashable]) -> bool:
    """Whether a graph has a call ``least`` times, as each loop of so many iterations does. ``keys`` gets the calls' keys."""
    counts = Counter(_keys(graph, keys))
    return max(counts.values(), default=0) >= least


def find_loop(graph: Graph, least: int, keys: dict[Node, Hashable]) -> Loop | None:
    """The largest loop of at least ``least`` iterations that a scan can replace, if there is one.

    ``keys`` has the keys of calls that were made before (:func:`.nodes.key_of`), and gets those of new ones.
    """
    nodes = _calls(graph)
    for start, period, count in _runs(_keys(graph, keys), least):
        for peeled in (0, 1):  # what the first iteration reads may have another type than what it leaves for the next
            loop = _bound(nodes[start + peeled * period : start + count * period], period)
            if loop is not None and loop.count >= least and _can_roll(loop):
                return loop
    return None


def _calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op in ("call_function", "call_method", "call_module")]


def _keys(graph: Graph, known: dict[Node, Hashable]) -> list[Hashable]:
    """The keys of a graph's calls. A call whose operands a scan has replaced keeps its key: their types are the same."""
    return [known[node] if node in known else known.setdefault(node, key_of(node)) for node in _calls(graph)]


def _runs(keys: Sequence[Hashable], least: int) -> list[tuple[int, int, int]]:
    """``(start, period, count)`` of runs of equal parts, those of the most nodes first."""
    last: dict[Hashable, int] = {}
    distances: Counter[int] = Counter()
    for i, key in enumerate(keys):
        if key in last:
            distances[i - last[key]] += 1
        last[key] = i
    found = []
    for period in sorted(period for period, votes in distances.items() if votes >= least - 1):
        length = 0
        for i in range(len(keys) - period + 1):
            if i + period < len(keys) and keys[i] == keys[i + period]:
                length += 1
                continue
            count = length // period + 1
            if count >= least:
                found.append((i - length, period, count))
            length = 0
    return sorted(found, key=lambda run: -run[1] * run[2])[:_CANDIDATES]


def _bound(nodes: Sequence[Node], period: int) -> Loop | None:
    """A run as a loop, if each node of the body reads what a scan's step may read."""
    count = len(nodes) // period
    places = {node: Place(*divmod(i, period)) for i, node in enumerate(nodes)}
    operands: list[list[Operand]] = []
    stores: dict[int, Store] = {}
    for number in range(period):
        same = [nodes[k * period + number] for k in range(count)]
        rows = [row_of(node) for node in same]
        sequence = _sequence(rows, places)
        if sequence is not None:
            operands.append([sequence])
            continue
        written = _sequence([written_row(node) for node in same], places)
        value = _operand([node.args[2] for node in same], places) if written is not None else None  # type: ignore[misc]
        if written is not None and isinstance(value, Inner):
            stores[number] = Store(written, value.number)
            operands.append([])
            continue
        if any(row is not None and rows[0] is not None and row.position != rows[0].position for row in rows):
            return None
        found = [_operand(refs, places) for refs in zip(*map(_read, same), strict=True)]
        if None in found:
            return None
        operands.append([operand for operand in found if operand is not None])
    return Loop(nodes, period, count, operands, stores)


def _read(node: Node) -> list[Node]:
    """The nodes that a node reads, in the order of its arguments."""
    found: list[Node] = []

    def add(each: Node) -> Node:
        found.append(each)
        return each

    map_arg((node.args, node.kwargs), add)
    return found


def _operand(refs: Sequence[Node], places: dict[Node, Place]) -> Operand | None:
    """What the iterations read, one after the other, at one place."""
    found = [places.get(ref) for ref in refs]
    if found[0] is not None:
        inner = all(place == (k, found[0].number) for k, place in enumerate(found))
        return Inner(found[0].number) if inner else None
    if all(ref is refs[0] for ref in refs):
        return Same(refs[0])
    if found[1] is not None and all(place == (k, found[1].number) for k, place in enumerate(found[1:])):
        return Carried(found[1].number, refs[0])
    return _sequence([row_of(ref) for ref in refs], places)


def _sequence(rows: Sequence[Row | None], places: dict[Node, Place]) -> Rows | None:
    if len(rows) < 2 or rows[0] is None or rows[1] is None or rows[0].source in places:
        return None
    source, dim, position, keeps = rows[0]
    step = rows[1].position - position
    if step == 0 or any(row != (source, dim, position + k * step, keeps) for k, row in enumerate(rows)):
        return None
    return Rows(source, dim, position, step, keeps)


def _can_roll(loop: Loop) -> bool:
    """Whether a scan's step can be the body: it computes, on tensors, and writes to nothing from outside an iteration."""
    body = [loop.at(0, number) for number in range(loop.period)]
    if all(node.target in _READS or row_of(node) is not None for node in body):
        return False
    if not loop.each(Carried) and not loop.each(Rows):  # several calls that are alike, such as zeros for each state
        return False
    own = {memory(loop.at(k, number)) for k in range(loop.count) for number in range(loop.period)}
    outside = {memory(found.first) for found in loop.each(Carried)} | {memory(found.node) for found in loop.each(Same)}
    outside |= {memory(found.source) for found in loop.each(Rows)}
    stored = [memory(store.rows.source) for store in loop.stores.values()]
    if len({*stored}) < len(stored) or {*stored} & outside:
        return False
    for k in (0, 1):  # in the second iteration, what is carried is of the first
        written = [node for number in range(loop.period) if number not in loop.stores and is_in_place(node := loop.at(k, number))]
        carried = {memory(loop.at(0, found.number)) for found in loop.each(Carried)} if k else set()
        if any(memory(_read(node)[0]) in outside | carried or memory(_read(node)[0]) not in own for node in written):
            return False
    if any(_changes_modes(node) for node in body):
        return False
    inside = {*loop.nodes}
    shown = [memory(node) for node in inside if any(user not in inside and user.target not in JOINS for user in node.users)]
    if len({*shown}) < len(shown) or {*shown} & outside:  # these would be copies
        return False
    values = [value_of(found.node) for found in loop.each(Same)]
    if not all(isinstance(value, (torch.Tensor, int, torch.SymInt)) for value in values):
        return False
    return all(_fits(found.first, loop.at(0, found.number)) for found in loop.each(Carried))


def _changes_modes(node: Node) -> bool:
    """Whether a call switches gradients or autocast, or runs graphs of its own."""
    name = getattr(node.target, "__name__", "")
    return isinstance(node.target, torch._ops.HigherOrderOperator) or name.startswith(("_enter_", "_exit_", "_set_grad_enabled"))


def _fits(first: Node, carried: Node) -> bool:
    a, b = value_of(first), value_of(carried)
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return (str(a.shape), a.dtype, a.device) == (str(b.shape), b.dtype, b.device)
