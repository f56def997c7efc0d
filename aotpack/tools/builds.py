"""The builds that Python code calls. They show their progress on a terminal and in a notebook."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from rich.console import Console

from ..pipeline import pipeline
from ..pipeline.progress import Observer, Silent
from .progress import Progress

F = TypeVar("F", bound=Callable[..., Any])


def _observer() -> Observer:
    """What shows a build where somebody looks."""
    console = Console(stderr=True)
    return Progress(console) if console.is_terminal or console.is_jupyter else Silent()


def _shown(function: F) -> F:
    @functools.wraps(function)
    def observed(*args: Any, observer: Observer | None = None, **options: Any) -> Any:
        return function(*args, observer=_observer() if observer is None else observer, **options)

    return observed  # type: ignore[return-value]


build = _shown(pipeline.build)
compile_bundle = _shown(pipeline.compile_bundle)
