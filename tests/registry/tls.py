"""A certificate authority of our own, a proxy that tunnels (CONNECT), and host names that lead to this machine."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import select
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "registry.test"


class Authority:
    """A certificate authority. ``file`` is its certificate in PEM."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._certificate = _signed(self._name, self._name, self._key, self._key, authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(_pem(self._certificate))

    def server(self, *hosts: str) -> ssl.SSLContext:
        """Return the context of a server with a certificate for ``hosts``."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _signed(_named(hosts[0]), self._name, key, self._key, hosts=hosts)
        path = self._folder / f"{hosts[0]}.server.pem"
        plain = serialization.NoEncryption()
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        path.write_bytes(private + _pem(certificate))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


class Tunnel:
    """An HTTP proxy for CONNECT. ``seen`` has the hosts and credentials that it was asked with."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        tunnel = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                given = self.headers.get("Proxy-Authorization", "").removeprefix("Basic ")
                tunnel.seen.append((self.path, base64.b64decode(given).decode()))
                with socket.create_connection(("127.0.0.1", int(self.path.rpartition(":")[2]))) as other:
                    self.send_response(200)
                    self.end_headers()
                    _join(self.connection, other)
                self.close_connection = True

            def log_message(self, format: str, *arguments: object) -> None:
                """Stay silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Tunnel:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def lead_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all names below ``.test`` lead to this machine."""
    found = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        return found("127.0.0.1" if str(host).endswith(".test") else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def _join(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until one side ends."""
    while True:
        for ready in select.select([one, other], [], [])[0]:
            data = ready.recv(65536)
            if not data:
                return
            (other if ready is one else one).sendall(data)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    *,
    authority: bool = False,
    hosts: tuple[str, ...] = (),
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    names = [x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(by, hashes.SHA256())
