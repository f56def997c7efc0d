"""``aotpack compile``: further targets for a bundle, from its graphs alone."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import click

from aotpack_loader.errors import EntryError, Problem

from .console import json_option, stderr, trust_option, verbose_option
from .making import TARGETS_HELP, Progress, directory_option, layout_of, no_cache_option, print_report, specialize_option


@click.command("compile", short_help="Add targets to a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, metavar="PATH", help="The bundle to write; it may be BUNDLE itself.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    required=True,
    metavar="NAME",
    help=TARGETS_HELP,
)
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Python module to import first, which registers operators that the bundle requires. May be repeated.",
)
@click.option("--self-test", is_flag=True, help="Run the recorded self-test on the new targets before anything is written.")
@specialize_option
@no_cache_option
@directory_option
@trust_option
@json_option
@verbose_option
def command(
    bundle: Path,
    out: str,
    modules: tuple[str, ...],
    directory: bool,
    no_cache: bool,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Add targets to BUNDLE, compiled from the graphs in it: the model's source is not needed.

    What is in BUNDLE stays as it is. If this user trusts it, the new bundle's native code is trusted as well.
    """
    progress = Progress(stderr(), verbose=verbose)
    with progress.stage("import", " ".join(modules)):
        import aotpack

        _import(modules)
    report = aotpack.compile_bundle(
        bundle,
        out=out,
        layout=layout_of(out, directory=directory),
        cache=not no_cache,
        observer=progress,
        **options,
    )
    print_report(report, as_json=as_json)


def _import(modules: tuple[str, ...]) -> None:
    """Import the user's modules, which may lie in the working directory.

    Raises:
        EntryError: one cannot be imported.
    """
    from aotpack.entry import directory_on_path

    with directory_on_path(Path(os.getcwd(), "-")):
        for name in modules:
            try:
                importlib.import_module(name)
            except Exception as error:
                problem = Problem(name, f"{type(error).__name__}: {error}")
                raise EntryError("A module that --import names cannot be imported.", [problem]) from error
