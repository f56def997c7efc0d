"""``aotpack sign``: signs a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .console import json_option, passphrase_of, print_json, say
from .paths import BundlePath

if TYPE_CHECKING:
    from aotpack_loader.signing.keys import PrivateKey


@click.command("sign", short_help="Sign a bundle.")
@click.argument("bundle", type=BundlePath())
@click.option("--key", "key_file", required=True, type=click.Path(path_type=Path), help="The private key, in PEM.")
@click.option(
    "--model-signing",
    "detached",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a signature of OpenSSF Model Signing to FILE instead (a key of --kind ecdsa-p256).",
)
@click.option("--statements", is_flag=True, help="Also sign the attached statements, such as provenance.")
@json_option
def command(bundle: Path, key_file: Path, detached: Path | None, statements: bool, as_json: bool) -> None:
    """Sign BUNDLE's digest and keep the signature in BUNDLE, whose digest stays the same.

    Weights are not read. `aotpack verify` checks that a bundle is whole.
    """
    key = read_private_key(key_file)
    if detached is not None:
        _sign_detached(bundle, key, detached, as_json=as_json)
        return
    from aotpack.signing import sign

    signed = sign(bundle, key, statements=statements)
    if as_json:
        made = {"attachment": signed.attachment, "statements": list(signed.statements)}
        print_json({"bundle": str(bundle), "digest": signed.digest, "key": signed.key.id, **made})
        return
    say(f"signed {signed.digest} with the key {signed.key.id}")
    for digest in signed.statements:
        say(f"signed a statement about it: {digest}")


def _sign_detached(bundle: Path, key: PrivateKey, out: Path, *, as_json: bool) -> None:
    from aotpack.signing.model_signing import sign_detached

    out.write_bytes(sign_detached(bundle, key))
    if as_json:
        print_json({"bundle": str(bundle), "key": key.public.id, "signature": str(out)})
        return
    say(f"signed {bundle} with the key {key.public.id}: {out}")


def read_private_key(path: Path) -> PrivateKey:
    """Read a private key. The passphrase of an encrypted one is taken from the environment or the terminal."""
    from aotpack_loader.signing.keys import private_key

    from ...signing.files import read_small

    pem = read_small(path, "private key")
    return private_key(pem, str(path), passphrase_of() if b"ENCRYPTED" in pem else None)
