"""Writes docs/reference/command-line.md from the command line itself.

    python -m devtools.commands            writes the page
    python -m devtools.commands --check    exit code 1 if the page differs

tests/test_cli.py compares the page too.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator

import click

from aotpack.tools.cli import main as group

from .paths import ROOT

PAGE = ROOT / "docs/reference/command-line.md"
_HEAD = """# Command line

Generated from the commands by `python -m devtools.commands`. `aotpack COMMAND --help` shows the same.
Every command ends with code 0 for success, 1 for an error or a failed check, and 2 for wrong usage.
`--json` prints the result, or the error, as one JSON document.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join([_HEAD, *_commands(group, "aotpack")])


def _commands(command: click.Command, name: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        if name != "aotpack":
            yield from _about(command, name)
        for each in sorted(command.commands):
            yield from _commands(command.commands[each], f"{name} {each}")
        return
    yield from _about(command, name)
    yield from _options(command)


def _about(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield f"## {name}\n"
    yield f"```text\n{usage}\n```\n"
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    yield f"{text}\n"


def _options(command: click.Command) -> Iterator[str]:
    rows = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    if not rows:
        return
    yield "| option | meaning |\n| --- | --- |"
    for option in rows:
        record = option.get_help_record(click.Context(command))
        if record is not None:
            names, text = (" ".join(part.split()).replace("|", "\\|") for part in record)
            yield f"| `{names}` | {text.replace('<', '&lt;')} |"
    yield ""


def main() -> int:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(prog="python -m devtools.commands", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    if PAGE.read_text() == page():
        return 0
    print(f"{PAGE.relative_to(ROOT)} is out of date: python -m devtools.commands", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
