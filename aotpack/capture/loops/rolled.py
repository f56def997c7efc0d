"""Rolls loops that the user's Python unrolled: a body that a graph repeats becomes the step of one scan.

Dynamo records each iteration of a Python loop. The work of the later stages of a build, and the code for a processor,
then grow with the number of iterations. A loop is found in the graph alone: as a run of nodes in which each node equals
the one a period before. The body may read

- its own values,
- values of the iteration before (``h = cell(x, h)``), which the scan carries,
- values from before the loop that are the same in each iteration,
- rows of a tensor, one an iteration (``x[:, t]``), over which the scan runs.

Values that are used after the loop are stacked by the scan. ``torch.stack`` of all of them is then the scan's result.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from .find import Carried, Inner, Loop, Operand, Place, Rows, Same, find_loop, repeats
from .nodes import JOINS, is_divided, row_of, value_of

LEAST: Final = 48
"""Fewer iterations of a fixed number stay as they are. One after the other they run faster: 24 GRU cells take 0.59 of
eager's step on `cpu`, as a scan 0.72. From 48 on, the build takes three times as long (0.58 and 0.68; on `portable`
1.21 and 1.30).
"""

_LONG: Final = 5


def roll(module: GraphModule, least: int) -> int:
    """Replace each loop of at least ``least`` iterations in a graph of Dynamo by a scan. Return how many there were."""
    count, keys = 0, dict[Node, Hashable]()
    if not repeats(module.graph, least, keys):
        return 0
    _complete_tuples(module.graph)
    while (loop := find_loop(module.graph, least, keys)) is not None:
        _Scan(module, loop).replace(f"rolled_loop_{count}")
        count += 1
    for node in reversed(module.graph.nodes):
        if not node.users and (_is_item(node) or is_divided(node) or row_of(node) is not None):  # these would fix the length
            module.graph.erase_node(node)
    if count:
        module.graph.lint()
        module.recompile()
    return count


def count_from_ends(graph: Graph) -> None:
    """Count rows of the later half of a tensor from its end: those are the last rows of another length, too."""
    for node in graph.nodes:
        row = row_of(node)
        if row is not None and row.position >= (size := value_of(row.source).shape[row.dim]) - row.position:
            with graph.inserting_before(node):
                last = graph.call_method("select", (row.source, row.dim, row.position - size))
                last = graph.call_method("unsqueeze", (last, row.dim)) if row.keeps else last
            last.meta = dict(node.meta)
            node.replace_all_uses_with(last)
            graph.erase_node(node)


def _complete_tuples(graph: Graph) -> None:
    """Let all items of a short tuple follow the call that returns it; Dynamo leaves out those that nothing reads."""
    for node in [node for node in graph.nodes if isinstance(value_of(node), tuple) and len(value_of(node)) < _LONG]:
        if node.op not in ("call_function", "call_method") or not all(map(_is_item, node.users)):
            continue
        items = sorted(node.users, key=lambda user: user.args[1])
        with graph.inserting_after(node):
            missing = {*range(len(value_of(node)))} - {user.args[1] for user in items}
            added = [graph.call_function(operator.getitem, (node, i)) for i in missing]
        for item in added:
            item.meta = {**node.meta, "example_value": value_of(node)[item.args[1]]}
        for item in sorted([*items, *added], key=lambda user: -user.args[1]):
            node.append(item)


def _is_item(node: Node) -> bool:
    """Whether a node is an item of a tuple, by its number."""
    source = node.args[0] if node.target is operator.getitem and type(node.args[1]) is int else None
    return isinstance(source, Node) and isinstance(value_of(source), tuple)


@dataclass
class _Scan:
    """Replaces a loop by a scan."""

    module: GraphModule
    loop: Loop
    carried: list[Carried] = field(init=False)
    rows: list[Rows] = field(init=False)
    constants: list[Same] = field(init=False)
    stacked: list[int] = field(init=False)
    """Values of the body that are used after the loop."""

    def __post_init__(self) -> None:
        self.carried = self.loop.each(Carried)
        self.rows = self.loop.each(Rows)
        self.constants = self.loop.each(Same)
        inside, last = {*self.loop.nodes}, self.loop.count - 1
        carried = {found.number for found in self.carried}
        used = [i for i, node in enumerate(self.loop.nodes) if any(user not in inside for user in node.users)]
        places = [Place(*divmod(i, self.loop.period)) for i in used]
        stacked = {place.number for place in places if place.iteration < last or place.number not in carried}
        self.stacked = sorted(stacked | {store.value for store in self.loop.stores.values()})

    def replace(self, name: str) -> None:
        graph, loop = self.module.graph, self.loop
        setattr(self.module, name, GraphModule(self.module, self._body()))
        with graph.inserting_after(loop.nodes[-1]):
            end = graph.call_function(torch.zeros, ((),))  # the place for what follows
        with graph.inserting_before(end):
            states = [graph.call_method("clone", (found.first,)) for found in self.carried]
            states = states or [graph.call_function(torch.zeros, ((),))]
            rows = [self._rows(graph, found) for found in self.rows]
            rows = rows or [graph.call_function(torch.zeros, ((loop.count,),))]
            constants = tuple(found.node for found in self.constants)
            scan = graph.call_function(torch.ops.higher_order.scan, (graph.get_attr(name), states, rows, constants))
            scan.meta["stack_trace"] = loop.nodes[0].meta.get("stack_trace", "")
            numbers = [*(found.number for found in self.carried), *self.stacked]
            first = len(states) - len(self.carried)
            results = [self._result(graph, scan, first + i, number) for i, number in enumerate(numbers)]
            lasts = dict(zip(numbers, results[: len(self.carried)], strict=False))
            stacked = dict(zip(self.stacked, results[len(self.carried) :], strict=True))
            for store in loop.stores.values():
                self._store(graph, store.rows, stacked[store.value])
            self._replace_uses(lasts, stacked)
        graph.erase_node(end)
        for node in reversed(loop.nodes):
            graph.erase_node(node)

    def _result(self, graph: Graph, scan: Node, i: int, number: int) -> Node:
        """A result of the scan. All of them require a gradient if one does."""
        result = graph.call_function(operator.getitem, (scan, i))
        operands = [*(found.first for found in self.carried), *(found.source for found in self.rows)]
        operands += [found.node for found in self.constants]
        if value_of(self.loop.at(self.loop.count - 1, number)).requires_grad or not any(map(_requires_grad, operands)):
            return result
        return graph.call_method("clone", (graph.call_method("detach", (result,)),))

    def _rows(self, graph: Graph, found: Rows) -> Node:
        moved, part = graph.call_method("movedim", (found.source, found.dim, 0)), self._part(found)
        if part != slice(None):
            moved = graph.call_function(operator.getitem, (moved, part))
        return moved if found.step > 0 else graph.call_method("flip", (moved, 0))

    def _store(self, graph: Graph, found: Rows, values: Node) -> None:
        values = values if found.step > 0 else graph.call_method("flip", (values, 0))
        values = graph.call_method("movedim", (values, 0, found.dim))
        if found.keeps:
            values = graph.call_method("flatten", (values, found.dim, found.dim + 1))
        index = (*(slice(None) for _ in range(found.dim)), self._part(found))
        graph.call_function(operator.setitem, (found.source, index, values))

    def _part(self, found: Rows) -> slice:
        """The rows, in rising order. The end is counted from the tensor's end, so that it holds for other lengths."""
        size = value_of(found.source).shape[found.dim]
        ends = sorted((found.position, found.position + (self.loop.count - 1) * found.step))
        return slice(ends[0] or None, ends[1] + 1 - size or None, abs(found.step) if abs(found.step) > 1 else None)

    def _body(self) -> Graph:
        """The graph of the scan's step: next states, then the values that are stacked."""
        graph, loop = Graph(), self.loop
        states = {found: graph.placeholder(f"state_{i}") for i, found in enumerate(self.carried)}
        dummy = None if states else graph.placeholder("state")
        rows = {found: graph.placeholder(f"row_{i}") for i, found in enumerate(self.rows)}
        if not rows:
            graph.placeholder("row")
        constants = {found: graph.placeholder(f"constant_{i}") for i, found in enumerate(self.constants)}
        values: list[Node] = []

        def read(found: Operand) -> Node:
            match found:
                case Inner():
                    return values[found.number]
                case Carried():
                    return states[found]
                case Same():
                    return constants[found]
                case Rows():
                    row = rows[found]
                    return graph.call_method("unsqueeze", (row, found.dim)) if found.keeps else row

        for number, operands in enumerate(loop.operands):
            node = loop.at(0, number)
            if number in loop.stores:
                values.append(node)  # which nothing reads
                continue
            if operands and isinstance(operands[0], Rows) and row_of(node) is not None:
                values.append(read(operands[0]))
                continue
            found = iter(operands)
            args, kwargs = map_arg((node.args, node.kwargs), lambda _: read(next(found)))  # noqa: B023
            value = graph.create_node(node.op, node.target, args, kwargs)
            value.meta = {key: item for key, item in node.meta.items() if key != "example_value"}
            values.append(value)
        kept = [graph.call_method("clone", (values[found.number],)) for found in self.carried]
        kept = kept or [graph.call_method("clone", (dummy,))]
        graph.output([*kept, *(graph.call_method("clone", (values[number],)) for number in self.stacked)])
        return graph

    def _replace_uses(self, lasts: dict[int, Node], stacked: dict[int, Node]) -> None:
        """Let the nodes after the loop read the scan's results: the last states, and the values of all iterations."""
        graph, loop = self.module.graph, self.loop
        inside = {*loop.nodes}
        places = {node: Place(*divmod(i, loop.period)) for i, node in enumerate(loop.nodes)}
        for user in [node for node in graph.nodes if node not in inside and node.target in JOINS]:
            self._replace_join(user, places, stacked)
        for node, (iteration, number) in places.items():
            users = [user for user in node.users if user not in inside]
            if not users:
                continue
            if iteration == loop.count - 1 and number in lasts:
                value = lasts[number]
            else:
                value = graph.call_method(
                    "clone", (graph.call_method("select", (stacked[number], 0, self._from_an_end(iteration))),)
                )
            value.meta["example_value"] = value_of(node)
            for user in users:
                user.replace_input_with(node, value)

    def _from_an_end(self, iteration: int) -> int:
        """The number of an iteration, counted from the nearer end: late ones are the last ones of other lengths, too."""
        return iteration if 2 * iteration < self.loop.count else iteration - self.loop.count

    def _replace_join(self, user: Node, places: dict[Node, Place], stacked: dict[int, Node]) -> None:
        """Replace ``torch.stack`` or ``torch.cat`` of the values of all iterations by what the scan stacked."""
        graph, count, stacks = self.module.graph, self.loop.count, user.target is torch.stack
        items, dim = user.args[0], user.args[1] if len(user.args) > 1 else user.kwargs.get("dim", 0)
        if not isinstance(items, (list, tuple)) or type(dim) is not int or user.kwargs.keys() - {"dim"}:
            return
        here = [places[item] for item in items if isinstance(item, Node) and item in places]
        if not here or _all_iterations(here, count)[0] not in stacked:
            return
        parts: list[Node] = []
        left = list(items)
        with graph.inserting_before(user):
            while left:
                number, step = _all_iterations([places.get(item) for item in left[:count]], count)
                if number not in stacked:
                    item = left.pop(0)
                    parts.append(graph.call_method("unsqueeze", (item, dim)) if stacks else item)
                    continue
                part, at = stacked[number], dim % (value_of(left[0]).dim() + stacks)
                part = graph.call_method("flip", (part, 0)) if step < 0 else part
                part = graph.call_method("movedim", (part, 0, at)) if at else part
                parts.append(part if stacks else graph.call_method("flatten", (part, at, at + 1)))
                del left[:count]
            joined = graph.call_function(torch.cat, (parts, dim))
        joined.meta = dict(user.meta)
        user.replace_all_uses_with(joined)
        graph.erase_node(user)


def _all_iterations(places: Sequence[Place | None], count: int) -> tuple[int, int]:
    """The number in the body, if the values are those of all iterations, and 1 or, from the last one, -1. Else ``(-1, 1)``."""
    first = places[0]
    if first is None or len(places) < count:
        return -1, 1
    for step, start in ((1, 0), (-1, count - 1)):
        if all(place == (start + k * step, first.number) for k, place in enumerate(places)):
            return first.number, step
    return -1, 1


def _requires_grad(node: Node) -> bool:
    return bool(getattr(value_of(node), "requires_grad", False))
