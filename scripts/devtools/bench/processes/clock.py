"""Measures the time in named functions of the loader, excluding the time in other named functions that they call."""

import functools
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Functions = Sequence[tuple[str, str]]
"""Modules, and the path of a function in each: ``Bundle.open``."""


class Clock:
    """Wraps the functions of ``phases``, which maps a name to the functions whose time it sums.

    A function that the loader no longer has is an error. ``seconds`` has the results by phase. A
    call through a wrapper costs about a microsecond, which counts for the caller.
    """

    def __init__(self, phases: Mapping[str, Functions]) -> None:
        self.seconds = dict.fromkeys(phases, 0.0)
        self._inside: list[float] = []
        for phase, functions in phases.items():
            for module, path in functions:
                self._install(phase, importlib.import_module(module), path)

    def _install(self, phase: str, owner: Any, path: str) -> None:
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        found = owner.__dict__[name]
        kind = type(found) if isinstance(found, classmethod | staticmethod) else None
        wrapped = self._wrap(phase, found if kind is None else found.__func__)
        setattr(owner, name, wrapped if kind is None else kind(wrapped))

    def _wrap(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.perf_counter() - begin
                self.seconds[phase] += whole - self._inside.pop()
                if self._inside:
                    self._inside[-1] += whole

        return timed
