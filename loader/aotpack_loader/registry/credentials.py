"""Credentials of registries: files of docker, podman and skopeo, and credential helpers.

Nothing here prints, logs or stores a secret. A :class:`Credential` does not show its secret either.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import RegistryAuthError

_DOCKER_HUB = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"
_HELPER_SECONDS = 30
_HELPER_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Credential:
    """A user name and a password, or an identity token."""

    user: str
    secret: str = field(repr=False)

    @property
    def is_token(self) -> bool:
        """Whether the secret is an identity token (an OAuth2 refresh token) rather than a password."""
        return self.user == _TOKEN_USER

    def basic(self) -> str:
        """Return the value of an ``Authorization`` header."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.secret}".encode()).decode()


def find_credential(host: str, repository: str = "") -> Credential | None:
    """Return the user's credential for a registry, or None: anonymous.

    A file may name a repository or a prefix of it (``host/team``). The longest name wins.

    Raises:
        RegistryAuthError: a file is unreadable, or a credential helper failed.
    """
    for path in _files():
        found = _from_file(path, host, repository)
        if found is not None:
            return found
    return None


def _files() -> Iterator[Path]:
    """Yield existing credential files, in the order in which they are asked."""
    named = os.environ.get("REGISTRY_AUTH_FILE")
    if named:
        yield Path(named)
        return
    config = os.environ.get("DOCKER_CONFIG")
    candidates = [Path(config, "config.json") if config else Path("~/.docker/config.json")]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        candidates.append(Path(runtime, "containers/auth.json"))
    candidates.append(Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config", "containers/auth.json"))
    for path in candidates:
        try:
            full = path.expanduser()
            if full.is_file():
                yield full
        except (OSError, RuntimeError):  # no home directory, or one that may not be read
            continue


def _from_file(path: Path, host: str, repository: str) -> Credential | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        # The text of the error might quote the file.
        reason = error.strerror if isinstance(error, OSError) else "it is not valid JSON"
        raise RegistryAuthError(f"The credential file {path} cannot be read: {reason}.") from None
    if not isinstance(document, dict):
        raise RegistryAuthError(f"The credential file {path} is not a JSON object.")
    helpers, auths = document.get("credHelpers"), document.get("auths")
    for name in _names(host, repository):
        if isinstance(helpers, dict) and isinstance(helpers.get(name), str):
            return _from_helper(helpers[name], name)
        entry = auths.get(name) if isinstance(auths, dict) else None
        if isinstance(entry, dict) and (found := _from_entry(entry, path, name)):
            return found
    store = document.get("credsStore")
    if isinstance(store, str) and store:
        for name in _names(host, ""):
            if found := _from_helper(store, name):
                return found
    return None


def _names(host: str, repository: str) -> list[str]:
    """Return the names under which a file may have the credential, the most special first."""
    parts = repository.split("/") if repository else []
    names = ["/".join((host, *parts[:count])) for count in range(len(parts), -1, -1)]
    names += [f"https://{host}", f"https://{host}/", f"https://{host}/v1/", f"https://{host}/v2/", f"http://{host}"]
    if host in ("docker.io", "index.docker.io", "registry-1.docker.io"):
        names += [_DOCKER_HUB, "index.docker.io", "docker.io"]
    return list(dict.fromkeys(names))


def _from_entry(entry: dict[str, object], path: Path, name: str) -> Credential | None:
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return Credential(_TOKEN_USER, token)
    encoded = entry.get("auth")
    if isinstance(encoded, str) and encoded:
        try:
            user, colon, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            colon = user = secret = ""
        if not colon:
            raise RegistryAuthError(f"The entry {name!r} of {path} is not a base64 text of user:password.")
        return Credential(user, secret.rstrip("\0"))
    user_name, password = entry.get("username"), entry.get("password")
    return Credential(user_name, password) if isinstance(user_name, str) and isinstance(password, str) else None


def _from_helper(helper: str, server: str) -> Credential | None:
    """Ask ``docker-credential-<helper>``. None: it has no credential for the server."""
    program = f"docker-credential-{helper}"
    if not _HELPER_NAME.fullmatch(helper):
        raise RegistryAuthError(f"{helper!r} is not the name of a credential helper.")
    try:
        done = subprocess.run([program, "get"], input=server.encode(), capture_output=True, timeout=_HELPER_SECONDS)
    except FileNotFoundError as error:
        hint = f"Install {program}, or remove it from the credential file."
        raise RegistryAuthError(f"The credential helper {program} is not installed.", hint=hint) from error
    except (OSError, subprocess.TimeoutExpired):
        raise RegistryAuthError(f"The credential helper {program} does not answer for {server}.") from None
    if done.returncode != 0:
        if b"credentials not found" in done.stdout.lower():
            return None
        raise RegistryAuthError(f"The credential helper {program} failed for {server} (exit code {done.returncode}).")
    try:
        answer = json.loads(done.stdout)
        return Credential(str(answer["Username"]), str(answer["Secret"]))
    except (ValueError, KeyError, TypeError):
        raise RegistryAuthError(f"The credential helper {program} gave an answer for {server} that is not understood.") from None
