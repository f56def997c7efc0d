"""Credentials: where they are found, whom they are shown to, and that nothing else repeats them."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from aotpack.registry.push import push
from aotpack_loader.errors import BundleReferenceError, RegistryAuthError, RegistryError
from aotpack_loader.registry.auth import parse_challenges
from aotpack_loader.registry.credentials import Credential, find_credential
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.settings import Settings, is_loopback

from .conftest import PASSWORD, USER, LogIn, Registry, quick
from .proxy import Fault, Proxy

pytestmark = pytest.mark.usefixtures("cache")
AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def test_a_registry_with_a_password(private_registry: Registry, bundle: Path, log_in: LogIn) -> None:
    reference = Reference.parse(private_registry.reference("secret/tiny:v1"))
    with pytest.raises(RegistryAuthError, match=r"status 401.*\n.*docker login 127.0.0.1"):
        push(bundle, reference, transport=quick())
    log_in(private_registry.host, auth=base64.b64encode(f"{USER}:wrong-word".encode()).decode())
    with pytest.raises(RegistryAuthError) as caught:
        push(bundle, reference, transport=quick())
    assert "wrong-word" not in str(caught.value)
    log_in(private_registry.host, auth=AUTH)
    push(bundle, reference, transport=quick())
    pull(reference, by_name(()), transport=quick())


def test_a_credential_helper(private_registry: Registry, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps({"ServerURL": "", "Username": USER, "Secret": PASSWORD})
    helper = tmp_path / "bin" / "docker-credential-test"
    helper.parent.mkdir()
    helper.write_text(f"#!/bin/sh\nread host\n[ \"$host\" = {private_registry.host} ] && echo '{answer}'\n")
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"credHelpers": {private_registry.host: "test"}}))
    push(bundle, Reference.parse(private_registry.reference("secret/helper:v1")), transport=quick())
    (folder / "config.json").write_text(json.dumps({"credsStore": "absent"}))
    with pytest.raises(RegistryAuthError, match="docker-credential-absent is not installed"):
        find_credential("example.com")


def test_tokens_are_fetched_once_and_sent_to_the_registry_alone(
    proxy: Proxy, registry: Registry, bundle: Path, log_in: LogIn
) -> None:
    """The proxy asks for a Bearer token, gives one, and sends downloads to another host, as a registry with a CDN does."""
    push(bundle, Reference.parse(registry.reference("tokens/tiny:v1")), transport=quick())
    log_in(proxy.host, auth=AUTH)
    with Proxy(registry.host) as elsewhere:
        proxy.token = "a-secret-token"
        proxy.moved = elsewhere.host
        pull(Reference.parse(proxy.reference("tokens/tiny:v1")), by_name(()), transport=quick())
        asked = [seen for seen in proxy.seen if seen.path.startswith("/token")]
        assert len(asked) == 1
        assert parse_qs(urlsplit(asked[0].path).query) == {"service": ["test"], "scope": ["repository:tokens/tiny:pull"]}
        assert asked[0].headers["Authorization"] == f"Basic {AUTH}"
        blobs = [seen for seen in elsewhere.seen if "/blobs/" in seen.path]
        assert blobs
        assert not any("Authorization" in seen.headers for seen in elsewhere.seen)
    assert all(seen.headers.get("Authorization") in (None, "Bearer a-secret-token") for seen in proxy.seen if "/v2/" in seen.path)


def test_another_hosts_challenge_gets_no_answer(proxy: Proxy, registry: Registry, bundle: Path, log_in: LogIn) -> None:
    push(bundle, Reference.parse(registry.reference("tokens/asked:v1")), transport=quick())
    with Proxy(registry.host) as elsewhere:
        log_in(proxy.host, auth=AUTH)
        proxy.moved = elsewhere.host
        elsewhere.token = "x"
        with pytest.raises(RegistryAuthError):
            pull(Reference.parse(proxy.reference("tokens/asked:v1")), by_name(()), transport=quick())
        assert not any("Authorization" in seen.headers for seen in elsewhere.seen)


def test_a_registry_that_repeats_the_password_is_not_quoted(proxy: Proxy, log_in: LogIn) -> None:
    log_in(proxy.host, auth=AUTH)
    said = json.dumps({"errors": [{"code": "DENIED", "message": f"{USER} {PASSWORD} {AUTH} may not"}]}).encode()
    challenge = {"WWW-Authenticate": 'Basic realm="x"'}
    proxy.faults = [Fault("/v2/", status=401, headers=challenge, body=said)]
    with pytest.raises(RegistryAuthError) as caught:
        pull(Reference.parse(proxy.reference(f"a/b@sha256:{'0' * 64}")), by_name(()), transport=quick())
    assert "DENIED" in str(caught.value)
    assert PASSWORD not in str(caught.value)
    assert AUTH not in str(caught.value)


def test_a_secret_is_not_shown() -> None:
    assert PASSWORD not in repr(Credential(USER, PASSWORD))
    with pytest.raises(BundleReferenceError) as caught:
        Reference.parse(f"oci://{USER}:{PASSWORD}@example.com/a:b")
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("document", "host", "repository", "user"),
    [
        ({"auths": {"example.com": {"auth": AUTH}}}, "example.com", "a/b", USER),
        ({"auths": {"https://example.com": {"auth": AUTH}}}, "example.com", "a/b", USER),
        ({"auths": {"https://index.docker.io/v1/": {"auth": AUTH}}}, "docker.io", "library/a", USER),
        ({"auths": {"h.com/a": {"username": "a", "password": "p"}, "h.com": {"auth": AUTH}}}, "h.com", "a/b", "a"),
        ({"auths": {"example.com": {"identitytoken": "t"}}}, "example.com", "a/b", "<token>"),
        ({"auths": {"example.com": {}}}, "example.com", "a/b", None),
        ({"auths": {"example.com": {"auth": AUTH}}}, "evil.example.com", "a/b", None),
    ],
)  # fmt: skip
def test_where_credentials_are_found(tmp_path: Path, document: object, host: str, repository: str, user: str | None) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(json.dumps(document))
    found = find_credential(host, repository)
    assert (found.user if found else None) == user


@pytest.mark.parametrize("text", ["{", "[]", '{"auths": {"example.com": {"auth": "***"}}}'])
def test_a_bad_credential_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker" / "config.json").write_text(text)
    with pytest.raises(RegistryAuthError, match=r"config\.json"):
        find_credential("example.com")


def test_challenges() -> None:
    assert parse_challenges('Bearer realm="https://a/t",service="s",scope="repository:a:pull,push"') == [
        ("bearer", {"realm": "https://a/t", "service": "s", "scope": "repository:a:pull,push"})
    ]
    assert parse_challenges('Basic realm="x", Bearer realm="y"') == [("basic", {"realm": "x"}), ("bearer", {"realm": "y"})]
    assert parse_challenges("Negotiate") == [("negotiate", {})]
    assert parse_challenges('"' * 1000) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("oci://", "host name"), ("oci://host", "no repository"), ("oci://host/", "no repository"),
        ("oci://host/A:b", "lower-case"),
        ("oci://host/a:", "not a tag"), ("oci://host/a@sha256:1", "not a sha256"), ("oci://ho st/a:b", "host name"),
        ("oci://host/../a:b", "lower-case"), ("oci://host/a?x=y", "lower-case"), ("http://host/a", "not a reference"),
        ("oci://host:port/a:b", "host name"), ("oci://host/a:b:c", "not a tag"), ("oci://-/a:b", "host name"),
    ],
)  # fmt: skip
def test_what_is_no_reference(text: str, message: str) -> None:
    with pytest.raises(BundleReferenceError, match=message):
        Reference.parse(text)


def test_references_as_text() -> None:
    for text in ("oci://host:5000/a/b:v1", f"oci://[::1]:5000/a:v1@sha256:{'a' * 64}", f"oci://h.example/a@sha256:{'0' * 64}"):
        assert str(Reference.parse(text)) == text
    assert Reference.parse("oci://docker.io/model:v1").repository == "library/model"
    with pytest.raises(BundleReferenceError, match="neither a tag nor a digest"):
        assert Reference.parse("oci://host/a").wanted


@pytest.mark.parametrize(("host", "loopback"), [
    ("localhost", True), ("localhost:5000", True), ("127.0.0.1:5000", True), ("[::1]:5000", True), ("127.9.9.9", True),
    ("example.com", False), ("10.0.0.1:5000", False), ("localhost.example.com", False), ("127.0.0.1.example.com", False),
])  # fmt: skip
def test_plain_http_is_for_loopback_and_listed_hosts(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_settings_come_from_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_PLAIN_HTTP", "a.lan, b.lan:5000")
    monkeypatch.setenv("AOTPACK_MIRRORS", "docker.io=mirror.lan/hub")
    settings = Settings.from_environment(plain_http=["c.lan"])
    assert settings.plain_http == {"a.lan", "b.lan:5000", "c.lan"}
    sources = settings.sources(Reference.parse("oci://docker.io/a/b:v1"))
    assert [str(source) for source in sources] == ["oci://mirror.lan/hub/a/b:v1", "oci://docker.io/a/b:v1"]
    monkeypatch.setenv("AOTPACK_MIRRORS", "nonsense")
    with pytest.raises(RegistryError, match="HOST=MIRROR"):
        Settings.from_environment()
