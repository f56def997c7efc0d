"""Turns repeated layers into calls of one computation, without marks in the model.

A graph is traced layer by layer, so equal layers are a block that repeats in its list of nodes. In
strings this is called a run, or maximal repetition (Kolpakov and Kucherov, Finding maximal
repetitions in a word in linear time, 1999). Here periods are compared one by one. A letter is a
node's operator with its constants and types. A block can start at any letter of a run. The start is
chosen so that the fewest values are passed from call to call.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from aotpack_loader.devices.generator import exchange_random_state, random_state

from ..._torch.api.random_operators import is_random
from ..nested import CALL, CONTROL_FLOW

_REPEATS = 3
_SAVING = 64
"""Minimum number of repeats of a block, and of nodes that calls must save."""


def call_repeats(module: GraphModule) -> None:
    """Replace repeating blocks of nodes in a normalised graph by calls of a region, which the graph
    then contains.
    """
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    for number, run in enumerate(_Word(nodes).runs()):
        _call(module, f"repeated_{number}", [nodes[start : start + run.period] for start in run.starts])
    module.recompile()


@dataclass(frozen=True)
class _Run:
    """Consecutive blocks of ``period`` nodes each; ``saving``: how many nodes calls would save."""

    start: int
    period: int
    count: int
    saving: int

    @property
    def starts(self) -> range:
        return range(self.start, self.end, self.period)

    @property
    def end(self) -> int:
        return self.start + self.period * self.count


class _Word:
    """The nodes of a graph in order, as a word of letters."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        letters: dict[object, int] = {}
        positions = {node: i for i, node in enumerate(nodes)}
        self._letters = torch.tensor([letters.setdefault(_letter(node), len(letters)) for node in nodes])
        self._sources = [[positions.get(source, -1) for source in _sources(node)] for node in nodes]
        self._last_use = torch.tensor(
            [max((positions.get(user, len(nodes)) for user in node.users), default=0) for node in nodes]
        )
        self._can_start = [True] * (len(nodes) + 1)
        for first, last in _bound(nodes, positions):
            self._can_start[first + 1 : last + 1] = [False] * (last - first)

    def runs(self) -> list[_Run]:
        """The profitable runs in order.

        The best is chosen first, then the best before it and after it.
        """
        found = []
        pending = [(0, len(self._sources))]
        while pending:
            low, high = pending.pop()
            run = self._best(low, high)
            if run is not None:
                found.append(run)
                pending += [(low, run.start), (run.end, high)]
        return sorted(found, key=lambda run: run.start)

    def _best(self, low: int, high: int) -> _Run | None:
        best: _Run | None = None
        for most, start, end, period in sorted(self._periodic(low, high), reverse=True):
            if most <= (best.saving if best else _SAVING):
                break
            firsts = range(start, min(start + period, end - _REPEATS * period + 1))
            cuts = [self._run(first, period, (end - first) // period) for first in firsts]
            for cut in sorted(cuts, key=lambda cut: -cut.saving):
                if cut.saving <= (best.saving if best else _SAVING):
                    break
                best = max(self._alike(cut), key=lambda run: run.saving, default=best)
        return best

    def _periodic(self, low: int, high: int) -> Iterator[tuple[int, int, int, int]]:
        """Find repeated letters; yields the most nodes that calls can save, the start, the end and
        the period.
        """
        word = self._letters[low:high]
        for period in range(1, len(word) // _REPEATS + 1):
            breaks = (word[:-period] != word[period:]).nonzero().flatten()
            bounds = torch.cat([breaks.new_tensor([-1]), breaks, breaks.new_tensor([len(word) - period])])
            equal = bounds.diff() - 1
            for i in (equal >= (_REPEATS - 1) * period).nonzero().flatten().tolist():
                start = low + int(bounds[i]) + 1
                yield int(equal[i]), start, start + int(equal[i]) + period, period

    def _run(self, start: int, period: int, count: int) -> _Run:
        ends = torch.arange(1, count + 1).unsqueeze(1) * period + start
        is_result = self._last_use[start : start + count * period].view(count, period) >= ends
        return _Run(start, period, count, (count - 1) * period - count * (int(is_result.any(0).sum()) + 1))

    def _alike(self, run: _Run) -> Iterator[_Run]:
        """Split a run of equal letters into runs of blocks that also use their values in the same
        way.
        """
        number = 0
        for block, equal in groupby(self._block(start, run.period) for start in run.starts):
            count = len(list(equal))
            if block is not None and count >= _REPEATS:
                yield self._run(run.start + number * run.period, run.period, count)
            number += count

    def _block(self, start: int, period: int) -> list[list[int]] | None:
        """For each node of a block, the indices in the block of its inputs, or -1.

        None if the block cannot be cut out.
        """
        if not (self._can_start[start] and self._can_start[start + period]):
            return None
        return [[max(source - start, -1) for source in self._sources[i]] for i in range(start, start + period)]


def _letter(node: Node) -> object:
    """A key that is equal for nodes that compute the same from arguments of the same types.

    Control flow is always unique.
    """
    if node.target in CONTROL_FLOW:
        return node
    return node.target, repr(map_arg((node.args, node.kwargs), lambda arg: _type(arg.meta["val"]))), _type(node.meta["val"])


def _type(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_type(item) for item in value)
    return (str(value.dtype), tuple(value.shape)) if isinstance(value, torch.Tensor) else repr(value)


def _sources(node: Node) -> list[Node]:
    """The nodes among a node's arguments, in order, with repetitions."""
    found: list[Node] = []
    map_arg((node.args, node.kwargs), found.append)
    return found


def _bound(nodes: Sequence[Node], positions: dict[Node, int]) -> Iterator[tuple[int, int]]:
    """Ranges of nodes that must stay together: multiple results with their elements, and draws with
    their random state.
    """
    state: int | None = None
    for i, node in enumerate(nodes):
        if not isinstance(node.meta["val"], torch.Tensor):
            yield i, max((positions[user] for user in node.users), default=i)
        if node.target is random_state:
            state = i
        elif node.target is exchange_random_state and node.args[0] in positions:  # the previous state is restored
            yield positions[node.args[0]], i  # type: ignore[index]
        elif state is not None and is_random(node):
            yield state, i


def _call(module: GraphModule, name: str, blocks: Sequence[Sequence[Node]]) -> None:
    """Replace these blocks by calls of one region, made from the first block."""
    columns = list(zip(*map(_inputs_of, blocks), strict=True))  # for each argument from outside, its value in each block
    inputs = list(dict.fromkeys(columns))
    members = [frozenset(block) for block in blocks]
    results = [
        position
        for position, nodes in enumerate(zip(*blocks, strict=True))
        if any(not inside.issuperset(node.users) for node, inside in zip(nodes, members, strict=True))
    ]
    module.register_module(name, _region(blocks[0], [inputs.index(column) for column in columns], results))
    for block in blocks:
        inputs_of_block, values = _inputs_of(block), [block[position] for position in results]
        arguments = [inputs_of_block[columns.index(column)] for column in inputs]
        graph = module.graph
        with graph.inserting_before(block[0]):
            call = graph.call_function(CALL, (graph.get_attr(name), name, *arguments))
            call.meta = {**block[-1].meta, "val": tuple(value.meta["val"] for value in values)}
            for i, value in enumerate(values):
                item = graph.call_function(operator.getitem, (call, i))
                item.meta = dict(value.meta)
                value.replace_all_uses_with(item)
        for node in reversed(block):
            graph.erase_node(node)


def _inputs_of(block: Sequence[Node]) -> list[Node]:
    """The values that a block's nodes take from outside the block, in order."""
    inside = frozenset(block)
    return [source for node in block for source in _sources(node) if source not in inside]


def _region(block: Sequence[Node], slots: Sequence[int], results: Sequence[int]) -> GraphModule:
    """A block as a graph.

    ``slots``: the input for each value from outside; ``results``: the indices of the returned
    nodes.
    """
    graph = Graph()
    inputs_of_block = dict(zip(slots, _inputs_of(block), strict=True))
    inputs = [graph.placeholder(f"input_{slot}") for slot in range(len(inputs_of_block))]
    for slot, node in enumerate(inputs):
        node.meta = {"val": inputs_of_block[slot].meta["val"]}
    known: dict[Node, Node] = {}
    outside = iter(slots)

    def put(source: Node) -> Node:
        return known[source] if source in known else inputs[next(outside)]

    for node in block:
        args, kwargs = map_arg((node.args, node.kwargs), put)
        known[node] = graph.create_node(node.op, node.target, args, kwargs)
        known[node].meta = dict(node.meta)
    graph.output([known[block[position]] for position in results])
    return GraphModule(torch.nn.Module(), graph)
