"""Reports a build's progress while it runs, and its result afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Observer(Protocol):
    """Is notified of the progress of a build."""

    def stage(self, name: str, detail: str = "") -> AbstractContextManager[None]:
        """Return a context manager that is entered when a stage starts and left when it ends."""

    def note(self, message: str) -> None:
        """Report a choice that the build made."""

    def warn(self, message: str) -> None:
        """Report something that the user should know."""


class Silent:
    """An observer that shows nothing."""

    def stage(self, name: str, detail: str = "") -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def note(self, message: str) -> None:
        """Do nothing."""

    def warn(self, message: str) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class StageTime:
    """A stage and how long it took, in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class BuildReport:
    """What a build made.

    ``size`` is in bytes. ``saved_bytes`` are the bytes of activations that each method saves for
    its backward at the example's sizes.
    """

    out: Path
    digest: str
    size: int
    stages: tuple[StageTime, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    targets: tuple[str, ...]
    methods: tuple[str, ...]
    saved_bytes: dict[str, int] = field(default_factory=dict)
    cache_hits: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain data for ``--json``."""
        return {**asdict(self), "out": str(self.out)}


class Run:
    """One run of the pipeline. It times the stages and collects notes and warnings."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer or Silent()
        self.stages: list[StageTime] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self._said: set[str] = set()

    @contextlib.contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        start = time.perf_counter()
        with self._observer.stage(name, detail):
            yield
        self.stages.append(StageTime(f"{name} {detail}".strip(), time.perf_counter() - start))

    def note(self, message: str) -> None:
        """Tell the user something. A message is shown once."""
        if message not in self.notes:
            self.notes.append(message)
            self._observer.note(message)

    def warn(self, message: str, *, once: str = "") -> None:
        """Warn the user. Of equal messages, and of those with the same ``once``, only the first is shown."""
        key = once or message
        if key in self._said:
            return
        self._said.add(key)
        self.warnings.append(message)
        self._observer.warn(message)
