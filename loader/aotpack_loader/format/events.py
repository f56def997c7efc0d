"""Names of the events that ``torch.profiler`` shows for a bundle's code.

An event says which modules of the original it belongs to, in which graph, what runs, and which nodes
of the graph that computes: ``features.0, features.1 [train.forward] cpp_fused_relu_3 #4-6,9``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..text import visible

ROOT: Final = "(model)"
"""What stands for the root module, whose path is empty."""
_SHOWN: Final = 3
_RANGE: Final = r"\d{1,9}(?:-\d{1,9})?"
_NAME: Final = re.compile(rf"(?P<modules>.*) \[(?P<key>[^][ ]+)\] (?P<code>\S+) #(?P<nodes>{_RANGE}(?:,{_RANGE})*)")

_PART: Final = re.compile(r"(?<=ward)\.\d+$")


class Event(NamedTuple):
    """An event's name, read back. ``nodes`` are ranges of indices of nodes of the graph ``key``."""

    modules: str
    key: str
    code: str
    nodes: list[range]

    @property
    def graph(self) -> str:
        """The key of the whole graph: a part of a graph has a number after it (``train.forward.2``)."""
        return _PART.sub("", self.key)


def event_name(modules: Iterable[str], key: str, code: str, nodes: Iterable[int]) -> str:
    """The name of an event. It has no quotes: torch would write them into its trace as they are.

    Args:
        modules: paths of modules of the original. The first three are shown.
        key: the graph (``train.forward``).
        code: the kernel or operator, without spaces.
        nodes: indices of the graph's nodes.
    """
    shown = visible(shown_modules(modules)).replace('"', "'")
    return f"{shown} [{key}] {code} #{_ranges(sorted(set(nodes)))}"


def shown_modules(modules: Iterable[str]) -> str:
    """Some modules as text: ``features.0, features.1 and 3 more``."""
    paths = [path or ROOT for path in dict.fromkeys(modules)]
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def parse_event(name: str) -> Event | None:
    """Read an event's name; None: it is not one of a bundle's code."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    parts = [part.partition("-") for part in found["nodes"].split(",")]
    nodes = [range(int(first), int(last or first) + 1) for first, _, last in parts]
    return Event(found["modules"], found["key"], found["code"], nodes)


def _ranges(numbers: Sequence[int]) -> str:
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
