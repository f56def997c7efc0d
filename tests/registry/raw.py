"""A server on loopback that answers with bytes as they are, for answers that no library would send."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

Bytes = bytes | Iterable[bytes]
Answer = Bytes | Callable[[bytes], Bytes]
"""What goes to the client: bytes, pieces of them, or a function of the request that returns one of both."""


def answer(status: str = "200 OK", body: bytes = b"", *headers: str) -> bytes:
    """An answer that is well formed, but for what ``headers`` say."""
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", "")
    return "\r\n".join(lines).encode("latin-1") + body


class Raw:
    """A running server. ``routes`` are patterns of request lines with what is answered; the first that matches counts."""

    def __init__(self, routes: dict[str, Answer]) -> None:
        self.routes = routes
        self.seen: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._open: list[socket.socket] = []

    def __enter__(self) -> Raw:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for part in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                part.shutdown(socket.SHUT_RDWR)
            part.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed by the end of the test
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # the client went away, or the test is over
            request = b""
            while b"\r\n\r\n" not in request:
                part = connection.recv(65536)
                request += part
                if not part or request.startswith(b"\x16"):
                    return  # the client tries TLS first
            line = request.partition(b"\r\n")[0].decode()
            self.seen.append(line)
            for pattern, found in self.routes.items():
                if re.search(pattern, line):
                    said = found(request) if callable(found) else found
                    for piece in (said,) if isinstance(said, bytes) else said:
                        connection.sendall(piece)
                    return
            connection.sendall(answer("404 Not Found"))
