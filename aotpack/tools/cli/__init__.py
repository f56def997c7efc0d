"""The ``aotpack`` command. Each subcommand has its own file, and these contain presentation only.

Exit codes: 0 for success, 1 for an :class:`AotpackError` or a failed check, 2 for wrong usage, 130
if interrupted. Nothing here imports torch before a command needs it.
"""

from __future__ import annotations

import atexit
import gc
import traceback
import warnings

import click

from aotpack_loader.errors import AotpackError

from . import (
    bench,
    build,
    cache,
    compile,
    copy,
    diff,
    export_weights,
    inspect,
    keygen,
    list,
    profile,
    pull,
    push,
    run,
    sign,
    train,
    trust,
    verify,
)
from .console import as_options, print_json, print_version, say, wants_json, wants_tracebacks


class _Group(click.Group):
    """A command group that shows our errors as text, or as JSON with ``--json``, instead of a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AotpackError as error:
            _show(error, ctx)
            ctx.exit(1)
        except BrokenPipeError:
            raise
        except OSError as error:
            _show(AotpackError(str(error)), ctx)
            ctx.exit(1)
        except KeyboardInterrupt:
            say("Interrupted.", err=True)
            ctx.exit(130)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=print_version, help="Show versions.")
def main() -> None:
    """Packages that carry a trainable, already compiled PyTorch model."""
    # Python's last collections would walk a million objects, which takes over two seconds after a build of GPT-2.
    atexit.register(gc.freeze)
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # nothing here needs it


_MODULES = (
    build, compile, inspect, diff, verify, run, train, export_weights, bench, profile,
    push, pull, copy, list, cache, keygen, sign, trust,
)  # fmt: skip
for _module in _MODULES:
    main.add_command(_module.command)


def _show(error: AotpackError, ctx: click.Context) -> None:
    if wants_tracebacks(ctx) and error.__cause__ is not None:
        say("".join(traceback.format_exception(error.__cause__)), err=True, nl=False)
    command = main.commands.get(ctx.invoked_subcommand or "")
    summary, hint = as_options(error.summary, command), as_options(error.hint, command)
    if wants_json(ctx):
        problems = [{"where": problem.where, "message": problem.message} for problem in error.problems]
        print_json({"error": {"kind": type(error).__name__, "message": summary, "problems": problems, "hint": hint}})
        return
    click.secho("error: ", fg="red", bold=True, err=True, nl=False)
    say(summary, err=True)
    for problem in error.problems:
        say(f"  {problem}", err=True)
    if hint:
        say(hint, err=True)
