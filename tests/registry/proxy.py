"""An HTTP proxy before a registry that breaks connections, truncates, delays, lies and redirects, and counts bytes.

A :class:`Fault` applies to requests whose method and path match, ``times`` times.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

BLOCK = 65536


@dataclass
class Fault:
    """What to do with matching requests. Each field is one way to misbehave."""

    path: str
    method: str = "GET"
    times: int = 1_000_000
    cut_answer: int | None = None
    """Close the connection after so many bytes of the body."""
    cut_request: int | None = None
    """Read so many bytes of the request, pass them on, and close the connection."""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    change: Callable[[bytes], bytes] | None = None
    """The body that is sent instead."""
    body: bytes = b""
    """The body that goes with ``status``."""
    without: tuple[str, ...] = ()
    """Headers of the request that are not passed on."""


@dataclass
class Seen:
    """A request as it arrived, with the number of body bytes each way."""

    method: str
    path: str
    headers: dict[str, str]
    sent: int = 0
    received: int = 0
    status: int = 0
    body: bytes = b""
    """The body of a request for a token, or of a manifest."""


class Proxy:
    """A running proxy. ``seen`` lists what it was asked."""

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        self.upstream = upstream
        self.tls = tls is not None
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.token = ""
        """A Bearer token that requests need. ``/token`` gives it."""
        self.moved = ""
        """A host to which downloads are redirected."""
        self.uploads: dict[str, bytearray] | None = None
        """If it is a dictionary, the proxy keeps what arrived of an upload, as the specification of registries has it."""
        self.realm = ""
        """The address of the token server that a challenge names; by default the proxy's own."""
        self.referrers: dict[str, list[dict[str, object]]] | None = None
        """If it is a dictionary, the proxy has the referrers API: descriptors by subject. Other answers are the registry's."""
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_address[1]
        self.host = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def reference(self, name: str) -> str:
        return f"oci://{self.host}/{name}"

    def take(self, method: str, path: str) -> Fault | None:
        """Return the fault for a request and count it."""
        with self._lock:
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        if path.startswith("/token"):
            return Fault("", status=200, body=json.dumps({"token": self.token}).encode())
        if self.referrers is not None and "/referrers/" in path:
            listed = self.referrers.get(path.rpartition("/")[2], [])
            index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": listed}
            headers = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
            return Fault("", status=200, headers=headers, body=json.dumps(index).encode())
        if self.moved and method == "GET" and "/blobs/sha256" in path:
            return Fault("", status=307, headers={"Location": f"http://{self.moved}{path}"})
        return None

    def challenge(self, headers: Mapping[str, str]) -> Fault | None:
        """Return the refusal of a request without the token."""
        if not self.token or headers.get("Authorization") == f"Bearer {self.token}":
            return None
        realm = self.realm or f"{'https' if self.tls else 'http'}://{self.host}/token"
        text = f'Bearer realm="{realm}",service="test"'
        return Fault("", status=401, headers={"WWW-Authenticate": text})

    def refer(self, method: str, path: str, body: bytes) -> bool:
        """Note a manifest that refers to another. Returns whether it does, and the proxy has the referrers API."""
        if self.referrers is None or method != "PUT" or "/manifests/" not in path:
            return False
        manifest = json.loads(body)
        subject = manifest.get("subject")
        if subject is None:
            return False
        kind = manifest.get("artifactType") or manifest.get("config", {}).get("mediaType", "")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        entry = {"mediaType": manifest["mediaType"], "digest": digest, "size": len(body), "artifactType": kind}
        notes = {"annotations": manifest["annotations"]} if manifest.get("annotations") else {}
        self.referrers.setdefault(subject["digest"], []).append(entry | notes)
        return True

    def bodies(self, method: str) -> int:
        """Return how many bytes of bodies requests of that method brought (PATCH, PUT) or fetched (GET)."""
        return sum(seen.sent if method == "GET" else seen.received for seen in self.seen if seen.method == method)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that a fault or the client closed is not worth a trace."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Proxy

    def _serve(self) -> None:
        seen = Seen(self.command, self.path, dict(self.headers))
        self.owner.seen.append(seen)
        refused = None if self.path.startswith("/token") else self.owner.challenge(dict(self.headers))
        fault = refused or self.owner.take(self.command, self.path) or Fault("")
        time.sleep(fault.delay)
        if fault.status is not None and fault.cut_request is None:
            self._drain(seen)
            seen.status = fault.status
            self.send_response(fault.status)
            for name, value in {"Content-Length": str(len(fault.body)), **fault.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(fault.body if self.command != "HEAD" else b"")
            return
        upstream = http.client.HTTPConnection(self.owner.upstream, timeout=20)
        try:
            if self.owner.uploads is not None and "/blobs/uploads/" in self.path and self.command in ("PATCH", "GET", "PUT"):
                self._keep(self.owner.uploads.setdefault(self.path.partition("?")[0], bytearray()), upstream, fault, seen)
            elif self._forward(upstream, fault, seen):
                self._answer(upstream.getresponse(), fault, seen)
            else:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
        finally:
            upstream.close()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _forward(self, upstream: http.client.HTTPConnection, fault: Fault, seen: Seen) -> bool:
        """Pass the request on. False: the connection is to be broken."""
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in fault.without:
                upstream.putheader(name, value)
        if self.owner.tls:
            upstream.putheader("X-Forwarded-Proto", "https")
        upstream.endheaders()
        left = int(self.headers.get("Content-Length") or 0)
        while left:
            allowed = left if fault.cut_request is None else min(left, fault.cut_request - seen.received)
            piece = self.rfile.read(min(BLOCK, allowed)) if allowed else b""
            if not piece:
                break
            upstream.send(piece)
            if "/manifests/" in self.path:
                seen.body += piece
            seen.received += len(piece)
            left -= len(piece)
        if left:
            time.sleep(0.05)  # the registry must see what came before the connection breaks
        return not left

    def _keep(self, kept: bytearray, upstream: http.client.HTTPConnection, fault: Fault, seen: Seen) -> None:
        """Append to an upload, say how far it is, or close it."""
        left = int(self.headers.get("Content-Length") or 0)
        start = (self.headers.get("Content-Range") or f"{len(kept)}-").partition("-")[0]
        seen.status = 202 if int(start) == len(kept) else 416
        while left and (fault.cut_request is None or seen.received < fault.cut_request):
            piece = self.rfile.read(min(BLOCK, left))
            kept += piece
            seen.received += len(piece)
            left -= len(piece)
        if left:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if self.command == "PUT":
            upstream.request("PUT", self.path, body=bytes(kept), headers={"Content-Type": "application/octet-stream"})
            self._answer(upstream.getresponse(), fault, seen)
            return
        self.send_response(204 if self.command == "GET" else seen.status)
        answer = {"Location": self.path, "Range": f"0-{max(len(kept) - 1, 0)}"}
        for name, value in (answer if self.command == "GET" else {**answer, "Content-Length": "0"}).items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, answer: http.client.HTTPResponse, fault: Fault, seen: Seen) -> None:
        seen.status = answer.status
        body = answer.read() if fault.change else None
        if body is not None and fault.change:
            body = fault.change(body)
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() == "location":
                value = value.replace(self.owner.upstream, self.owner.host)
            if name.lower() == "content-length" and body is not None:
                value = str(len(body))
            if name.lower() not in (header.lower() for header in fault.headers):
                self.send_header(name, value)
        for name, value in fault.headers.items():
            self.send_header(name, value)
        if self.owner.refer(self.command, self.path, seen.body):
            self.send_header("OCI-Subject", json.loads(seen.body)["subject"]["digest"])
        self.end_headers()
        if self.command == "HEAD":
            return
        while piece := (body[seen.sent : seen.sent + BLOCK] if body is not None else answer.read(BLOCK)):
            if fault.cut_answer is not None and seen.sent + len(piece) > fault.cut_answer:
                self.wfile.write(piece[: fault.cut_answer - seen.sent])
                seen.sent = fault.cut_answer
                self.close_connection = True
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.wfile.write(piece)
            seen.sent += len(piece)

    def _drain(self, seen: Seen) -> None:
        left = int(self.headers.get("Content-Length") or 0)
        while left and (piece := self.rfile.read(min(BLOCK, left))):
            left -= len(piece)
            seen.received += len(piece)
            seen.body += piece

    def log_message(self, format: str, *arguments: object) -> None:
        """Stay silent."""
