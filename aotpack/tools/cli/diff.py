"""``aotpack diff``: says what changed between two bundles."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aotpack_loader.format.events import ROOT

from ..report.diff import Change, Difference, compare
from .console import json_option, plain, print_json, size_text, stdout, write_page
from .transfers import connection_options, mirror_option, open_bundle

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle

    from ..report.modules import ModuleChange
    from ..report.weights import WeightChange


@click.command("diff", short_help="Say what changed between two bundles.")
@click.argument("first")
@click.argument("second")
@click.option("--no-weights", is_flag=True, help="Do not compare the values of weights, which reads them all.")
@click.option("--html", "page", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write a page to FILE.")
@mirror_option
@connection_options
@json_option
def command(
    *,
    first: str,
    second: str,
    no_weights: bool,
    page: str | None,
    mirrors: tuple[str, ...],
    plain_http: tuple[str, ...],
    ca_file: str,
    concurrency: int,
    as_json: bool,
) -> None:
    """Say what changed from bundle FIRST to bundle SECOND.

    Exit code 0: calls and checkpoints of FIRST fit SECOND. 1: they do not, or a bundle cannot be
    read. Bundles are files, directories, oci://HOST/REPOSITORY:TAG, or URLs such as
    s3://bucket/model.aotpack. Of those in a registry the weights are not compared.
    """
    remote = any(path.startswith("oci://") for path in (first, second))
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_bundle(path, plain_http, ca_file, concurrency, mirrors)) for path in (first, second)]
        found = compare(*opened)
        weights = None if no_weights or remote else _weights(*opened)
        if page is not None:
            from ..report.html.diff import diff_page

            write_page(page, diff_page(opened[0], opened[1], (first, second), found, weights))
    if as_json:
        values = None if weights is None else [asdict(change) for change in weights]
        verdict = {"calls_fit": found.calls_fit, "checkpoints_fit": found.checkpoints_fit}
        print_json({"first": first, "second": second, **verdict, **asdict(found), "weights": values})
    elif page is None:
        _show(stdout(), found, weights)
    else:
        _show_verdict(stdout(), found)
    if not (found.calls_fit and found.checkpoints_fit):
        click.get_current_context().exit(1)


def _weights(first: Bundle, second: Bundle) -> list[WeightChange]:
    from ..report.weights import compare_weights  # imports torch

    return list(compare_weights(first, second))


def _show(console: Console, found: Difference, weights: Sequence[WeightChange] | None) -> None:
    _show_verdict(console, found)
    if found.equal:
        return
    for title, changes in (
        ("calls", found.calls),
        ("state", found.state),
        ("graphs", found.graphs),
        ("targets", found.targets),
        ("built with", found.producer),
    ):
        if changes:
            console.print()
            console.print(_table(title, changes))
    if found.modules:
        console.print()
        console.print(_module_table(found.modules))
    if weights is not None:
        console.print()
        console.print(_weight_table(weights) if weights else "All weights that both have are equal.")
    console.print()
    sharing = found.sharing
    console.print(
        f"{size_text(sharing.shared)} are in both, of {size_text(sharing.first)} and {size_text(sharing.second)}: "
        f"a registry that has the first needs {size_text(sharing.second - sharing.shared)} for the second."
    )


def _show_verdict(console: Console, found: Difference) -> None:
    if found.equal:
        console.print("The bundles are equal: they have one digest.")
        return
    console.print(_verdict("Calls", found.calls_fit))
    console.print(_verdict("Checkpoints", found.checkpoints_fit))


def _verdict(subject: str, fits: bool) -> Text:
    return plain(f"{subject} of the first bundle {'fit' if fits else 'do not fit'} the second.", "green" if fits else "bold red")


def _table(title: str, changes: Sequence[Change]) -> Table:
    table = Table(title, "", "", box=None, pad_edge=False, header_style="bold")
    for change in sorted(changes, key=lambda one: not one.breaks):
        table.add_row(plain(change.where), plain(change.text), plain("does not fit", "red") if change.breaks else "")
    return table


def _module_table(changes: Sequence[ModuleChange]) -> Table:
    table = Table("graph", "module", "operators", "saved", box=None, pad_edge=False, header_style="bold")
    for change in changes[:_SHOWN]:
        parts = [("+", change.added), ("-", change.removed), ("±", change.moved)]
        counts = ", ".join(f"{sign}{count} {op}" for sign, found in parts for op, count in found.items())
        before, after = change.saved
        saved = "" if before == after else f"{size_text(before)}, now {size_text(after)}"
        table.add_row(plain(change.graph), plain(change.module or ROOT), plain(counts), saved)
    if len(changes) > _SHOWN:
        table.add_row(f"and {len(changes) - _SHOWN} more", "", "", "")
    return table


_SHOWN = 20


def _weight_table(changes: Sequence[WeightChange]) -> Table:
    table = Table("weights", "largest difference", "relative", box=None, pad_edge=False, header_style="bold")
    for change in sorted(changes, key=lambda one: -one.relative)[:_SHOWN]:
        table.add_row(plain(change.name), f"{change.largest:.3g}", f"{change.relative:.2%}")
    if len(changes) > _SHOWN:
        table.add_row(f"and {len(changes) - _SHOWN} more", "", "")
    return table
