"""Ends answers that never end: a time-out of a socket begins anew with each byte that arrives.

A connection has a second handle, by which a thread of this module shuts it down when an answer took
too long. The thread that reads then sees the end of the connection.
"""

from __future__ import annotations

import http.client
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from .http_library import HTTPConnection, HTTPConnectionPool, HTTPSConnection, HTTPSConnectionPool, urllib3

_IDLE = 2.0
"""Seconds after which a watch without work ends its thread."""


class SlowAnswerError(OSError):
    """An answer did not arrive within its time."""


class Wire:
    """A second handle of a connection, which outlives the objects that read from it."""

    def __init__(self, connection: socket.socket) -> None:
        self._handle = os.dup(connection.fileno())
        weakref.finalize(self, os.close, self._handle)

    def cut(self) -> None:
        """Shut the connection down. Whoever reads from it sees its end."""
        same = socket.socket(fileno=self._handle)
        try:
            with suppress(OSError):  # it may be closed already
                same.shutdown(socket.SHUT_RDWR)
        finally:
            same.detach()


class Cuttable(Protocol):
    """What can be cut: a wire, or a connection that is being made."""

    def cut(self) -> None: ...


class Watch:
    """Cuts connections whose time is over."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._ends: dict[object, tuple[float, Cuttable]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, wire: Cuttable, seconds: float) -> Iterator[None]:
        """Run a block that reads from ``wire``.

        Raises:
            SlowAnswerError: it took longer, so the connection was cut.
        """
        key = object()
        with self._condition:
            self._ends[key] = (time.monotonic() + seconds, wire)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="aotpack-deadlines", daemon=True)
                self._thread.start()
        error: Exception | None = None
        try:
            yield
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as raised:
            error = raised
        finally:
            with self._condition:
                in_time = self._ends.pop(key, None) is not None
        if not in_time:
            raise SlowAnswerError from error
        if error is not None:
            raise error

    def _run(self) -> None:
        idle_since = time.monotonic()
        with self._condition:
            while True:
                now = time.monotonic()
                for key, (end, wire) in list(self._ends.items()):
                    if end <= now:
                        del self._ends[key]
                        wire.cut()
                if self._ends:
                    idle_since = now
                elif now - idle_since > _IDLE:
                    self._thread = None
                    return
                self._condition.wait(0.25)


class _Watched:
    """What a connection needs so that it can be cut while it is made and while its answer begins."""

    watch: Watch
    patience: float
    wire: Wire | None = None
    begun: http.client.HTTPResponse | None = None

    def connect(self) -> None:
        with self.watch.limit(self, self.patience):  # TLS has messages that can come slowly
            super().connect()  # type: ignore[misc]

    def _new_conn(self) -> socket.socket:
        made: socket.socket = super()._new_conn()  # type: ignore[misc]
        self.wire = Wire(made)
        return made

    def response_class(self, *args: Any, **options: Any) -> http.client.HTTPResponse:
        """The answer that http.client begins to read, which keeps the socket open until it is closed."""
        self.begun = http.client.HTTPResponse(*args, **options)
        return self.begun

    def getresponse(self) -> Any:
        try:
            with self.watch.limit(self, self.patience):
                response = super().getresponse()  # type: ignore[misc]
        except BaseException:  # it came late, or urllib3 refuses its headers: nobody else knows the answer
            if self.begun is not None:
                self.begun.close()
            raise
        finally:
            self.begun = None
        response.wire = self.wire
        return response

    def cut(self) -> None:
        if self.wire is not None:
            self.wire.cut()


def watched(pools: Any, watch: Watch, patience: float) -> Any:
    """Let the connections of a pool manager be watched, and return it."""
    attributes = {"watch": watch, "patience": patience}
    plain = type("WatchedConnection", (_Watched, HTTPConnection), attributes)
    secure = type("WatchedTlsConnection", (_Watched, HTTPSConnection), attributes)
    pools.pool_classes_by_scheme = {
        "http": type("WatchedPool", (HTTPConnectionPool,), {"ConnectionCls": plain}),
        "https": type("WatchedTlsPool", (HTTPSConnectionPool,), {"ConnectionCls": secure}),
    }
    return pools
