"""Names of sizes in messages: the author's names (``batch``) instead of the graphs' symbols (``s0``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from . import schema

_WORD = re.compile(r"[A-Za-z_]\w*")


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
        """A size or a constraint with the names to show."""
        return _WORD.sub(lambda found: self.name(found[0]), str(size))

    def range(self, symbol: schema.Symbol) -> str:
        """A symbol and the values it takes: ``batch=2..64``."""
        return f"{self.name(symbol.name)}={symbol.minimum}..{'' if symbol.maximum is None else symbol.maximum}"
