"""Counts the calls of code that fixes and hooks put into torch: without calls it has no effect."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any

import torch

from aotpack_loader.errors import Problem, UnsupportedTorchError

_calls: Counter[str] = Counter()
_counting = Lock()  # a thread adds the calls that a copy of this process has made


def count_call(identifier: str) -> None:
    """Count a call of code that a fix has put into torch."""
    with _counting:
        _calls[identifier] += 1


@contextlib.contextmanager
def require_calls(*identifiers: str) -> Iterator[None]:
    """Check that some hooks are called in this block.

    Raises:
        UnsupportedTorchError: some were not. Results could be wrong without a message.
    """
    before = {identifier: _calls[identifier] for identifier in identifiers}
    yield
    if unreached := [identifier for identifier, count in before.items() if _calls[identifier] == count]:
        raise UnsupportedTorchError(
            f"torch {torch.__version__} never called functions that aotpack puts in place of its own.",
            [Problem(identifier, "this hook of the register was not reached") for identifier in unreached],
            hint="Install a torch that was tried: see docs/torch-fixes.md.",
        )


def add_calls(counts: Mapping[str, int]) -> None:
    """Count the calls that a copy of this process has made."""
    with _counting:
        _calls.update(counts)


def calls() -> Mapping[str, int]:
    """How often each fix was reached in this process."""
    return _calls


def counted(identifier: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``function`` and counts its calls."""

    def called(*args: Any, **kwargs: Any) -> Any:
        count_call(identifier)
        return function(*args, **kwargs)

    return called
