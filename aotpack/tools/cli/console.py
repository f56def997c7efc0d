"""Shared by the commands: output, common options, and sizes and times as text."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from aotpack_loader.errors import AotpackError

from ..report.text import size_text as size_text
from ..report.text import time_text as time_text
from ..report.text import visible, visible_lines

F = TypeVar("F", bound=Callable[..., Any])

_JSON = "aotpack.json"
_VERBOSE = "aotpack.verbose"
_PIPE_WIDTH = 160
"""The number of columns if the output is not a terminal. A log must not truncate a digest."""


def stdout() -> Console:
    """Return the console for results.

    It is made at each call, so that it follows a redirected stream.
    """
    return _console(sys.stdout.isatty(), stderr=False)


def stderr() -> Console:
    """Return the console for progress."""
    return _console(sys.stderr.isatty(), stderr=True)


class _Console(Console):
    """A console on which invisible characters of every text are escapes. A terminal would obey them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible_lines(segment.text), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print. Lines of a file or a pipe have no spaces at their end."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(re.sub(r"[ ]+$", "", captured.get(), flags=re.MULTILINE))


def _console(terminal: bool, *, stderr: bool) -> Console:
    return _Console(stderr=stderr, width=None if terminal else _PIPE_WIDTH, markup=False, highlight=False, emoji=False)


def plain(text: str, style: str = "", *, lines: bool = False) -> Text:
    """Return text of a bundle for a table: invisible characters are escapes. ``lines``: line breaks are not."""
    return Text(visible_lines(text) if lines else visible(text), style)


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text. Invisible characters in it are escapes."""
    click.echo(visible_lines(text), err=err, nl=nl)


def print_bytes(data: bytes) -> None:
    """Print a binary file on stdout.

    Raises:
        AotpackError: stdout is a terminal.
    """
    if sys.stdout.isatty():
        raise AotpackError("The file is binary, and stdout is a terminal.", hint="Write it to a file: > FILE")
    click.echo(data, nl=False)


def print_json(value: object) -> None:
    """Print one JSON document on stdout. Invisible characters in its strings are escapes of JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    hidden = {c for c in set(text) if visible_lines(c) != c}
    click.echo(text.translate({ord(c): json.dumps(c)[1:-1] for c in hidden}))


def write_page(path: str | Path, page: str) -> None:
    """Write an HTML page to a file, and say on stderr where it is: stdout may hold JSON."""
    try:
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise AotpackError(f"The page cannot be written to {path}: {error.strerror}.") from error
    say(f"{path}: {size_text(len(page.encode()))}", err=True)


def json_option(function: F) -> F:
    """Add ``--json``: the result or the error is one JSON document on stdout."""
    return click.option(
        "--json", "as_json", is_flag=True, callback=_remember(_JSON), is_eager=True, help="Print JSON on stdout."
    )(function)


def verbose_option(function: F) -> F:
    """Add ``-v``: more output, and the cause of an error with its traceback."""
    return click.option("-v", "--verbose", is_flag=True, callback=_remember(_VERBOSE), is_eager=True, help="Say more.")(function)


def trust_option(function: F) -> F:
    """Add ``--trust``, in the forms that :mod:`aotpack_loader.trust` takes."""
    return click.option(
        "--trust",
        "trust",
        multiple=True,
        metavar="DIGEST|key:KEY|all",
        callback=_trust,
        help="Allow native code of the bundle with this digest, of bundles that this key signed, or of any. May be repeated.",
    )(function)


def device_option(function: F) -> F:
    """Add ``--device``."""
    text = "Load onto this device of torch: cuda, cuda:1, mps. Portable graphs run there. Default: the CPU."
    return click.option("--device", metavar="DEVICE", help=text)(function)


def passphrase_of(*, confirm: bool = False) -> bytes:
    """Return the passphrase of a private key: ``$AOTPACK_PASSPHRASE``, else what is typed."""
    value = os.environ.get("AOTPACK_PASSPHRASE")
    if value is None:
        value = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return str(value).encode()


def as_options(text: str, command: click.Command | None) -> str:
    """Return a message with arguments of the Python API (``branches="example"``) written as options of ``command``."""
    options = {p.name: p.opts[-1] for p in command.params if isinstance(p, click.Option)} if command else {}

    def spelled(found: re.Match[str]) -> str:
        option = options.get(found["name"])
        if option is None:
            return found[0]
        values = re.findall(r"[\w:.=-]+", found["value"])
        return option if values == ["True"] else " ".join(f"{option} {value}" for value in values)

    return _ARGUMENT.sub(spelled, text)


_ARGUMENT = re.compile(r"""\b(?P<name>[a-z_]+)=(?P<value>"[^"]*"|'[^']*'|True\b|\([^()]*\)|\[[^][]*\])""")


def wants_json(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(_JSON))


def wants_tracebacks(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(_VERBOSE))


def print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Callback of ``--version``.

    It reads the installed versions without importing the packages.
    """
    if value and not ctx.resilient_parsing:
        names = ("aotpack", "aotpack-loader", "torch")
        click.echo("\n".join(f"{name} {_version(name)}" for name in names))
        ctx.exit()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(not installed)"


def _remember(key: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    """Store a flag in ``meta``, where the group reads it when it shows an error.

    Nested contexts share ``meta``.
    """

    def callback(ctx: click.Context, parameter: click.Parameter, value: bool) -> bool:
        ctx.meta[key] = value
        return value

    return callback


def _trust(ctx: click.Context, parameter: click.Parameter, value: Sequence[str]) -> str | tuple[str, ...] | None:
    if "all" in value:
        return "all"
    return tuple(value) or None
