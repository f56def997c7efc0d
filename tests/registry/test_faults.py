"""What a pull and a push do when the registry, or the way to it, misbehaves: carry on, or refuse in our words."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from aotpack.registry.push import push
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.temporaries import PREFIX
from aotpack_loader.errors import (
    AotpackError,
    RegistryConnectionError,
    RegistryContentError,
    RegistryError,
)
from aotpack_loader.registry.pull import Pulled, by_name, pull
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.store import BlobCache

from .conftest import Registry, quick
from .proxy import Fault, Proxy

pytestmark = pytest.mark.usefixtures("cache")
BLOBS = "/blobs/sha256"


@pytest.fixture(scope="module")
def name(registry: Registry, two: Path) -> str:
    """The repository of a bundle that was pushed."""
    push(two, Reference.parse(registry.reference("faults/two:v1")), transport=quick())
    return "faults/two:v1"


def pulled(proxy: Proxy, name: str) -> Pulled:
    return pull(Reference.parse(proxy.reference(name)), by_name(["portable"]), transport=quick())


def test_a_broken_download_is_resumed(proxy: Proxy, name: str) -> None:
    proxy.faults = [Fault(BLOBS, times=6, cut_answer=1_500_000)]
    with Bundle.open(pulled(proxy, name).path) as bundle:
        bundle.verify()
    assert any(seen.headers.get("Range") for seen in proxy.seen)
    assert proxy.bodies("GET") < 6_000_000 + 50_000  # nothing came twice


def test_a_registry_without_ranges_is_asked_from_the_start(proxy: Proxy, name: str) -> None:
    ignore_ranges = Fault(BLOBS, without=("range",))
    proxy.faults = [Fault(BLOBS, times=1, cut_answer=1_500_000), Fault(BLOBS, times=1, cut_answer=1), ignore_ranges]
    with Bundle.open(pulled(proxy, name).path) as bundle:
        bundle.verify()


def test_a_download_goes_on_in_the_next_process(proxy: Proxy, name: str, two: Path) -> None:
    with Bundle.open(two) as bundle:
        largest = max(bundle.descriptors(), key=lambda descriptor: descriptor.size).digest
    proxy.faults = [Fault(largest, times=1, cut_answer=4_000_000), Fault(largest, status=503)]
    with pytest.raises(RegistryError, match=r"the blob sha256:\w+ in 127.0.0.1:\d+/faults/two"):
        pulled(proxy, name)
    assert sum(path.stat().st_size for path in BlobCache().partial.iterdir()) >= 4_000_000
    before = proxy.bodies("GET")
    proxy.faults = []
    with Bundle.open(pulled(proxy, name).path) as bundle:
        bundle.verify()
    assert proxy.bodies("GET") - before < 2_100_000
    assert list(BlobCache().partial.iterdir()) == []


def test_a_wrong_part_of_an_earlier_process_is_not_used(proxy: Proxy, name: str, two: Path) -> None:
    with Bundle.open(two) as bundle:
        largest = max(bundle.descriptors(), key=lambda descriptor: descriptor.size)
    (BlobCache().partial / largest.digest[7:]).write_bytes(b"x" * 3_000_000)
    with Bundle.open(pulled(proxy, name).path) as bundle:
        bundle.verify()


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        (Fault(BLOBS, change=lambda body: bytes(len(body))), RegistryContentError, "sent other bytes for the blob"),
        (Fault(BLOBS, change=lambda body: body + b"x"), RegistryContentError, "bytes: there are"),
        (Fault(BLOBS, change=lambda body: body[:-1]), RegistryContentError, "bytes: there are"),
        (Fault("/manifests/sha256", change=lambda body: body + b" "), RegistryContentError, "than their digest says"),
        (Fault("/manifests/v1", method="HEAD", headers={"Docker-Content-Digest": f"sha256:{'0' * 64}"}), RegistryError, "404"),
        (Fault("/manifests/sha256", change=lambda body: b"x" * (5 << 20)), RegistryContentError, "is larger than"),
        (Fault(BLOBS, cut_answer=0), RegistryConnectionError, "the connection broke"),
        (Fault("/manifests", method="HEAD", cut_answer=0, status=500), RegistryError, "status 500"),
        (Fault("/manifests", method="HEAD", status=403), RegistryError, "docker login"),
        (Fault(BLOBS, status=307, headers={"Location": "/v2/faults/two/blobs/sha256:0"}), RegistryError, "redirects"),
        (Fault(BLOBS, status=302, headers={"Location": "http://example.com/x"}), RegistryError, "without TLS"),
        (Fault(BLOBS, status=302, headers={"Location": "file:///etc/passwd"}), RegistryError, "neither HTTPS nor HTTP"),
        (Fault("/manifests/v1", method="HEAD", headers={"Docker-Content-Digest": "sha256:../../x"}), None, ""),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(
    proxy: Proxy, name: str, fault: Fault, kind: type[AotpackError] | None, message: str
) -> None:
    fault.times = 1000
    proxy.faults = [fault]
    if kind is None:
        pulled(proxy, name)
        return
    with pytest.raises(kind, match=message) as caught:
        pulled(proxy, name)
    assert proxy.host in str(caught.value)
    cache = BlobCache()
    for path in cache.blobs.iterdir():  # nothing wrong is kept
        assert path.stat().st_size > 0
    proxy.faults = []
    with Bundle.open(pulled(proxy, name).path) as bundle:
        bundle.verify()


def test_a_busy_registry_is_asked_again(proxy: Proxy, name: str) -> None:
    proxy.faults = [
        Fault("/manifests", method="HEAD", times=2, status=503),
        Fault("/manifests/sha256", times=2, status=429, headers={"Retry-After": "0"}),
        Fault(BLOBS, times=3, status=502),
    ]
    with Bundle.open(pulled(proxy, name).path) as bundle:
        bundle.verify()


def test_a_registry_that_stops_sending_is_given_up(proxy: Proxy, name: str) -> None:
    proxy.faults = [Fault("/manifests", delay=2.0), Fault("/manifests", method="HEAD", delay=2.0)]
    with pytest.raises(RegistryConnectionError, match="sends nothing any more"):
        pull(Reference.parse(proxy.reference(name)), by_name(()), transport=quick(read_timeout=0.1, attempts=2))


def test_a_host_that_is_not_there_is_named() -> None:
    with pytest.raises(RegistryConnectionError, match=r"127.0.0.1:9/a/b: the host cannot be reached"):
        pull(Reference.parse("oci://127.0.0.1:9/a/b:v1"), by_name(()), transport=quick(attempts=2))


def test_a_broken_upload_is_resumed(proxy: Proxy, two: Path) -> None:
    proxy.uploads = {}  # docker-registry 2.8 begins again after a broken request
    proxy.faults = [Fault("/blobs/uploads", method="PATCH", times=3, cut_request=1_500_000)]
    reference = Reference.parse(proxy.reference("faults/upload:v1"))
    push(two, reference, transport=quick())
    assert [seen for seen in proxy.seen if seen.method == "GET" and "/uploads/" in seen.path]
    assert proxy.bodies("PATCH") + proxy.bodies("PUT") < two.stat().st_size + 100_000  # nothing went twice
    with Bundle.open(pull(reference, by_name(()), transport=quick()).path) as bundle:
        bundle.verify()


def test_an_upload_that_cannot_be_resumed_begins_again(proxy: Proxy, two: Path) -> None:
    proxy.faults = [Fault("/blobs/uploads", method="PATCH", times=2, cut_request=1_500_000)]
    reference = Reference.parse(proxy.reference("faults/again:v1"))
    push(two, reference, transport=quick())
    with Bundle.open(pull(reference, by_name(()), transport=quick()).path) as bundle:
        bundle.verify()


def test_an_upload_in_chunks(proxy: Proxy, two: Path) -> None:
    reference = Reference.parse(proxy.reference("faults/chunks:v1"))
    proxy.faults = [Fault("/blobs/uploads", method="PATCH", times=1, cut_request=100_000)]
    push(two, reference, transport=quick(chunk_size=1_000_000))
    assert max(seen.received for seen in proxy.seen if seen.method == "PATCH") <= 1_000_000
    with Bundle.open(pull(reference, by_name(()), transport=quick()).path) as bundle:
        bundle.verify()


def test_an_upload_that_the_registry_forgot_begins_again(proxy: Proxy, two: Path) -> None:
    proxy.faults = [
        Fault("/blobs/uploads", method="PATCH", times=1, cut_request=1_500_000),
        Fault("/blobs/uploads/.", method="GET", times=1, status=404),
        Fault("/blobs/uploads", method="PUT", times=1, status=500),
    ]
    reference = Reference.parse(proxy.reference("faults/forgotten:v1"))
    push(two, reference, transport=quick())
    with Bundle.open(pull(reference, by_name(()), transport=quick()).path) as bundle:
        bundle.verify()


@pytest.mark.parametrize("fault", [{"status": 503}, {"cut_request": 0}], ids=["status", "cut"])
def test_a_push_that_never_gets_on_is_given_up(proxy: Proxy, two: Path, fault: dict[str, int]) -> None:
    """Bytes that were sent, and that no registry has, counted as progress: it sent them without end."""
    proxy.faults = [Fault("/blobs/uploads", method="PATCH", **fault)]
    with pytest.raises(RegistryError):
        push(two, Reference.parse(proxy.reference("faults/never:v1")), transport=quick(attempts=3))
    assert sum(seen.method == "PATCH" for seen in proxy.seen) <= 4


def test_a_push_that_fails_sets_no_tag(proxy: Proxy, two: Path) -> None:
    proxy.faults = [Fault("/manifests/sha256", method="PUT", status=500)]
    reference = Reference.parse(proxy.reference("faults/untagged:v1"))
    with pytest.raises(RegistryError, match="status 500"):
        push(two, reference, transport=quick())
    proxy.faults = []
    with pytest.raises(RegistryError, match="404"):
        pull(reference, by_name(()), transport=quick())
    push(two, reference, transport=quick())
    pull(reference, by_name(()), transport=quick())


def test_a_mirror_is_asked_first_and_need_not_be_there(registry: Registry, proxy: Proxy, name: str) -> None:
    repository, _, tag = name.partition(":")
    origin = Reference.parse(f"oci://registry.example.com/{repository}:{tag}")
    mirrors = {"registry.example.com": ["127.0.0.1:9", proxy.host]}
    transport = quick(mirrors=mirrors, attempts=1)
    with Bundle.open(pull(origin, by_name(["portable"]), transport=transport).path) as bundle:
        bundle.verify()
    assert proxy.bodies("GET") > 6_000_000


def test_two_pulls_share_one_cache(proxy: Proxy, name: str) -> None:
    proxy.faults = [Fault(BLOBS, delay=0.1)]
    found: list[Pulled] = []
    threads = [threading.Thread(target=lambda: found.append(pulled(proxy, name))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({entry.path for entry in found}) == 1
    assert len(found) == 4
    blobs = [seen.path for seen in proxy.seen if seen.method == "GET" and BLOBS in seen.path]
    assert len(blobs) == len(set(blobs))  # each came once
    with Bundle.open(found[0].path) as bundle:
        bundle.verify()


def test_what_a_killed_pull_left_is_removed_by_the_next(proxy: Proxy, name: str, tmp_path: Path) -> None:
    stale, used = tmp_path / f"{PREFIX}stale", tmp_path / f"{PREFIX}used"
    stale.mkdir()
    (stale / "part").write_text("x")
    with open(used, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as a process that is at work
        reference = Reference.parse(proxy.reference(name))
        pull(reference, by_name(()), out=tmp_path / "out.aotpack", transport=quick())
        pull(reference, by_name(()), out=f"{tmp_path}/out/", transport=quick())
        assert {path.name for path in tmp_path.glob(".aotpack-*")} == {used.name}
    for out in ("out", "out.aotpack"):
        with Bundle.open(tmp_path / out) as bundle:
            bundle.verify()


def test_a_cache_that_cannot_be_written_to(proxy: Proxy, name: str, cache: Path) -> None:
    BlobCache()
    blobs = cache / "registry" / "partial"
    blobs.rmdir()
    blobs.write_text("")
    with pytest.raises(AotpackError, match="cannot be used"):
        pulled(proxy, name)
