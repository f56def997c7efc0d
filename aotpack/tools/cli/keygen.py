"""``aotpack keygen``: makes a pair of keys that signs bundles."""

from __future__ import annotations

from pathlib import Path

import click

from .console import json_option, passphrase_of, print_json, say


@click.command("keygen", short_help="Make keys that sign bundles.")
@click.option("-o", "--out", default="aotpack.key", show_default=True, type=click.Path(path_type=Path), help="The private key.")
@click.option("--kind", type=click.Choice(["ed25519", "ecdsa-p256"]), default="ed25519", show_default=True)
@click.option("--passphrase", is_flag=True, help="Encrypt the private key: with $AOTPACK_PASSPHRASE, else what you type.")
@json_option
def command(out: Path, kind: str, passphrase: bool, as_json: bool) -> None:
    """Make a private key and, beside it, its public key with the ending .pub.

    Use ecdsa-p256 for keys that OpenSSF Model Signing verifies too.
    """
    from aotpack.signing import write_keys

    key, private, public = write_keys(kind, out, passphrase_of(confirm=True) if passphrase else None)
    if as_json:
        print_json({"private": str(private), "public": str(public), "id": key.id, "kind": key.kind})
        return
    say(f"private key  {private}  (keep it secret)")
    say(f"public key   {public}")
    say(f"identifier   {key.id}")
