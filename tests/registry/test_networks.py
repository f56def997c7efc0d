"""TLS with a CA of one's own, plain HTTP, proxies, mirrors: who is reached how, and who gets to see credentials."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from aotpack.registry.push import push
from aotpack_loader.errors import AotpackError, RegistryConnectionError, RegistryError
from aotpack_loader.registry.pull import Pulled, by_name, pull
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.settings import Settings
from aotpack_loader.registry.transport import Transport

from .conftest import PASSWORD, USER, LogIn, Registry, quick
from .proxy import Fault, Proxy
from .tls import NAME, Authority, Tunnel, lead_here

pytestmark = pytest.mark.usefixtures("cache")
AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
IDENTITY = "identity-token-word"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "own-ca")


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "other-ca")


@pytest.fixture
def secure(registry: Registry, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A registry with TLS, as 127.0.0.1 and registry.test."""
    lead_here(monkeypatch)
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    with Proxy(registry.host, authority.server(NAME, "127.0.0.1", "mirror.test")) as running:
        yield running


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """All that is logged, by any library at any level."""
    text = io.StringIO()
    handler, root = logging.StreamHandler(text), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)
    assert "urllib3" in text.getvalue() or "http" in text.getvalue().lower()  # it did log


def named(proxy: Proxy, repository: str, host: str = NAME) -> Reference:
    return Reference.parse(f"oci://{host}:{proxy.port}/{repository}")


def from_environment(**options: object) -> Transport:
    return quick(**{**vars(Settings.from_environment()), "back_off": 0.01, "attempts": 2, **options})


def pulled(reference: Reference, transport: Transport) -> Pulled:
    return pull(reference, by_name(()), transport=transport)


@pytest.mark.parametrize("host", [NAME, "127.0.0.1"])
def test_a_ca_of_ones_own(secure: Proxy, authority: Authority, bundle: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = named(secure, "tls/own:v1", host)
    push(bundle, reference, transport=quick(ca_file=str(authority.file)))
    assert pulled(reference, quick(ca_file=str(authority.file))).digest
    for variable in ("AOTPACK_CA_FILE", "SSL_CERT_FILE"):
        with pytest.raises(RegistryConnectionError):
            pulled(reference, from_environment())
        monkeypatch.setenv(variable, str(authority.file))
        assert pulled(reference, from_environment()).digest
        monkeypatch.delenv(variable)


@pytest.mark.parametrize("host", [NAME, "127.0.0.1"])
def test_a_certificate_that_is_not_trusted_is_refused(secure: Proxy, other_authority: Authority, host: str) -> None:
    """Also on this machine, where plain HTTP would be allowed."""
    for transport in (quick(), quick(ca_file=str(other_authority.file))):
        with pytest.raises(RegistryConnectionError, match=r"certificate verify failed(.|\n)*AOTPACK_CA_FILE") as caught:
            pulled(named(secure, "tls/own:v1", host), transport)
        assert str(secure.port) in str(caught.value)
    assert secure.seen == []


def test_a_certificate_of_another_host_is_refused(registry: Registry, authority: Authority, secure: Proxy) -> None:
    with (
        Proxy(registry.host, authority.server("elsewhere.test")) as wrong,
        pytest.raises(RegistryConnectionError, match=r"certificate is not valid for 'registry\.test'"),
    ):
        pulled(named(wrong, "tls/own:v1"), quick(ca_file=str(authority.file)))
    assert wrong.seen == []


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_file_that_cannot_be_used_is_named(secure: Proxy, tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RegistryError, match=r"The CA file '.*ca\.pem' cannot be used"):
        pulled(named(secure, "tls/own:v1"), quick(ca_file=str(path)))


def test_plain_http_needs_permission(proxy: Proxy, bundle: Path, monkeypatch: pytest.MonkeyPatch, log_in: LogIn) -> None:
    lead_here(monkeypatch)
    reference = named(proxy, "plain/tiny:v1")
    log_in(f"{NAME}:{proxy.port}", auth=AUTH)
    with pytest.raises(RegistryConnectionError, match="the host answers without TLS") as caught:
        push(bundle, reference, transport=quick())
    assert f"AOTPACK_PLAIN_HTTP={NAME}:{proxy.port}" in str(caught.value)
    assert proxy.seen == []
    monkeypatch.setenv("AOTPACK_PLAIN_HTTP", f"{NAME}:{proxy.port}")
    push(bundle, reference, transport=from_environment())
    with pytest.raises(RegistryConnectionError):  # another port is another registry
        pulled(Reference.parse(f"oci://{NAME}:1/a/b:v1"), from_environment())


def test_a_token_server_without_tls_gets_no_password(secure: Proxy, proxy: Proxy, authority: Authority, log_in: LogIn) -> None:
    log_in(f"{NAME}:{secure.port}", auth=AUTH)
    secure.token, secure.realm = "x", f"http://tokens.test:{proxy.port}/token"
    with pytest.raises(RegistryError, match=r"tokens\.test:\d+ would be reached without TLS"):
        pulled(named(secure, "tls/own:v1"), quick(ca_file=str(authority.file)))
    assert proxy.seen == []


def test_a_redirect_to_plain_http_is_refused(secure: Proxy, proxy: Proxy, authority: Authority, bundle: Path) -> None:
    reference, transport = named(secure, "tls/moved:v1"), quick(ca_file=str(authority.file))
    push(bundle, reference, transport=transport)
    secure.faults = [Fault("/blobs/", status=307, headers={"Location": f"http://127.0.0.1:{proxy.port}/v2/x"})]
    with pytest.raises(RegistryError, match="leads from HTTPS to a connection without TLS"):
        pulled(reference, transport)
    assert proxy.seen == []


def test_a_proxy_tunnels_and_sees_no_credentials(
    secure: Proxy,
    authority: Authority,
    bundle: Path,
    log_in: LogIn,
    monkeypatch: pytest.MonkeyPatch,
    logged: io.StringIO,
) -> None:
    log_in(f"{NAME}:{secure.port}", auth=AUTH)
    secure.token, secure.realm = "a-secret-token", f"https://{NAME}:{secure.port}/token"
    reference = named(secure, "tls/tunnel:v1")
    with Tunnel() as tunnel:
        monkeypatch.setenv("HTTPS_PROXY", f"http://someone:proxy-word@{tunnel.address}")
        push(bundle, reference, transport=quick(ca_file=str(authority.file)))
        assert set(tunnel.seen) == {(f"{NAME}:{secure.port}", "someone:proxy-word")}
        count = len(tunnel.seen)
        monkeypatch.setenv("NO_PROXY", ".test")
        pulled(reference, quick(ca_file=str(authority.file)))
        assert len(tunnel.seen) == count
    for secret in (AUTH, PASSWORD, "proxy-word", "a-secret-token"):
        assert secret not in logged.getvalue()


def test_a_proxy_that_is_not_there_is_named_without_its_password(
    secure: Proxy, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://someone:proxy-word@127.0.0.1:9")
    with pytest.raises(RegistryConnectionError, match="the proxy cannot be reached") as caught:
        pulled(named(secure, "tls/own:v1"), quick(ca_file=str(authority.file), attempts=1))
    assert "proxy-word" not in str(caught.value)


def test_this_machine_is_reached_without_a_proxy(proxy: Proxy, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    push(bundle, Reference.parse(proxy.reference("plain/direct:v1")), transport=quick())


def test_plain_http_goes_through_its_proxy(proxy: Proxy, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a proxy gets the whole address in each request. Ours answers with its path alone."""
    monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.host}")
    reference = Reference.parse("oci://registry.test:5000/plain/proxied:v1")
    proxy.faults = [Fault("^http://registry.test:5000/v2/", method="HEAD", status=404)]
    with pytest.raises(RegistryError, match="404"):
        pulled(reference, quick(plain_http=frozenset({"registry.test:5000"})))
    assert [seen.path for seen in proxy.seen] == ["http://registry.test:5000/v2/plain/proxied/manifests/v1"]


def test_an_identity_token_goes_to_the_token_server_alone(
    secure: Proxy, authority: Authority, bundle: Path, log_in: LogIn, logged: io.StringIO
) -> None:
    log_in(f"{NAME}:{secure.port}", auth=base64.b64encode(b"00000000:").decode(), identitytoken=IDENTITY)
    secure.token, secure.realm = "an-access-token", f"https://{NAME}:{secure.port}/token"
    reference = named(secure, "tls/identity:v1")
    push(bundle, reference, transport=quick(ca_file=str(authority.file)))
    asked = [seen for seen in secure.seen if seen.path.startswith("/token")]
    form = parse_qs(asked[0].body.decode())
    assert asked[0].method == "POST"
    assert (form["grant_type"], form["refresh_token"]) == (["refresh_token"], [IDENTITY])
    assert form["scope"] == ["repository:tls/identity:pull,push"]
    rest = [seen for seen in secure.seen if not seen.path.startswith("/token")]
    assert not any(IDENTITY in str(vars(seen)) for seen in rest)
    assert IDENTITY not in logged.getvalue()
    secure.faults = [Fault("/token", method="POST", status=401, body=IDENTITY.encode())]
    with pytest.raises(AotpackError, match="refused these credentials") as caught:
        pulled(reference, quick(ca_file=str(authority.file)))
    assert IDENTITY not in str(caught.value)


def test_a_mirror_does_not_get_the_registrys_credentials(
    secure: Proxy, authority: Authority, bundle: Path, log_in: LogIn
) -> None:
    origin = Reference.parse("oci://origin.test:1/tls/mirrored:v1")
    transport = quick(ca_file=str(authority.file), mirrors={"origin.test:1": [f"mirror.test:{secure.port}"]})
    push(bundle, named(secure, "tls/mirrored:v1"), transport=quick(ca_file=str(authority.file)))
    log_in("origin.test:1", auth=AUTH)
    secure.seen.clear()
    assert pulled(origin, transport).digest
    secure.token, secure.realm = "x", f"https://mirror.test:{secure.port}/token"
    pull(origin.at(""), by_name(()), transport=transport, refresh=True)  # it asks for a token, anonymously
    assert [seen for seen in secure.seen if seen.path.startswith("/token")]
    assert not any(seen.headers.get("Authorization", "Bearer x") != "Bearer x" for seen in secure.seen)
