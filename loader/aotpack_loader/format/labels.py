"""Sizes in messages, by the names that the model's author gave them (``batch``), not by the symbols of the graphs (``s0``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from . import schema

_WORD = re.compile(r"[A-Za-z_]\w*")


class Labels:
    """The names of a method's symbols.

    A symbol that the author gave no name is called by its entry in ``sources``, the argument that it is read off
    (``img.shape[0]``), or as in the graphs.
    """

    def __init__(self, symbols: Sequence[schema.Symbol], sources: Mapping[str, str] | None = None) -> None:
        counts = Counter(symbol.label for symbol in symbols)
        self._names = {symbol.name: (sources or {}).get(symbol.name, symbol.name) for symbol in symbols}
        self._names |= {symbol.name: symbol.label for symbol in symbols if symbol.label and counts[symbol.label] == 1}

    def name(self, symbol: str) -> str:
        """What to call one symbol."""
        return self._names.get(symbol, symbol)

    def text(self, size: schema.Dim) -> str:
        """A size or a constraint with the names in it."""
        return _WORD.sub(lambda found: self.name(found[0]), str(size))

    def range(self, symbol: schema.Symbol) -> str:
        """A symbol and the values it takes: ``batch=2..64``."""
        return f"{self.name(symbol.name)}={symbol.minimum}..{'' if symbol.maximum is None else symbol.maximum}"
