"""A short description of a loaded program as HTML, which Jupyter shows for it.

It holds no script. All text of the bundle is escaped.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable

from ..format import schema
from ..format.labels import labels_of
from ..text import visible

_MOST = 24
"""How many arguments of a method are listed."""


def summary(program: schema.Program, loaded: Iterable[tuple[str, str]]) -> str:
    """Return the description of a program. ``loaded`` says how it was loaded: labels and texts."""
    parameters = [entry for entry in program.state if entry.kind == "parameter" and entry.tied_to is None]
    trained = sum(math.prod(entry.shape) for entry in parameters if entry.requires_grad)
    facts = [
        *loaded,
        ("parameters", f"{sum(math.prod(entry.shape) for entry in parameters):,} elements, {trained:,} trained"),
        ("built with", f"aotpack {program.producer.aotpack}, torch {program.producer.torch}"),
    ]
    methods = "".join(_method(name, method) for name, method in program.methods.items() if method.role == "call")
    return (
        f"<details open><summary><b>{_text(program.name or 'bundle')}</b> (aotpack)</summary>{_table(facts)}{methods}</details>"
    )


def _method(name: str, method: schema.Method) -> str:
    labels = labels_of(method)
    modes = ", ".join(
        f"{'train()' if mode.training else 'eval()'} {'with' if mode.grad else 'without'} gradients" for mode in method.serves
    )
    arguments = [(leaf.path, labels.text(_type(leaf))) for leaf in method.leaves]
    more = [("", f"and {len(arguments) - _MOST} more")] if len(arguments) > _MOST else []
    sizes = [("", labels.range(symbol)) for symbol in method.symbols]
    return f"<details><summary>{_text(name)}: {_text(modes)}</summary>{_table([*arguments[:_MOST], *more, *sizes])}</details>"


def _type(leaf: schema.InputLeaf) -> str:
    if isinstance(leaf, schema.TensorLeaf):
        return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
    if isinstance(leaf, schema.IntegerLeaf):
        return f"int {leaf.size}"
    return f"= {getattr(leaf.value, 'value', leaf.value)!r}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = (f"<tr><td>{_text(label)}</td><td><code><bdi>{_text(text)}</bdi></code></td></tr>" for label, text in rows)
    return f"<table><tbody>{''.join(cells)}</tbody></table>"


def _text(text: str) -> str:
    return html.escape(visible(text))
