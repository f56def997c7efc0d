"""HTTP to registries: connections, TLS, proxies, redirects, retries with back-off, and who gets credentials.

It knows the rules of HTTP and authentication, and nothing of manifests or bundles.
"""

from __future__ import annotations

import random
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ..errors import RegistryAuthError, RegistryConnectionError, RegistryContentError, RegistryError, RegistryNotFoundError
from .addresses import host_and_port, is_inside, join, origin, split
from .auth import Authorizer
from .credentials import Credential, find_credential
from .deadlines import SlowAnswerError, Watch, watched
from .http_library import urllib3
from .responses import ERRORS, MAX_ERROR_BYTES, Answer, Response, drained, message
from .settings import Settings, is_loopback

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_MAX_REDIRECTS = 10
_MAX_PAUSE = 30.0
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which a request may succeed later."""
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_API_HOSTS = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Request:
    """One request. ``url`` is a path of the registry, or absolute as the registry gave it.

    ``body`` returns the body anew for each attempt. ``scopes`` are those of a Bearer token.
    """

    method: str
    host: str
    repository: str
    url: str
    scopes: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Callable[[], Iterable[ReadableBuffer]] | None = None
    what: str = ""
    """What is requested, for messages: ``the blob sha256:…``."""

    @property
    def where(self) -> str:
        subject = f" of {self.what}" if self.what else ""
        return f"{self.method}{subject} in {self.host}/{self.repository}"


class Transport:
    """Connections to registries, shared by threads."""

    def __init__(self, settings: Settings | None = None, find: Callable[[str, str], Credential | None] = find_credential) -> None:
        self.settings = settings or Settings.from_environment()
        self.stopped = threading.Event()
        self._authorizer = Authorizer(find, self._token)
        self._pools: dict[tuple[str, str], Any] = {}
        self._schemes: dict[str, str] = {}
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._watch = Watch()

    @contextmanager
    def open(self, request: Request, *, attempts: int | None = None) -> Iterator[Response]:
        """Send a request and yield the answer, whatever its status but one of authentication.

        Retries after broken connections and after statuses that mean "later".

        Raises:
            RegistryConnectionError: no attempt succeeded.
            RegistryAuthError: the registry refuses the credentials.
        """
        response = self._attempt(request, attempts or self.settings.attempts)
        try:
            yield response
        finally:
            response.close()

    def fetch(self, request: Request, limit: int = MAX_ERROR_BYTES) -> Answer:
        """Send a request and read the whole answer, which is retried as a whole.

        Raises:
            RegistryContentError: the body is larger than ``limit``.
        """
        for attempt in range(1, self.settings.attempts + 1):
            try:
                with self.open(request) as response:
                    data = response.read(limit)
            except ERRORS as error:
                if isinstance(error, RegistryError):
                    raise
                if attempt == self.settings.attempts or not _is_passing(error):
                    raise connection_error(request, error) from None
                self.pause(attempt)
                continue
            if len(data) > limit:
                raise RegistryContentError(f"{request.where}: the answer is larger than {limit} bytes.")
            return Answer(response.status, response.headers, data)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def pause(self, attempt: int, after: str = "") -> None:
        """Wait before attempt ``attempt`` (1 is the first retry). ``after`` is a ``Retry-After`` header.

        Raises:
            RegistryError: another thread stopped the transfer meanwhile.
        """
        seconds = min(_MAX_PAUSE, self.settings.back_off * 2 ** (attempt - 1)) * random.uniform(0.5, 1)
        if after.isascii() and after.isdigit():
            seconds = max(seconds, min(float(after), _MAX_PAUSE))
        self.stopped.wait(seconds)
        self.check_stopped()

    def check_stopped(self) -> None:
        """Raise if another thread stopped the transfer."""
        if self.stopped.is_set():
            raise RegistryError("The transfer was stopped.")

    def failure(self, request: Request, answer: Answer) -> RegistryError:
        """Return the error for an unexpected status, with what the registry says."""
        says = self._authorizer.redact(message(answer.data))
        text = f"{request.where} failed with status {answer.status}{f' ({says})' if says else ''}."
        if answer.status in (401, 403):
            hint = f"Log in with `docker login {request.host}`, or ask for access to {request.repository}."
            return RegistryAuthError(text, hint=hint)
        if answer.status == 404:
            return RegistryNotFoundError(text, hint="Check host, repository, tag and digest.")
        return RegistryError(text, hint="The registry does not accept this request." if answer.status < 500 else "Try again.")

    def _attempt(self, request: Request, attempts: int) -> Response:
        for attempt in range(1, attempts + 1):
            self.check_stopped()
            try:
                response = self._authorized(request)
            except ERRORS as error:
                if isinstance(error, RegistryError):
                    raise
                if attempt == attempts or not _is_passing(error):
                    raise connection_error(request, error) from None
                self.pause(attempt)
                continue
            if response.status not in RETRIED or attempt == attempts:
                return response
            after = response.headers.get("Retry-After", "")
            response.close()
            self.pause(attempt, after)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _authorized(self, request: Request) -> Response:
        """Send a request, and once more with an answer to the challenge of a 401."""
        used = self._authorizer.header(request.host, request.scopes)
        response = self._follow(request, used)
        if response.status != 401 or not self._is_of(response.url, request.host):
            return response  # a challenge of another host gets no answer
        challenges = response.challenges()
        failure = self.failure(request, drained(response))
        response.close()
        answer = self._authorizer.answer(request.host, request.repository, request.scopes, challenges, used)
        if not answer:
            raise failure
        response = self._follow(request, answer)
        if response.status in (401, 403):
            failure = self.failure(request, drained(response))
            response.close()
            raise failure
        return response

    def _follow(self, request: Request, authorization: str) -> Response:
        """Send a request and follow redirects. Only the registry's own origin gets ``authorization``."""
        url = join(self._base(request.host), request.url, request.host)
        for _ in range(_MAX_REDIRECTS):
            self._check(request, url, request.host)
            headers = {"User-Agent": "aotpack", **request.headers}
            if authorization and self._is_of(url, request.host):
                headers["Authorization"] = authorization
            response = self._response(request.method, url, headers, request.body)
            location = response.headers.get("Location")
            if response.status not in _REDIRECTS or not location:
                return response
            response.close()
            following = join(url, location, request.host)
            if split(url, request.host).scheme == "https" and split(following, request.host).scheme != "https":
                raise RegistryError(f"{request.where}: a redirect leads from HTTPS to a connection without TLS.")
            url = following
        raise RegistryError(f"{request.where}: more than {_MAX_REDIRECTS} redirects.", hint="The registry's set-up is wrong.")

    def _is_of(self, url: str, host: str) -> bool:
        """Whether a URL is one of the registry itself."""
        return origin(split(url, host)) == origin(split(self._base(host), host))

    def _response(self, method: str, url: str, headers: Mapping[str, str], body: Callable[[], Iterable[Any]] | None) -> Response:
        return Response(self._send(method, url, headers, body), url, self._watch, self.settings.patience)

    def _send(self, method: str, url: str, headers: Mapping[str, str], body: Callable[[], Iterable[Any]] | None) -> Any:
        pool = self._pool(url)
        data = None if body is None else body()
        return pool.urlopen(method, url, body=data, headers=dict(headers), redirect=False, retries=False, preload_content=False)

    def _token(
        self, host: str, method: str, url: str, headers: dict[str, str], body: bytes | None, limit: int
    ) -> tuple[int, bytes]:
        """Send a request to the token server of ``host``. A redirect is not followed, so that nothing goes further."""
        request = Request(method, host_and_port(split(url, host)), "", url, what="a token")
        self._check(request, url, host)
        try:
            response = self._response(method, url, headers, None if body is None else lambda: [body])
            try:
                return response.status, response.read(limit)
            finally:
                response.close()
        except ERRORS as error:
            raise connection_error(request, error) from None

    def _check(self, request: Request, url: str, host: str) -> None:
        """Refuse an address that ``host`` gave, if it may not be asked."""
        parts = split(url, host)
        if is_inside(parts) and not is_inside(split(self._base(host), host)):
            raise RegistryError(f"{request.where}: {host} sends to an address of this machine or its own network.")
        if parts.scheme == "https" or (parts.scheme == "http" and self._may_be_plain(host_and_port(parts))):
            return
        if parts.scheme != "http":
            raise RegistryError(f"{request.where}: the registry answers with an address that is neither HTTPS nor HTTP.")
        hint = f"Allow it for this host with plain_http or AOTPACK_PLAIN_HTTP={host_and_port(parts)}, if its network is trusted."
        raise RegistryError(f"{request.where}: {host_and_port(parts)} would be reached without TLS.", hint=hint)

    def _may_be_plain(self, host: str) -> bool:
        return is_loopback(host) or host in self.settings.plain_http

    def _base(self, host: str) -> str:
        """Return the base URL of a registry. TLS unless the host is listed, or is this machine and has none."""
        scheme = self._schemes.get(host)
        if scheme is None:
            scheme = "http" if self._may_be_plain(host) and not self._speaks_tls(host) else "https"
            self._schemes[host] = scheme
        return f"{scheme}://{_API_HOSTS.get(host, host)}/"

    def _speaks_tls(self, host: str) -> bool:
        """Whether a host that may be reached without TLS has it."""
        if host in self.settings.plain_http:
            return False
        try:
            self._send("HEAD", f"https://{host}/v2/", {}, None).close()
        except urllib3.exceptions.SSLError as error:
            return "certificate" in str(error).lower()
        except ERRORS:
            return False
        return True

    def _pool(self, url: str) -> Any:
        """Return the connections for a URL: direct, or through the proxy of the environment."""
        parts = split(url, "that was named")
        proxy = "" if proxy_bypass(parts.hostname or "") or is_loopback(parts.netloc) else getproxies().get(parts.scheme, "")
        key = parts.scheme, proxy
        with self._lock:
            if key not in self._pools:
                self._pools[key] = self._new_pool(proxy, tls=parts.scheme == "https")
            return self._pools[key]

    def _new_pool(self, proxy: str, *, tls: bool) -> Any:
        settings = self.settings
        options: dict[str, Any] = {
            "num_pools": 16,
            "maxsize": settings.concurrency + 2,
            "timeout": urllib3.Timeout(connect=settings.connect_timeout, read=settings.read_timeout),
            "ssl_context": self._tls() if tls else None,  # reading the authorities takes some 20 ms
            "blocksize": _BLOCK,
        }
        if not proxy:
            return watched(urllib3.PoolManager(**options), self._watch, settings.patience)
        parts = urlsplit(proxy)
        headers = None
        if parts.username is not None:
            headers = urllib3.make_headers(proxy_basic_auth=f"{parts.username}:{parts.password or ''}")
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        context = self._tls() if parts.scheme == "https" else None
        manager = urllib3.ProxyManager(address, proxy_headers=headers, proxy_ssl_context=context, **options)
        return watched(manager, self._watch, settings.patience)

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            if self.settings.ca_file and not Path(self.settings.ca_file).is_file():  # opening a FIFO would wait
                raise RegistryError(f"The CA file {self.settings.ca_file!r} cannot be used: it is no file.")
            try:
                self._context = ssl.create_default_context(cafile=self.settings.ca_file or None)
            except (OSError, ValueError) as error:
                raise RegistryError(f"The CA file {self.settings.ca_file!r} cannot be used: {error}.") from error
        return self._context


def connection_error(request: Request, error: Exception) -> RegistryConnectionError:
    """Return our error for one of a connection. It does not repeat the URL, which may contain a signature."""
    hint = "Check the network, the proxy settings (HTTPS_PROXY, NO_PROXY) and the host name."
    if isinstance(error, urllib3.exceptions.SSLError):
        reason = str(error.args[0] if error.args else error)
        if "WRONG_VERSION_NUMBER" in reason:
            reason = "the host answers without TLS"
            hint = f"Allow plain HTTP with plain_http or AOTPACK_PLAIN_HTTP={request.host}, if its network is trusted."
        else:
            hint = "Name the file of its certificate authority with ca_file or AOTPACK_CA_FILE."
    else:
        name = SlowAnswerError.__name__ if _is_slow(error) else type(error).__name__
        reason = _REASONS.get(name, name)
    return RegistryConnectionError(f"{request.where}: {reason}.", hint=hint)


_REASONS = {
    "NewConnectionError": "the host cannot be reached",
    "NameResolutionError": "the host name is not known",
    "ConnectTimeoutError": "the host does not answer",
    "ReadTimeoutError": "the registry sends nothing any more",
    "SlowAnswerError": "the registry sends too slowly",
    "LocationParseError": "the registry sent an address that is not understood",
    "ProtocolError": "the connection broke",
    "IncompleteRead": "the connection broke",
    "ProxyError": "the proxy cannot be reached",
    "ConnectionResetError": "the connection broke",
    "BrokenPipeError": "the connection broke",
}


def _is_slow(error: Exception) -> bool:
    """Whether an answer was given up. urllib3 passes that on inside an error of its own."""
    return any(isinstance(part, SlowAnswerError) for part in (error, *error.args))


def _is_passing(error: Exception) -> bool:
    """Whether another attempt may succeed."""
    final = isinstance(error, urllib3.exceptions.SSLError | urllib3.exceptions.LocationValueError)
    return not final and not _is_slow(error)
