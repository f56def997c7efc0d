"""Counts of the calls of what fixes have put into torch: one that is never called is as bad as none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

_calls: Counter[str] = Counter()


def reached(identifier: str) -> None:
    """Count a call of what a fix has put into torch."""
    _calls[identifier] += 1


def calls() -> Mapping[str, int]:
    """How often each fix was reached in this process."""
    return _calls


def counted(identifier: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, whose calls are counted."""

    def called(*args: Any, **kwargs: Any) -> Any:
        _calls[identifier] += 1
        return function(*args, **kwargs)

    return called
