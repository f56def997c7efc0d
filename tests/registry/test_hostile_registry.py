"""Registries that answer what no honest one would: each is refused with one of our errors, in bounded time and memory."""

from __future__ import annotations

import gc
import hashlib
import http.client
import itertools
import json
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aotpack.registry.push import push
from aotpack_loader.archive.attachments import SIGSTORE_BUNDLE
from aotpack_loader.errors import (
    AotpackError,
    RegistryAuthError,
    RegistryConnectionError,
    RegistryContentError,
    RegistryError,
    RegistryNotFoundError,
)
from aotpack_loader.format import media_types
from aotpack_loader.format.schema import Descriptor
from aotpack_loader.registry import addresses
from aotpack_loader.registry.attachments import bring_attachments
from aotpack_loader.registry.client import Repository
from aotpack_loader.registry.deadlines import SlowAnswerError, Watch, _Watched
from aotpack_loader.registry.download import download
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.store import BlobCache

from .conftest import LogIn, quick
from .raw import Answer, Raw, answer

pytestmark = pytest.mark.usefixtures("cache")
PATIENCE = 0.5
INDEX = "Content-Type: application/vnd.oci.image.index.v1+json"


def pulled(server: Raw) -> None:
    transport = quick(patience=PATIENCE, attempts=2)
    pull(Reference.parse(f"oci://{server.host}/a/b:v1"), by_name(()), transport=transport)


def slowly(start: bytes) -> Callable[[bytes], Iterator[bytes]]:
    """A start, and then one byte after the other."""

    def pieces(request: bytes) -> Iterator[bytes]:
        yield start
        while True:
            time.sleep(0.02)
            yield b"a"

    return pieces


def endlessly(start: bytes, piece: bytes) -> Callable[[bytes], Iterator[bytes]]:
    def pieces(request: bytes) -> Iterator[bytes]:
        yield start
        while True:
            yield piece * 100

    return pieces


def challenged(realm: str) -> bytes:
    return answer("401 Unauthorized", b"", f'WWW-Authenticate: Bearer realm="{realm}"')


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_HEAD = {"HEAD": answer("405 Method Not Allowed")}


@pytest.mark.parametrize(
    "url",
    [
        r"http://127.0.0.1:5000\@registry.example/x",  # urllib3 asks 127.0.0.1, and urlsplit sees the other host
        r"https://169.254.169.254\@registry.example/",
        "http://a b/",
        'http://a"b/',
        "http://a{b}/",
        "http://a,b/",
        "http://[::1/",
        "http://a:99999/",
    ],
)
def test_an_address_of_two_meanings_is_refused(url: str) -> None:
    with pytest.raises(RegistryContentError, match="not understood"):
        addresses.split(url, "registry.example")


@pytest.mark.parametrize("host", ["localhost.", "127.0.0.1.", "a.localhost.", "0x7f.1", "[::ffff:127.0.0.1]", "[fe80::1%25eth0]"])
def test_addresses_of_this_machine(host: str) -> None:
    assert addresses.is_inside(addresses.split(f"http://{host}:80/x", "registry.example"))


@pytest.mark.parametrize("host", ["registry.example", "registry.example:443", "user:pass@registry.example", "[2001:db8::1]:80"])
def test_addresses_of_others(host: str) -> None:
    assert not addresses.is_inside(addresses.split(f"https://{host}/x?y=z", "registry.example"))


def test_a_link_names_no_other_host() -> None:
    link = 'Link: <http://x//127.0.0.1:1/v2/a/b/tags/list?n=1>; rel="next"'
    with Raw({"GET": answer("200 OK", b'{"tags": ["v1"]}', link)}) as server, pytest.raises(RegistryContentError, match="circle"):
        Repository(quick(patience=PATIENCE, attempts=1), server.host, "a/b").tags()
    assert any("GET /127.0.0.1:1/" in line for line in server.seen)


@pytest.mark.parametrize(
    "routes",
    [
        {"HEAD": slowly(b"")},
        {"HEAD": slowly(b"HTTP/1.1 200 OK\r\nX: ")},
        {"HEAD": endlessly(b"", b"HTTP/1.1 100 Continue\r\n\r\n")},
        {**NO_HEAD, "GET": slowly(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")},
        {**NO_HEAD, "GET": slowly(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")},
        {**NO_HEAD, "GET": slowly(CHUNKED)},
        {**NO_HEAD, "GET": endlessly(CHUNKED + b"0\r\n", b"X: y\r\n")},
    ],
    ids=["status", "header", "continue", "body", "body without length", "chunk", "trailers"],
)
def test_an_answer_without_end_is_given_up(routes: dict[str, Answer]) -> None:
    start = time.monotonic()
    with Raw(routes) as server, pytest.raises(RegistryConnectionError, match="sends too slowly"):
        pulled(server)
    assert time.monotonic() - start < 10 * PATIENCE
    assert sum(line.startswith(("HEAD", "GET")) for line in server.seen) <= 2  # it is not asked again


@pytest.mark.parametrize("piece", [b"1000\r\n" + b"x" * 4096 + b"\r\n", b"ffffffffffffffff\r\n" + b"x" * 65536])
def test_a_body_without_end_is_not_kept(piece: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        Raw({**NO_HEAD, "GET": endlessly(CHUNKED, piece)}) as server,
        pytest.raises(RegistryContentError, match="is larger than"),
    ):
        pulled(server)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize(
    "location",
    ["https://[", "//[::1", "http://127.0.0.1:abc/", "http://127.0.0.1:999999/", "http://127.0.0.1\x01/", "data:,x", "file:///etc/passwd"],
)  # fmt: skip
@pytest.mark.parametrize("where", ["redirect", "token", "page", "upload"])
def test_an_address_that_is_none(location: str, where: str, bundle: Path) -> None:
    redirect = answer("302 Found", b"", f"Location: {location}")
    routes: dict[str, dict[str, Answer]] = {
        "redirect": {"HEAD": redirect},
        "token": {"HEAD": challenged(location)},
        "page": {"tags": answer("200 OK", b'{"tags":["a"]}', f'Link: <{location}>; rel="next"')},
        "upload": {"HEAD": answer("404 Not Found"), "POST": answer("202 Accepted", b"", f"Location: {location}")},
    }
    with Raw(routes[where]) as server:
        reference = Reference.parse(f"oci://{server.host}/a/b:v1")
        calls: dict[str, Callable[[], object]] = {
            "page": Repository(quick(), server.host, "a/b").tags,
            "upload": lambda: push(bundle, reference, transport=quick(attempts=2)),
        }
        with pytest.raises(RegistryError) as caught:
            calls.get(where, lambda: pulled(server))()
    assert str(caught.value).replace("\n", " ").isprintable()


@pytest.mark.parametrize(
    "inside",
    ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "[fe80::1]", "0.0.0.0", "[::ffff:169.254.169.254]", "127.1",
     "0x7f000001", "2130706433", "x.localhost"],
)  # fmt: skip
def test_a_registry_elsewhere_sends_nobody_to_this_machine(inside: str, log_in: LogIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by a redirect, nor as a token server, which would get the password."""
    log_in("registry.example", username="me", password="s3cret")
    transport = quick(plain_http=frozenset({"registry.example", inside, f"{inside}:80"}))
    send, asked = transport._send, []
    answers = iter((answer("302 Found", b"", f"Location: http://{inside}/x"), challenged(f"http://{inside}/token")))

    def sent(method: str, url: str, *rest: object) -> object:
        asked.append(url)
        return send(method, url.replace("registry.example", server.host), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(transport, "_send", sent)
    with Raw({"HEAD": lambda request: next(answers)}) as server:
        for _ in range(2):
            with pytest.raises(RegistryError, match="this machine or its own network"):
                pull(Reference.parse("oci://registry.example/a/b:v1"), by_name(()), transport=transport)
    assert all("registry.example" in url for url in asked)


@pytest.mark.parametrize("seconds", ["9" * 400, "-1", "1e999", "NaN", '"x"', "null"])
def test_how_long_a_token_lives_may_be_anything(seconds: str) -> None:
    token = answer("200 OK", b'{"token": "x", "expires_in": ' + seconds.encode() + b"}")
    with Raw({"GET /token": token}) as server:
        server.routes["HEAD"] = challenged(f"http://{server.host}/token")
        with pytest.raises(RegistryAuthError):  # the registry refuses the token, too
            pulled(server)


def open_sockets() -> set[socket.socket]:
    return {found for found in gc.get_objects() if issubclass(type(found), socket.socket) and found.fileno() != -1}


@pytest.mark.parametrize("length", ["\xb2", "9" * 5000, "-1", "1, 2", "0x10", ""])
def test_counts_that_are_none(length: str, bundle: Path) -> None:
    before = open_sockets()
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n".encode("latin-1")
    with Raw({"HEAD": head, "POST": answer("500 Internal Server Error")}) as server, pytest.raises(AotpackError):
        push(bundle, Reference.parse(f"oci://{server.host}/a/b:v1"), transport=quick(attempts=2, patience=PATIENCE))
    assert open_sockets() <= before


@pytest.mark.parametrize(
    ("body", "link", "message"),
    [
        (b'{"tags":["a"]}', "</v2/a/b/tags/list?n=1000>", "goes round in a circle"),
        (b'{"tags":["\\u001b[31m"]}', "", "no tag"),
        (b'{"tags":["../../x"]}', "", "no tag"),
        (b'{"tags":[' + b"[]," * 1_000_000 + b"[]]}", "", "not understood"),
        (b'{"tags":' + b"9" * 10_000 + b"}", "", "not understood"),
        (b"[" * 1_000_000, "", "not understood"),
        (b'{"tags":["' + b"a" * (4 << 20) + b'"]}', "", "is larger than"),
    ],
)
def test_lists_of_tags(body: bytes, link: str, message: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    routes: dict[str, Answer] = {"tags": answer("200 OK", body, *([f'Link: {link}; rel="next"'] if link else []))}
    with Raw(routes) as server, pytest.raises(RegistryContentError, match=message):
        Repository(quick(), server.host, "a/b").tags()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_list_of_ever_new_pages_ends() -> None:
    numbers = itertools.count()

    def page(request: bytes) -> bytes:
        tags = ",".join(f'"t{next(numbers)}"' for _ in range(100_000))
        return answer("200 OK", f'{{"tags":[{tags}]}}'.encode(), f'Link: </v2/a/b/tags/list?last={next(numbers)}>; rel="next"')

    with Raw({"tags": page}) as server, pytest.raises(RegistryContentError, match="more than 1000 pages or 16777216 bytes"):
        Repository(quick(), server.host, "a/b").tags()
    assert len(server.seen) < 30


class Listing:
    """A repository that lists many referrers, and has none of them."""

    host, name = "registry.example", "a/b"

    def __init__(self, entries: list[Descriptor]) -> None:
        self.entries, self.asked = entries, list[str]()

    def referrers(self, digest: str) -> list[Descriptor]:
        return self.entries

    def manifest(self, digest: str) -> None:
        self.asked.append(digest)
        raise RegistryNotFoundError("there is none")


def referrer(number: int, kind: str) -> Descriptor:
    return Descriptor(media_types.OCI_MANIFEST, f"sha256:{number:064x}", 100, artifact_type=kind)


def test_many_referrers_do_not_hide_a_signature(tmp_path: Path) -> None:
    """1,024 others came first in the list, and the signature was not looked at."""
    signature, others = referrer(9999, SIGSTORE_BUNDLE), [referrer(i, "text/plain") for i in range(1024)]
    listing, cache = Listing([*others, signature]), BlobCache(tmp_path / "cache")
    with pytest.warns(UserWarning, match="lists 1025 attachments .*the limit is 1024.*Signatures may be missing"):
        assert (
            bring_attachments(
                listing,
                cache,  # type: ignore[arg-type]
                Descriptor(media_types.OCI_INDEX, f"sha256:{0:064x}", 1),
                tmp_path,
            )
            == []
        )
    assert listing.asked[0] == signature.digest
    assert len(listing.asked) == 1024


def test_pages_of_referrers_are_all_read() -> None:
    """As the distribution API has it: large lists come in pages."""

    def listed(digit: str) -> bytes:
        entry = {"mediaType": media_types.OCI_MANIFEST, "digest": f"sha256:{digit * 64}", "size": 2}
        return json.dumps({"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": [entry]}).encode()

    digest = f"sha256:{'a' * 64}"
    routes: dict[str, Answer] = {
        "page=2": answer("200 OK", listed("2"), INDEX),
        "referrers": answer("200 OK", listed("1"), INDEX, f'Link: </v2/a/b/referrers/{digest}?page=2>; rel="next"'),
    }
    with Raw(routes) as server:
        found = Repository(quick(), server.host, "a/b").referrers(digest)
    assert [entry.digest[-1] for entry in found] == ["1", "2"]


def hashed(data: bytes) -> dict[str, object]:
    return {"mediaType": media_types.OCI_MANIFEST, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def test_documents_are_bounded_before_they_are_fetched(cache: Path) -> None:
    """``inspect`` fetches documents alone, so a registry must not be able to fill the disk with them."""
    huge = {"mediaType": media_types.PROGRAM, "digest": f"sha256:{'b' * 64}", "size": 1 << 40}
    manifest = {"schemaVersion": 2, "mediaType": media_types.OCI_MANIFEST, "artifactType": "x", "config": huge, "layers": [huge]}
    raw = json.dumps(manifest).encode()

    def serve(entries: list[dict[str, object]]) -> tuple[dict[str, Answer], str]:
        listed = {
            "schemaVersion": 2,
            "mediaType": media_types.OCI_INDEX,
            "artifactType": media_types.BUNDLE,
            "manifests": entries,
        }
        index = json.dumps(listed).encode()
        digest = str(hashed(index)["digest"])
        named = answer("200 OK", b"", f"Docker-Content-Digest: {digest}")
        routes: dict[str, Answer] = {
            "HEAD": named, digest: answer("200 OK", index, INDEX), str(hashed(raw)["digest"]): answer("200 OK", raw)
        }  # fmt: skip
        return routes, digest

    for entries, message in (([hashed(raw)], "more than 268435456 bytes"), ([hashed(raw)] * 1025, "1025 targets")):
        routes, _ = serve(entries)
        with Raw(routes) as server, pytest.raises(RegistryContentError, match=message):
            pulled(server)
        assert not any("/blobs/" in line for line in server.seen)
    assert all(path.stat().st_size < 1 << 20 for path in BlobCache().partial.iterdir())


@pytest.mark.parametrize(
    "blob",
    [
        # Two bytes more with each connection, for ever.
        lambda request: answer("206 Partial Content", b"", "X: y").replace(b"Content-Length: 0", b"X: z") + b"ab",
        # It refuses to go on where it stopped, and begins again.
        lambda request: answer("416 Range Not Satisfiable") if b"Range:" in request else answer("200 OK", b"a" * 70_000)[:-10],
        lambda request: answer("206 Partial Content", b"a" * 100, "Content-Range: bytes 7-99/100"),
        lambda request: answer("206 Partial Content", b"a", f"Content-Range: bytes {'9' * 5000}-1/2"),
    ],
    ids=["crumbs", "begins again", "another range", "digits"],
)
def test_a_blob_that_never_comes_to_an_end(blob: Callable[[bytes], bytes]) -> None:
    wanted = Descriptor("x", f"sha256:{'c' * 64}", 70_000)
    with Raw({"blobs": blob}) as server:
        repository = Repository(quick(attempts=4, patience=PATIENCE), server.host, "a/b")
        with pytest.raises(RegistryError):
            BlobCache().add(wanted, lambda sink: download(repository, wanted, sink, lambda count: None))
    assert len(server.seen) < 20


def test_a_type_with_control_characters_is_shown_without() -> None:
    evil = answer("200 OK", b"{}", "Content-Type: \x1b[31mevil")
    with Raw({**NO_HEAD, "GET": evil}) as server, pytest.raises(RegistryContentError, match=r"is a  \[31mevil, not an aotpack"):
        pulled(server)


class Late:
    """A connection whose answer comes after its time."""

    response_class: Callable[..., http.client.HTTPResponse]

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self.answer = self.response_class(ours)
        ours.close()

    def getresponse(self) -> http.client.HTTPResponse:
        time.sleep(0.6)
        return self.answer


def test_an_answer_that_comes_late_is_closed() -> None:
    connection = type("WatchedLate", (_Watched, Late), {"watch": Watch(), "patience": 0.0})()
    with connection.peer, pytest.raises(SlowAnswerError):
        connection.getresponse()
    assert connection.answer.isclosed()
