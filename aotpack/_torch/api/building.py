"""Lets one thread of the process build at a time, and tells which.

A build replaces functions of torch. The replacements act in the thread that builds alone
(:mod:`.patching`). A thread that does a part of a build has a copy of the build's context
(``contextvars``). Torch compiles in one thread at a time, too; builds take the same lock, because
compilers read values that a build replaces for all threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from torch._dynamo.convert_frame import compile_lock


@dataclass(frozen=True, eq=False)
class Replaced:
    """Something that a build has replaced: what has it, under which name, and how to restore it."""

    owner: object
    name: object
    restore: Callable[[], None]

    def is_of(self, owner: object, name: object) -> bool:
        return self.owner is owner and self.name == name


class Build:
    """A running build, and what it has replaced, in order."""

    def __init__(self) -> None:
        self.runs = True
        self._replaced: list[Replaced] = []

    def add(self, replaced: Replaced) -> None:
        """Note what is about to be replaced."""
        self._replaced.append(replaced)

    def restore(self, replaced: Replaced) -> None:
        """Restore what was there before, past later replacements of the same that an interrupt has left."""
        if replaced not in self._replaced:
            return
        position = self._replaced.index(replaced)
        for later in [each for each in self._replaced[position:] if each.is_of(replaced.owner, replaced.name)][::-1]:
            later.restore()
            self._replaced.remove(later)

    def end(self) -> None:
        """Restore all that is still replaced. An interrupt, which may come anywhere, is raised afterwards."""
        self.runs = False
        interrupt: KeyboardInterrupt | None = None
        while self._replaced:
            try:
                self._replaced[-1].restore()
                self._replaced.pop()
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


_build: ContextVar[Build | None] = ContextVar("aotpack_build", default=None)


current_build: Final = _build.get
"""The build that this thread takes part in, or null; it may have ended."""


def builds() -> bool:
    """Whether this thread builds, or does a part of a build."""
    build = _build.get()
    return build is not None and build.runs


@contextlib.contextmanager
def one_build() -> Iterator[Build]:
    """Let this thread build inside the block, once no other thread builds or compiles.

    Inside a build, the block is a part of it.
    """
    outer = _build.get()
    if outer is not None and outer.runs:
        yield outer
        return
    build = Build()
    with compile_lock:
        try:
            _build.set(build)
            yield build
        finally:
            build.end()
            _build.set(outer)
