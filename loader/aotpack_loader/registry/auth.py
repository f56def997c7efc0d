"""Answers a registry's challenges: Basic, and Bearer tokens of the distribution API.

Tokens are kept in memory only. The caller decides to which host they are sent.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlencode

from ..errors import RegistryAuthError
from .addresses import split
from .credentials import Credential

_CHALLENGE = re.compile(r"\s*([A-Za-z]+)(?:\s+|$)((?:[A-Za-z_]+\s*=\s*(?:\"(?:[^\"\\]|\\.)*\"|[^\s,\"]+)\s*,?\s*)*)")
_PARAMETER = re.compile(r"([A-Za-z_]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]+))")
_MAX_TOKEN_BYTES = 1 << 20
_LEAST_SECONDS = 60
_MOST_SECONDS = 86_400
_EARLY = 10
"""Seconds before its end at which a token is fetched again."""


class TokenRequest(Protocol):
    """Sends one request to the token server of a registry and returns the status and at most ``limit`` bytes of its answer."""

    def __call__(
        self, host: str, method: str, url: str, headers: dict[str, str], body: bytes | None, limit: int
    ) -> tuple[int, bytes]: ...


@dataclass(frozen=True)
class _Token:
    header: str
    until: float


class Authorizer:
    """The ``Authorization`` headers for registries, learned from their challenges."""

    def __init__(self, find: Callable[[str, str], Credential | None], fetch: TokenRequest) -> None:
        self._find = find
        self._fetch = fetch
        self._tokens: dict[tuple[str, str], _Token] = {}
        self._basic: dict[str, str] = {}
        self._lock = threading.Lock()
        self._secrets: set[str] = set()

    def header(self, host: str, scopes: Iterable[str]) -> str:
        """Return the header for requests of ``scopes``, as far as it is known; empty otherwise."""
        token = self._tokens.get((host, _key(scopes)))
        if token is not None and token.until > time.monotonic():
            return token.header
        return self._basic.get(host, "")

    def answer(self, host: str, repository: str, scopes: Iterable[str], challenges: Iterable[str], used: str) -> str:
        """Return the header that answers the challenges of a 401, or an empty string.

        ``used`` is the header that was refused. An equal one is not returned again.

        Raises:
            RegistryAuthError: the token server refused, or its answer is not understood.
        """
        found = {scheme: parameters for text in challenges for scheme, parameters in parse_challenges(text)}
        with self._lock:
            known = self.header(host, scopes)
            if known and known != used:
                return known  # another thread was faster
            credential = self._find(host, repository)
            if credential is not None:
                self._secrets.add(credential.secret)
            if "bearer" in found:
                token = self._bearer(host, scopes, found["bearer"], credential)
                self._tokens[host, _key(scopes)] = token
                return token.header
            if "basic" in found and credential is not None and not credential.is_token:
                header = credential.basic()
                self._secrets.add(header)
                if header != used:
                    self._basic[host] = header
                    return header
        return ""

    def redact(self, text: str) -> str:
        """Return ``text`` without any secret that was sent, should a registry repeat one."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            for form in {secret, secret.removeprefix("Basic "), secret.removeprefix("Bearer ")}:
                if len(form) > 3:
                    text = text.replace(form, "***")
        return text

    def _bearer(self, host: str, scopes: Iterable[str], parameters: dict[str, str], credential: Credential | None) -> _Token:
        realm = parameters.get("realm", "")
        if split(realm, host).scheme not in ("https", "http"):
            raise RegistryAuthError(f"The registry {host} names no token server that can be used.")
        wanted = list(dict.fromkeys([*parameters.get("scope", "").split(), *scopes]))
        query = [("service", parameters["service"])] if parameters.get("service") else []
        headers = {"Accept": "application/json"}
        if credential is not None and credential.is_token:
            form = [*query, ("scope", " ".join(wanted)), ("grant_type", "refresh_token"), ("client_id", "aotpack")]
            body = urlencode([*form, ("refresh_token", credential.secret)]).encode()
            headers |= {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": str(len(body))}
            status, answer = self._fetch(host, "POST", realm, headers, body, _MAX_TOKEN_BYTES)
        else:
            if credential is not None:
                headers["Authorization"] = credential.basic()
                self._secrets.add(headers["Authorization"])
            url = f"{realm}{'&' if '?' in realm else '?'}{urlencode([*query, *(('scope', scope) for scope in wanted)])}"
            status, answer = self._fetch(host, "GET", url, headers, None, _MAX_TOKEN_BYTES)
        return self._token(host, status, answer, credential)

    def _token(self, host: str, status: int, answer: bytes, credential: Credential | None) -> _Token:
        if status != 200:
            who = "these credentials" if credential else "an anonymous user"
            raise RegistryAuthError(
                f"The token server of {host} refused {who} (status {status}).", hint=f"Log in again: `docker login {host}`."
            )
        try:
            document = json.loads(answer)
            token = document.get("token") or document.get("access_token")
            seconds = document.get("expires_in", _LEAST_SECONDS)
        except (ValueError, RecursionError, AttributeError):
            token, seconds = None, 0
        if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
            raise RegistryAuthError(f"The token server of {host} gave no token.")
        self._secrets.add(token)
        life = min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS) if isinstance(seconds, int | float) else _LEAST_SECONDS
        return _Token(f"Bearer {token}", time.monotonic() + life - _EARLY)


def parse_challenges(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return the schemes of a ``WWW-Authenticate`` header in lower case, each with its parameters."""
    found = []
    position = 0
    while position < len(text) and (match := _CHALLENGE.match(text, position)):
        parameters = {m[1].lower(): re.sub(r"\\(.)", r"\1", m[2] or m[3] or "") for m in _PARAMETER.finditer(match[2])}
        found.append((match[1].lower(), parameters))
        position = match.end() if match.end() > position else len(text)
    return found


def _key(scopes: Iterable[str]) -> str:
    return " ".join(sorted(scopes))
