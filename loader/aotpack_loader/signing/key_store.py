"""The keys that this user trusts: public keys in PEM in a directory that only this user may write to.

``AOTPACK_TRUST_KEYS`` names further files, separated by colons.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..archive.private import private_directory, require_unwritable, user_directory
from ..errors import AotpackError, DirectoryError

if TYPE_CHECKING:
    from .keys import PublicKey

CONFIG: Final = "AOTPACK_CONFIG"
KEYS: Final = "AOTPACK_TRUST_KEYS"
_SUFFIX: Final = ".pem"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_MAX_BYTES: Final = 64 << 10


def config_directory() -> Path:
    """Return ``$AOTPACK_CONFIG``, else ``$XDG_CONFIG_HOME/aotpack``, else ``~/.config/aotpack``."""
    return user_directory(CONFIG, "XDG_CONFIG_HOME", ".config")


def may_have_keys() -> bool:
    """Whether there can be a trusted key. It costs one system call, and imports nothing."""
    return bool(os.environ.get(KEYS)) or _folder().is_dir()


def trusted_keys() -> list[PublicKey]:
    """Return the keys of the directory by name, then those of ``AOTPACK_TRUST_KEYS``.

    Raises:
        DirectoryError: others may write to the directory or to a key.
        AotpackError: a file holds no key, or cannot be read.
    """
    found = [read_key(path, name=path.name.removesuffix(_SUFFIX)) for path in _files()]
    named = [part for part in os.environ.get(KEYS, "").split(os.pathsep) if part]
    return [*found, *(read_key(Path(part)) for part in named)]


def named_key(name: str) -> PublicKey:
    """Return a trusted key by its name or identifier, or the key in the file ``name``.

    Raises:
        AotpackError: there is none.
    """
    path = Path(name)
    if path.suffix or path.parent != Path() or path.exists():
        return read_key(path)
    for key in trusted_keys():
        if name in (key.name, key.id):
            return key
    raise AotpackError(f"There is no trusted key {name!r}.", hint="See `aotpack trust list`, or name a file in PEM.")


def read_key(path: Path, *, name: str = "") -> PublicKey:
    """Read a public key that only this user, or root, may write to.

    Raises:
        DirectoryError: others may write to it.
        AotpackError: it cannot be read, or holds no key.
    """
    from .keys import public_key

    return public_key(read_private(path), name or os.fspath(path))


def read_private(path: Path, variable: str = CONFIG, limit: int = _MAX_BYTES) -> bytes:
    """Read a small file on which decisions about trust depend.

    Raises:
        DirectoryError: it is a link or no file, or others may write to it.
        AotpackError: it cannot be read, or is larger than ``limit`` bytes.
    """
    try:
        require_unwritable(path, variable)
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AotpackError(f"The file {path} cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise DirectoryError(f"{path} is not a file.")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise DirectoryError(f"Other users may write to the file {path}.", hint=f"Check it, then run `chmod go-w {path}`.")
        data = os.read(handle, limit + 1)
    except OSError as error:
        raise AotpackError(f"The file {path} cannot be read: {error.strerror}.") from error
    finally:
        os.close(handle)
    if len(data) > limit:
        raise AotpackError(f"The file {path} is larger than {limit} bytes.")
    return data


def add(key: PublicKey, name: str) -> Path:
    """Trust ``key`` under ``name``.

    Raises:
        AotpackError: the name is taken or has other characters, or the key is there under another.
    """
    if not _NAME.fullmatch(name):
        raise AotpackError(f"{name!r} is no name of a key.", hint="Use up to 64 letters, digits and . _ @ + -.")
    for known in _stored():
        if known.id == key.id:
            raise AotpackError(f"This key is trusted already, as {known.name!r}.")
    folder = private_directory(private_directory(config_directory(), CONFIG) / "keys", CONFIG)
    path = folder / (name + _SUFFIX)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        raise AotpackError(f"There is a trusted key {name!r} already.", hint="Remove it first, or pass --name.") from None
    except OSError as error:
        raise DirectoryError(f"The key cannot be written to {path}: {error.strerror}.") from error
    with open(handle, "wb") as file:
        file.write(key.pem)
    return path


def remove(name: str) -> PublicKey:
    """Trust the key with this name or identifier no longer, and return it.

    Raises:
        AotpackError: there is none.
    """
    for key in _stored():
        if name in (key.name, key.id):
            (_folder() / (key.name + _SUFFIX)).unlink()
            return key
    raise AotpackError(f"There is no trusted key {name!r}.", hint="See `aotpack trust list`.")


def _stored() -> list[PublicKey]:
    return [read_key(path, name=path.name.removesuffix(_SUFFIX)) for path in _files()]


def _folder() -> Path:
    return config_directory() / "keys"


def _files() -> list[Path]:
    folder = _folder()
    with contextlib.suppress(FileNotFoundError):
        os.stat(folder)
        private_directory(folder.parent, CONFIG)  # stricter than for its ancestors
        private_directory(folder, CONFIG)
        found = sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIX))
        for path in found:
            if path.is_symlink():
                raise DirectoryError(f"The trusted key {path} is a symbolic link.", hint=os.strerror(errno.ELOOP))
        return found
    return []
