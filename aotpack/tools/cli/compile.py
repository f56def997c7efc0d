"""``aotpack compile``: compiles the graphs of a bundle for further targets, without the model's source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .build_output import (
    TARGETS_HELP,
    build_option,
    directory_option,
    layout_of,
    no_cache_option,
    papers_options,
    print_report,
    progress_shown,
    specialize_option,
    tune_option,
    untested_torch_option,
)
from .console import json_option, trust_option, verbose_option
from .importing import import_modules, import_option
from .paths import BundlePath


@click.command("compile", short_help="Add targets to a bundle.")
@click.argument("bundle", type=BundlePath())
@click.option("-o", "--out", required=True, metavar="PATH", help="The bundle to write; it may be BUNDLE itself.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    required=True,
    metavar="NAME",
    help=TARGETS_HELP,
)
@import_option
@build_option("--self-test", is_flag=True, help="Run the recorded self-test on the new targets before anything is written.")
@tune_option
@papers_options
@specialize_option
@untested_torch_option
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
    progress = progress_shown(verbose=verbose)
    with progress.stage("import", " ".join(modules)):
        import aotpack

        subclasses = import_modules(modules)
    report = aotpack.compile_bundle(
        bundle,
        out=out,
        layout=layout_of(out, directory=directory),
        cache=not no_cache,
        subclasses=subclasses,
        observer=progress,
        **options,
    )
    print_report(report, as_json=as_json)
