"""What is told about a build while it runs, and afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Observer(Protocol):
    """Watches a build."""

    def stage(self, name: str, detail: str = "") -> AbstractContextManager[None]:
        """Entered when a stage starts, left when it ends."""

    def note(self, message: str) -> None:
        """A choice the build made."""

    def warn(self, message: str) -> None:
        """Something the user should know."""


class Silent:
    """An observer that shows nothing."""

    def stage(self, name: str, detail: str = "") -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def note(self, message: str) -> None:
        """Nothing."""

    def warn(self, message: str) -> None:
        """Nothing."""


@dataclass(frozen=True)
class StageTime:
    """A stage and how long it took, in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class BuildReport:
    """What a build made: ``size`` in bytes, ``saved_bytes`` of activations a train step keeps at the example's sizes."""

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
        """Plain data for ``--json``."""
        return {**asdict(self), "out": str(self.out)}


class Run:
    """One run of the pipeline: times its stages, collects what was noted."""

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
        self.notes.append(message)
        self._observer.note(message)

    def warn(self, message: str, *, once: str = "") -> None:
        """Warn the user; of messages with equal ``once`` (the same for another method) only the first."""
        if once and once in self._said:
            return
        self._said.add(once)
        self.warnings.append(message)
        self._observer.warn(message)
