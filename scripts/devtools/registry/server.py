"""Debian's docker-registry on loopback, for benchmarks and fault runs."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

_CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Run a registry that keeps its files below ``folder``, and yield its host."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yml").write_text(_CONFIG.format(root=folder / "data", port=port))
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log, env=environment
        )
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=1).close()
                break
            except (URLError, OSError):
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
