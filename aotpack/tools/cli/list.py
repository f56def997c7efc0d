"""``aotpack list``: shows the tags of a repository."""

from __future__ import annotations

import click

from .console import json_option, print_json, say
from .transfers import connection_options, parsed, transport


@click.command("list", short_help="Show the tags of a repository.")
@click.argument("reference", metavar="oci://HOST/REPOSITORY")
@connection_options
@json_option
def command(reference: str, plain_http: tuple[str, ...], ca_file: str, concurrency: int, as_json: bool) -> None:
    """Show the tags of a repository, one a line."""
    from aotpack_loader.registry.client import Repository

    name = parsed(reference)
    tags = Repository.of(transport(plain_http, ca_file, concurrency), name).tags()
    if as_json:
        print_json({"repository": f"oci://{name.host}/{name.repository}", "tags": tags})
    else:
        say("\n".join(tags))
