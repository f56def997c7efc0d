"""Counts the calls of code that fixes put into torch: a fix that is never called has no effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

_calls: Counter[str] = Counter()


def reached(identifier: str) -> None:
    """Count a call of code that a fix has put into torch."""
    _calls[identifier] += 1


def calls() -> Mapping[str, int]:
    """How often each fix was reached in this process."""
    return _calls


def counted(identifier: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``function`` and counts its calls."""

    def called(*args: Any, **kwargs: Any) -> Any:
        _calls[identifier] += 1
        return function(*args, **kwargs)

    return called
