"""A real registry on loopback (Debian's docker-registry), with and without authentication, and our faulty proxy before it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest
from support.archive import write_tiny

from aotpack_loader.registry.settings import Settings
from aotpack_loader.registry.transport import Transport

from .bundles import write_two
from .proxy import Proxy

USER, PASSWORD = "trainer", "s3cret-word"
# bcrypt of PASSWORD, with few rounds
_HASH = "$2b$04$ulRj.zF5uQ6xWQ0gjDSN8uL7ZVNB.bDtE3EpK9S.XCDfaavdwngHi"
_CONFIG = """\
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:0"}}
{auth}
"""


@dataclass
class Registry:
    """A running registry: its address, and where it keeps its files."""

    host: str
    root: Path

    def reference(self, name: str) -> str:
        return f"oci://{self.host}/{name}"


LogIn = Callable[..., None]


def need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(
            f"{program} is not installed (Debian: apt-get install docker-registry skopeo); scripts/setup does it for root"
        )
    return found


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that asks for no credentials."""
    yield from _serve(tmp_path_factory.mktemp("registry"), "")


@pytest.fixture(scope="session")
def private_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry that wants USER and PASSWORD (Basic)."""
    folder = tmp_path_factory.mktemp("private")
    (folder / "htpasswd").write_text(f"{USER}:{_HASH}\n")
    yield from _serve(folder, f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}")


@pytest.fixture
def proxy(registry: Registry) -> Iterator[Proxy]:
    """A proxy of ours before ``registry`` that breaks what a test asks it to."""
    with Proxy(registry.host) as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no trusted keys, and no credentials but those a test writes."""
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AOTPACK_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "AOTPACK_MIRRORS", "AOTPACK_PLAIN_HTTP", "AOTPACK_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


@pytest.fixture
def log_in(tmp_path: Path) -> LogIn:
    """Write a credential file as ``docker login`` does."""

    def write(host: str, **entry: str) -> None:
        folder = tmp_path / "docker"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"auths": {host: entry}}))

    return write


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A small bundle of one target."""
    path = tmp_path / "tiny.aotpack"
    write_tiny(path)
    return path


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of 6 MB of weights for ``portable`` and ``cpu:x86-64-v3``, whose code has 2 MB."""
    path = tmp_path_factory.mktemp("two") / "two.aotpack"
    write_two(path)
    return path


def quick(**options: object) -> Transport:
    """Connections that give up and try again soon."""
    return Transport(Settings(**{"back_off": 0.01, "read_timeout": 5.0, "attempts": 4, **options}))  # type: ignore[arg-type]


def skopeo(*arguments: object) -> str:
    done = subprocess.run([need("skopeo"), *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _serve(folder: Path, auth: str) -> Iterator[Registry]:
    config = _CONFIG.format(root=folder / "data", auth=auth)
    with running(folder, config, "127.0.0.1:0") as host:
        yield Registry(host, folder / "data")


@contextmanager
def running(folder: Path, config: str, address: str) -> Iterator[str]:
    """Run a registry in ``folder``. A free port stands for ``address`` in the configuration. Yields its host."""
    program = need("docker-registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    host = f"127.0.0.1:{port}"
    assert address in config
    file = folder / "config.yml"
    file.write_text(config.replace(address, host))
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([program, "serve", str(file)], stdout=log, stderr=log, env=environment, cwd=folder)
    try:
        _wait(port, process, folder / "log")
        yield host
    finally:
        process.kill()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=1).close()
            return
        except HTTPError as error:
            error.close()
            return  # it asks for credentials
        except (URLError, OSError):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
    raise AssertionError("docker-registry does not start")
