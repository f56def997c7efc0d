"""``aotpack copy``: copies a bundle from one registry to another."""

from __future__ import annotations

import click

from .console import json_option, print_json, say, size_text
from .transfers import bars, connection_options, mirror_option, parsed, transport


@click.command("copy", short_help="Copy a bundle from one registry to another.")
@click.argument("source", metavar="oci://HOST/REPOSITORY:TAG")
@click.argument("destination", metavar="oci://HOST/REPOSITORY:TAG")
@mirror_option
@connection_options
@json_option
def command(
    source: str,
    destination: str,
    mirrors: tuple[str, ...],
    plain_http: tuple[str, ...],
    ca_file: str,
    concurrency: int,
    as_json: bool,
) -> None:
    """Copy a bundle with all its targets. Within one registry its blobs are mounted, and do not travel."""
    from aotpack.registry.copy import copy

    connections = transport(plain_http, ca_file, concurrency, mirrors=mirrors)
    with bars(quiet=as_json) as progress:
        report = copy(parsed(source), parsed(destination), transport=connections, progress=progress)
    if as_json:
        print_json(report.to_json())
        return
    say(report.digest)
    for outcome, size in sorted(report.sizes.items()):
        say(f"{outcome} {size_text(size)} in {len(report.blobs[outcome])} blobs")
