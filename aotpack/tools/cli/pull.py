"""``aotpack pull``: brings a bundle from a registry."""

from __future__ import annotations

import click
from rich.table import Table

from .console import json_option, plain, print_json, say, size_text, stdout
from .transfers import bars, connection_options, is_other_store, mirror_option, parsed, transport


@click.command("pull", short_help="Bring a bundle from a registry.")
@click.argument("reference", metavar="oci://HOST/REPOSITORY[:TAG][@DIGEST]|URL")
@click.option(
    "--target", "targets", multiple=True, metavar="TARGET", help="Bring this target only. May be repeated. Default: all."
)
@click.option("-o", "--out", metavar="PATH", help="Write a file, or a directory if PATH ends in /. Default: the cache alone.")
@click.option("--no-cache", is_flag=True, help="With -o: keep no layers in the cache, so that they take space once.")
@click.option("--locked", is_flag=True, help="Bring the digest that aotpack.lock has; fail if it has none.")
@click.option("--lock", is_flag=True, help="Write the digest to aotpack.lock.")
@mirror_option
@connection_options
@json_option
def command(
    *,
    reference: str,
    targets: tuple[str, ...],
    out: str | None,
    no_cache: bool,
    locked: bool,
    lock: bool,
    mirrors: tuple[str, ...],
    plain_http: tuple[str, ...],
    ca_file: str,
    concurrency: int,
    as_json: bool,
) -> None:
    """Bring a bundle from a registry into the cache, or to PATH. Every blob is checked while it is written.

    A URL of another store, such as s3://bucket/model.aotpack, is copied through fsspec.
    """
    from aotpack_loader.registry.lock import FILE_NAME, write_lock
    from aotpack_loader.registry.lock import locked as from_lock
    from aotpack_loader.registry.pull import by_name, pull

    if no_cache and out is None:
        raise click.UsageError("--no-cache goes with -o.")
    if is_other_store(reference):
        if targets or locked or lock:
            raise click.UsageError("--target, --lock and --locked are for registries.")
        _pull_file(reference, out, as_json=as_json)
        return
    name = parsed(reference)
    wanted = from_lock(name, FILE_NAME, required=True) if locked else name
    connections = transport(plain_http, ca_file, concurrency, mirrors=mirrors)
    with bars(quiet=as_json) as progress:
        pulled = pull(
            wanted, by_name(targets), out=out, keep=not no_cache, refresh=True, transport=connections, progress=progress
        )
    if lock:
        write_lock(FILE_NAME, name.name, pulled.digest)
    if as_json:
        print_json(pulled.to_json())
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("bundle", plain(str(pulled.path)))
    table.add_row("digest", pulled.digest)
    table.add_row("targets", plain(", ".join(pulled.targets)))
    table.add_row("fetched", f"{size_text(pulled.fetched)}, {size_text(pulled.reused)} were in the cache")
    stdout().print(table)


def _pull_file(url: str, out: str | None, *, as_json: bool) -> None:
    """Bring a bundle file from another store, and check every blob."""
    from pathlib import Path

    from aotpack_loader.archive.bundle import Bundle
    from aotpack_loader.registry.files import copy_file, fetch_file

    path = fetch_file(url)[0] if out is None else copy_file(url, Path(out))
    with Bundle.open(path) as bundle:
        if out is None:
            bundle.verify()
        found = {"reference": url, "bundle": str(path), "digest": bundle.digest, "targets": [*bundle.targets]}
    if as_json:
        print_json(found)
    else:
        say(f"{path}: {bundle.digest}")
