"""Arguments and results of a method as trees of rows, with the names and ranges that the user gave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aotpack_loader.format import schema
from aotpack_loader.format.containers import shown
from aotpack_loader.format.labels import labels_of

from .describe import argument_type, result_type

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle


@dataclass
class Row:
    """A value or a container of values. ``text`` is its type."""

    label: str
    text: str = ""
    children: list[Row] = field(default_factory=list)


def argument_rows(method: schema.Method) -> list[Row]:
    """Return the arguments by name. The tree of a method is always ``(args, kwargs)``."""
    leaves = map(labels_of(method).text, map(argument_type, method.leaves))
    args, kwargs = getattr(method.inputs, "items", (method.inputs, schema.DictNode([], [])))
    rows = []
    for position, item in enumerate(getattr(args, "items", [])):
        label = method.parameters[position] if position < len(method.parameters) else f"args[{position}]"
        rows.append(_row(label, item, leaves))
    if isinstance(kwargs, schema.DictNode):
        rows += [_row(str(key), item, leaves) for key, item in zip(kwargs.keys, kwargs.items, strict=True)]
    return rows


def result_rows(bundle: Bundle, method: schema.Method) -> list[Row]:
    """Return the result, and what the call changes in containers of the caller."""
    graph = bundle.graph(method.forward) if bundle.has(method.forward) else None
    found = ["tensor" if graph is None else result_type(method, graph, result) for result in method.results]
    leaves = map(labels_of(method).text, found)
    rows = [_row("result", method.outputs, leaves)]
    return rows + [_row(f"changes {shown(method, update.path)}", update.tree, leaves) for update in method.updates]


def ranges(method: schema.Method) -> list[str]:
    """Return the sizes that vary with their ranges, then the conditions on them: ``2 <= batch <= 512``."""
    labels = labels_of(method)
    found = []
    for symbol in method.symbols:
        name, top = labels.name(symbol.name), symbol.maximum
        found.append(f"{name} >= {symbol.minimum}" if top is None else f"{symbol.minimum} <= {name} <= {top}")
    return found + list(map(labels.text, method.constraints))


def mode_text(mode: schema.Mode) -> str:
    return f"{'train()' if mode.training else 'eval()'} {'with grad' if mode.grad else 'without grad'}"


def _row(label: str, tree: schema.Tree, leaves: Iterator[str]) -> Row:
    if isinstance(tree, schema.LeafNode):
        return Row(label, next(leaves, ""))
    if isinstance(tree, schema.GivenNode):
        return Row(label, "as the caller gave it")
    return Row(label, container(tree), [_row(child, item, leaves) for child, item in children(tree)])


def container(tree: schema.Tree) -> str:
    """The kind of a container: ``dict``, ``tuple``, ``list``, or the class of a record."""
    if isinstance(tree, schema.RecordNode):
        return tree.name
    return {schema.TupleNode: "tuple", schema.ListNode: "list"}.get(type(tree), "dict")


def children(tree: schema.Tree) -> Iterator[tuple[str, schema.Tree]]:
    """The items of a container with their labels: ``'key'``, ``.field`` or ``[0]``."""
    if isinstance(tree, schema.DictNode):
        yield from ((repr(key), item) for key, item in zip(tree.keys, tree.items, strict=True))
    elif isinstance(tree, schema.RecordNode):
        yield from ((f".{field}", item) for field, item in zip(tree.fields, tree.items, strict=True))
    elif not isinstance(tree, (schema.LeafNode, schema.GivenNode)):
        yield from ((f"[{position}]", item) for position, item in enumerate(tree.items))
