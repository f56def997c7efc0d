"""Names of sizes in messages: the author's names (``batch``) instead of the graphs' symbols (``s0``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from . import expressions, schema

_WORD = re.compile(r"((?<=[-+*/%<>=] ))?([A-Za-z_]\w*)(?=( [-+*/%<>=])?)")
"""A word, and whether an operator of an expression is to the left or right of it."""
_DERIVED = re.compile(r"[-+*]")


class Labels:
    """The names of a method's symbols.

    A symbol without an author's name uses its entry in ``sources``, the argument it is read from
    (``img.shape[0]``). If there is none, it keeps its name in the graphs.
    """

    def __init__(self, symbols: Sequence[schema.Symbol], sources: Mapping[str, str] | None = None) -> None:
        counts = Counter(symbol.label for symbol in symbols)
        self._names = {symbol.name: (sources or {}).get(symbol.name, symbol.name) for symbol in symbols}
        self._names |= {symbol.name: symbol.label for symbol in symbols if symbol.label and counts[symbol.label] == 1}

    def name(self, symbol: str) -> str:
        """The name to show for one symbol."""
        return self._names.get(symbol, symbol)

    def text(self, size: schema.Dim) -> str:
        """A size or a constraint with the names to show: ``(4*h)`` where it is an operand, else ``4*h``."""
        return _WORD.sub(self._shown, str(size))

    def _shown(self, found: re.Match[str]) -> str:
        name, is_operand = self.name(found[2]), found[1] is not None or found[3] is not None
        return f"({name})" if is_operand and _DERIVED.search(name) else name

    def range(self, symbol: schema.Symbol) -> str:
        """A symbol and the values it takes: ``batch=2..64``."""
        return f"{self.name(symbol.name)}={symbol.minimum}..{'' if symbol.maximum is None else symbol.maximum}"


def labels_of(method: schema.Method) -> Labels:
    """The names of a method's symbols, where each has one: the author's, or the first argument that it is a size of."""
    return Labels(method.symbols, sources_of(method.leaves))


def sources_of(leaves: Sequence[schema.InputLeaf]) -> dict[str, str]:
    """Name each symbol after the first argument that it is a size of: ``img.shape[0]``."""
    found: dict[str, str] = {}
    for leaf in leaves:
        if isinstance(leaf, schema.IntegerLeaf):
            found.setdefault(leaf.size, leaf.path)
        elif isinstance(leaf, schema.TensorLeaf):
            for dim, size in enumerate(leaf.shape):
                if isinstance(size, str) and expressions.is_symbol(size):
                    found.setdefault(size, f"{leaf.path}.shape[{dim}]")
    return found
