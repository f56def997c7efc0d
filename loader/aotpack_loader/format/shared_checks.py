"""What the modules that check the rules of documents share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import CorruptBundleError, Problem


def refuse(where: str, problems: list[Problem]) -> None:
    """Raise an error that lists the broken rules of document ``where``, if there are any."""
    if problems:
        raise CorruptBundleError(f"The document {where} breaks the rules of the format.", problems[:50])


def in_range(at: str, rule: str, pairs: Iterable[tuple[int, int]]) -> Iterator[Problem]:
    """Report indices that are not below their counts."""
    for index, count in pairs:
        if index >= count:
            yield Problem(at, f"{rule}: index {index} is out of range, there are {count}")


def flat(args: Iterable[object]) -> Iterator[object]:
    """Arguments of an operator, including those in lists."""
    for arg in args:
        if isinstance(arg, list):
            yield from flat(arg)
        else:
            yield arg
