"""``aotpack cache``: shows, verifies and prunes the local copies of bundles from registries."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from ..report.text import visible
from .console import json_option, print_json, say, size_text


@click.group("cache", short_help="Look after the local copies of bundles from registries.")
def command() -> None:
    """Look after the local copies of bundles from registries, in $AOTPACK_CACHE/registry."""


@command.command("list", short_help="Show the bundles in the cache.")
@json_option
def list_bundles(as_json: bool) -> None:
    """Show the bundles in the cache, the most recently used first."""
    from aotpack_loader.registry.store import BlobCache
    from aotpack_loader.registry.upkeep import bundles

    found = bundles(BlobCache())
    if as_json:
        print_json([asdict(entry) for entry in found])
        return
    for entry in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        say(f"{visible(entry.name)}  {visible(', '.join(entry.targets))}  {size_text(entry.size)}  used {used}\n  {entry.digest}")


@command.command("verify", short_help="Hash every blob in the cache.")
@json_option
@click.pass_context
def verify_blobs(ctx: click.Context, as_json: bool) -> None:
    """Hash every blob in the cache, and remove those that are damaged. The next pull brings them again."""
    from aotpack_loader.registry.store import BlobCache
    from aotpack_loader.registry.upkeep import verify

    wrong = verify(BlobCache())
    if as_json:
        print_json({"ok": not wrong, "removed": wrong})
    else:
        say("\n".join(f"{digest}: {what}; removed" for digest, what in wrong.items()) or "All blobs are as they should be.")
    if wrong:
        ctx.exit(1)


@command.command("prune", short_help="Remove bundles from the cache.")
@click.option("--unused-for", type=float, default=30, show_default=True, metavar="DAYS", help="Keep what was used since.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@json_option
def prune_bundles(unused_for: float, dry_run: bool, as_json: bool) -> None:
    """Remove bundles that were not pulled or loaded for some days, and blobs that no bundle has."""
    from aotpack_loader.registry.store import BlobCache
    from aotpack_loader.registry.upkeep import prune

    freed = prune(BlobCache(), unused_for=unused_for * 86400, dry_run=dry_run)
    if as_json:
        print_json(asdict(freed) | {"dryRun": dry_run})
    else:
        what = "Would remove" if dry_run else "Removed"
        say(f"{what} {len(freed.bundles)} bundles and {freed.blobs} blobs, {size_text(freed.size)}.")
