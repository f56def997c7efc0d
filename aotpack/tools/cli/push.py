"""``aotpack push``: sends a bundle to a registry."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from .console import json_option, plain, print_json, say, size_text, stdout
from .paths import BundlePath
from .transfers import bars, connection_options, is_other_store, parsed, transport


@click.command("push", short_help="Send a bundle to a registry.")
@click.argument("bundle", type=BundlePath())
@click.argument("reference", metavar="oci://HOST/REPOSITORY:TAG|URL")
@click.option(
    "--as",
    "profile",
    type=click.Choice(["artifact", "image"]),
    default="artifact",
    show_default=True,
    help="artifact: for pull and load. image: for machines that mount images as volumes.",
)
@click.option("--mount", "mounts", multiple=True, metavar="REPOSITORY", help="Take blobs that this repository has from there.")
@click.option(
    "--chunk-size", type=click.IntRange(0), default=0, metavar="BYTES", help="Split uploads into requests of this size."
)
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@click.option("--lock", is_flag=True, help="Write the digest to aotpack.lock.")
@connection_options
@json_option
def command(
    *,
    bundle: Path,
    reference: str,
    profile: str,
    mounts: tuple[str, ...],
    chunk_size: int,
    dry_run: bool,
    lock: bool,
    plain_http: tuple[str, ...],
    ca_file: str,
    concurrency: int,
    as_json: bool,
) -> None:
    """Send BUNDLE to a registry. Blobs that it has already are not sent again.

    A bundle file goes to a URL of another store, such as s3://bucket/model.aotpack, through fsspec.
    """
    from aotpack.registry.image import push_image
    from aotpack.registry.push import push

    if is_other_store(reference):
        if profile == "image" or mounts or chunk_size or dry_run or lock:
            raise click.UsageError("--as image, --mount, --chunk-size, --dry-run and --lock are for registries.")
        _push_file(bundle, reference, as_json=as_json)
        return
    name = parsed(reference)
    connections = transport(plain_http, ca_file, concurrency, chunk_size=chunk_size)
    if profile == "image" and (dry_run or mounts):
        raise click.UsageError("--as image goes with neither --dry-run nor --mount.")
    with bars(quiet=as_json) as progress:
        if profile == "image":
            report = push_image(bundle, name, transport=connections, progress=progress)
        else:
            report = push(bundle, name, transport=connections, progress=progress, mounts=mounts, dry_run=dry_run)
    if lock and not dry_run:
        from aotpack_loader.registry.lock import FILE_NAME, write_lock

        write_lock(FILE_NAME, name.name, report.digest)
    if as_json:
        print_json(report.to_json())
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("digest", report.digest)
    table.add_row("pinned", plain(str(name.at(report.digest))))
    for outcome, size in sorted(report.sizes.items()):
        table.add_row(outcome, f"{size_text(size)} in {len(report.blobs[outcome])} blobs")
    if report.attachments:
        table.add_row("attached", f"{len(report.attachments)} documents")
    stdout().print(table)


def _push_file(path: Path, url: str, *, as_json: bool) -> None:
    """Copy a bundle file to another store, after a look at its documents."""
    from aotpack_loader.archive.bundle import Bundle
    from aotpack_loader.registry.files import put_file

    if path.is_dir():
        raise click.UsageError(f"{path} is a directory. A store of files takes a bundle file: `aotpack build -o model.aotpack`.")
    with Bundle.open(path) as bundle:
        put_file(path, url)
        found = {"reference": url, "bundle": str(path), "digest": bundle.digest}
    if as_json:
        print_json(found)
    else:
        say(f"{url}: {bundle.digest}")
