"""``aotpack trust``: the keys that this user trusts."""

from __future__ import annotations

from pathlib import Path

import click

from .console import json_option, print_json, say


@click.group("trust", short_help="The keys whose bundles may run native code.")
def command() -> None:
    """Add, list and remove the keys that you trust. Native code of a bundle that one of them signed may run."""


@command.command("add")
@click.argument("key", type=click.Path(path_type=Path))
@click.option("--name", help="What to call it. Default: the file's name.")
@json_option
def add(key: Path, name: str | None, as_json: bool) -> None:
    """Trust the public KEY (a file in PEM)."""
    from aotpack_loader.signing import key_store

    read = key_store.read_key(key)
    path = key_store.add(read, name or key.stem)
    if as_json:
        print_json({"name": name or key.stem, "id": read.id, "path": str(path)})
        return
    say(f"trusted: {name or key.stem}  {read.kind}  {read.id}")


@command.command("list")
@json_option
def list_keys(as_json: bool) -> None:
    """List the keys that you trust."""
    from aotpack_loader.signing import key_store

    keys = key_store.trusted_keys() if key_store.may_have_keys() else []
    if as_json:
        print_json({"keys": [{"name": key.name, "kind": key.kind, "id": key.id} for key in keys]})
        return
    for key in keys:
        say(f"{key.name}  {key.kind}  {key.id}")
    if not keys:
        say(f"No key is trusted. They are kept in {key_store.config_directory() / 'keys'}.", err=True)


@command.command("remove")
@click.argument("name")
@json_option
def remove(name: str, as_json: bool) -> None:
    """Trust the key called NAME (or with that identifier) no longer."""
    from aotpack_loader.signing import key_store

    key = key_store.remove(name)
    if as_json:
        print_json({"name": key.name, "id": key.id})
        return
    say(f"no longer trusted: {key.name}  {key.id}")
