"""Shared by the commands that talk to registries: their options, references, and progress bars."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from .console import F, stderr

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle
    from aotpack_loader.format.schema import Descriptor
    from aotpack_loader.registry.progress import Outcome
    from aotpack_loader.registry.reference import Reference
    from aotpack_loader.registry.transport import Transport


def connection_options(function: F) -> F:
    """Add the options of connections, which :func:`transport` takes."""
    options = (
        click.option("--plain-http", multiple=True, metavar="HOST", help="Reach this registry without TLS. May be repeated."),
        click.option("--ca-file", default="", metavar="FILE", help="Certificate authorities (PEM), instead of the system's."),
        click.option("--concurrency", type=click.IntRange(1, 64), default=4, show_default=True, help="Transfers at a time."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def mirror_option(function: F) -> F:
    """Add ``--mirror``."""
    text = "Ask this mirror of a registry first. May be repeated."
    return click.option("--mirror", "mirrors", multiple=True, metavar="HOST=MIRROR", help=text)(function)


def transport(
    plain_http: Sequence[str], ca_file: str, concurrency: int, *, mirrors: Sequence[str] = (), chunk_size: int = 0
) -> Transport:
    """Return connections with these options."""
    from aotpack_loader.registry.settings import Settings
    from aotpack_loader.registry.transport import Transport

    settings = Settings.from_environment(plain_http=plain_http, ca_file=ca_file, mirrors=mirrors)
    return Transport(replace(settings, concurrency=concurrency, chunk_size=chunk_size))


def parsed(text: str) -> Reference:
    """Return the reference that ``text`` is."""
    from aotpack_loader.registry.reference import Reference

    return Reference.parse(text)


def is_other_store(text: str) -> bool:
    """Whether a reference is a URL of a store of files, such as ``s3://``."""
    return "://" in text and not text.startswith("oci://")


def open_bundle(text: str, plain_http: Sequence[str], ca_file: str, concurrency: int, mirrors: Sequence[str]) -> Bundle:
    """Open a bundle to look at it: a path, a URL of a store of files, or a reference of a registry.

    Of a bundle in a registry only the documents are fetched. A file of a store is copied to the cache.
    """
    from aotpack_loader.archive.bundle import Bundle

    if "://" not in text:
        return Bundle.open(text)
    if is_other_store(text):
        from aotpack_loader.registry.files import fetch_file

        return Bundle.open(fetch_file(text)[0])
    from aotpack_loader.registry.pull import Puller

    return Puller(parsed(text), transport=transport(plain_http, ca_file, concurrency, mirrors=mirrors)).documents()


class Bars:
    """An observer that draws a bar for each large blob that moves."""

    _LEAST = 1_000_000

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def begin(self, descriptor: Descriptor) -> None:
        pass

    def advance(self, descriptor: Descriptor, count: int) -> None:
        if descriptor.size < self._LEAST:
            return
        with self._lock:
            if descriptor.digest not in self._tasks:
                kind = descriptor.media_type.removeprefix("application/vnd.aotpack.")
                label = f"{kind} {descriptor.digest[7:19]}"
                self._tasks[descriptor.digest] = self._progress.add_task(label, total=descriptor.size)
        self._progress.advance(self._tasks[descriptor.digest], count)

    def end(self, descriptor: Descriptor, outcome: Outcome) -> None:
        task = self._tasks.get(descriptor.digest)
        if task is not None:
            self._progress.update(task, completed=descriptor.size)


@contextmanager
def bars(*, quiet: bool) -> Iterator[Bars | None]:
    """Show progress bars on a terminal. None: nothing is shown."""
    console = stderr()
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bars(progress)
