"""Shows the progress of a build."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Console
from rich.status import Status
from rich.text import Text

from .report.text import time_text, visible_lines


class Progress:
    """An observer of a build.

    It prints a line per finished stage, and shows a spinner on a terminal.

    Args:
        console: where it prints.
        verbose: also print notes.
        spelled: how a message is written.
    """

    def __init__(self, console: Console, *, verbose: bool = False, spelled: Callable[[str], str] = str) -> None:
        self._console, self._spelled = console, spelled
        self._verbose = verbose
        self._running: list[_Running] = []
        self._status: Status | None = None

    @contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        start, mark = time.perf_counter(), "✗"
        self._running.append(_Running(f"{name} {detail}".strip(), start))
        self._spin()
        try:
            yield
            mark = "✓"
        finally:
            self._running.pop()
            indent = "  " * len(self._running)
            self._line(f"{indent}{mark} {name:<10} {time_text(time.perf_counter() - start):>8}  {detail}".rstrip())
            self._spin()

    def note(self, message: str) -> None:
        if self._verbose:
            self._line(f"  {self._spelled(message)}")

    def warn(self, message: str) -> None:
        self._line(f"warning: {self._spelled(message)}", style="yellow")

    def _line(self, line: str, style: str = "") -> None:
        self._console.print(Text(visible_lines(line), style=style), soft_wrap=True)

    def _spin(self) -> None:
        """Show the running stages in the spinner. Without a terminal, there is no spinner."""
        if not self._console.is_terminal:
            return
        if self._status is None and self._running:
            self._status = self._console.status(_Label(self._running))
            self._status.start()
        elif self._status is not None and self._running:
            self._status.update(_Label(self._running))
        elif self._status is not None:
            self._status.stop()
            self._status = None


class _Running(NamedTuple):
    name: str
    start: float


class _Label:
    """The running stages, with the seconds of the inner one. The spinner asks for it several times a second."""

    def __init__(self, running: Sequence[_Running]) -> None:
        self._names, self._inner = " > ".join(stage.name for stage in running), running[-1]

    def __rich__(self) -> Text:
        seconds = time.perf_counter() - self._inner.start
        slow = seconds > _SLOW and self._inner.name.startswith("compile")
        return Text(f"{self._names}  {seconds:.0f} s{_FIRST_BUILD if slow else ''}")


_SLOW = 10.0
_FIRST_BUILD = " (the first build on a machine also compiles torch's headers, for a minute or two)"
