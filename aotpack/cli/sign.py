"""``aotpack sign``: signs a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .console import json_option, passphrase_of, print_json

if TYPE_CHECKING:
    from aotpack_loader.signing.keys import PrivateKey


@click.command("sign", short_help="Sign a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--key", "key_file", required=True, type=click.Path(path_type=Path), help="The private key, in PEM.")
@json_option
def command(bundle: Path, key_file: Path, as_json: bool) -> None:
    """Sign BUNDLE's digest and keep the signature in BUNDLE, whose digest stays the same.

    Weights are not read. `aotpack verify` checks that a bundle is whole.
    """
    from aotpack.signing import sign

    signed = sign(bundle, read_private_key(key_file))
    if as_json:
        print_json({"bundle": str(bundle), "digest": signed.digest, "key": signed.key.id, "attachment": signed.attachment})
        return
    click.echo(f"signed {signed.digest} with the key {signed.key.id}")


def read_private_key(path: Path) -> PrivateKey:
    """Read a private key. The passphrase of an encrypted one is taken from the environment or the terminal."""
    from aotpack_loader.errors import AotpackError
    from aotpack_loader.signing.keys import private_key

    try:
        pem = path.read_bytes()
    except OSError as error:
        raise AotpackError(f"The private key {path} cannot be read: {error.strerror}.") from error
    return private_key(pem, str(path), passphrase_of() if b"ENCRYPTED" in pem else None)
