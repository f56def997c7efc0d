"""Signatures in the form in which cosign stores them: ours follow it, and those that it attached are found.

cosign itself is in no package registry that tests reach. So the manifests and lists below are written as cosign 3 and the
library that it uploads with do (``WriteReferrer`` and ``commitSubjectReferrers``), and as its specification of bundles in
registries has them: https://github.com/sigstore/cosign/blob/main/specs/BUNDLE_SPEC.md.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aotpack.registry.push import push
from aotpack.signing.sign import about, sign
from aotpack.tools.cli import main
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format.schema import Descriptor
from aotpack_loader.registry.client import Repository, referrers_tag
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference
from aotpack_loader.signing import documents
from aotpack_loader.signing.keys import KINDS, PrivateKey
from aotpack_loader.signing.verify import signer

from .conftest import Registry, quick
from .proxy import Fault, Proxy

pytestmark = pytest.mark.usefixtures("cache")
SIGSTORE = "application/vnd.dev.sigstore.bundle.v0.3+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
EMPTY_DIGEST = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"  # as in the specification
SIGN = "https://sigstore.dev/cosign/sign/v1"
Json = dict[str, Any]


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Uploads:
    """Plain requests to a registry, by no code of ours."""

    def __init__(self, host: str, name: str) -> None:
        self.host, self.name = host, name

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/octet-stream") -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(self.host, timeout=10)
        try:
            connection.request(method, path, body, {"Content-Type": kind, "Accept": f"{INDEX}, {MANIFEST}"})
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Location", ""), answer.read()
        finally:
            connection.close()

    def blob(self, data: bytes) -> None:
        location = self.ask("POST", f"/v2/{self.name}/blobs/uploads/")[1]
        path = re.sub(r"^https?://[^/]+", "", location)
        status, _, _ = self.ask("PUT", f"{path}{'&' if '?' in path else '?'}digest={digest_of(data)}", data)
        assert status == 201

    def manifest(self, document: Json, kind: str, tag: str = "") -> tuple[str, int]:
        data = json.dumps(document).encode()
        assert self.ask("PUT", f"/v2/{self.name}/manifests/{tag or digest_of(data)}", data, kind)[0] == 201
        return digest_of(data), len(data)


def cosign_bundle(subject: str, key: PrivateKey) -> bytes:
    """A Sigstore bundle as cosign writes it, with fields that ours do not have."""
    statement = {"_type": documents.STATEMENT, "subject": [{"digest": {"sha256": subject[7:]}}], "predicateType": SIGN}
    payload = json.dumps(statement).encode()
    made = json.loads(documents.sigstore_bundle(payload, key.sign(payload), key.public.hint))
    made["verificationMaterial"] |= {"tlogEntries": [], "timestampVerificationData": {"rfc3161Timestamps": []}}
    made["dsseEnvelope"]["signatures"][0]["keyid"] = key.public.hint
    return json.dumps(made, indent=1).encode()


def cosign_manifest(subject: Json, document: bytes) -> Json:
    """The manifest of a referrer: ``WriteReferrer`` gives the configuration an artifact type, too."""
    notes = {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": SIGN}
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": SIGSTORE,
        "config": {"mediaType": EMPTY, "size": 2, "digest": EMPTY_DIGEST, "artifactType": SIGSTORE},
        "layers": [
            {
                "mediaType": SIGSTORE, "size": len(document), "digest": digest_of(document),
                "annotations": {"org.opencontainers.image.title": f"{digest_of(document).replace(':', '-')}.sigstore.json"},
            }
        ],
        "annotations": {"org.opencontainers.image.created": "2026-11-24T12:00:00Z", **notes},
        "subject": subject,
    }  # fmt: skip


@pytest.mark.parametrize("listed_as", [SIGSTORE, EMPTY, None], ids=["type", "type of the configuration", "no type"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_signature_that_cosign_attached_is_found(
    registry: Registry, bundle: Path, tmp_path: Path, kind: str, listed_as: str | None
) -> None:
    """cosign up to 3.0 lists a signature under the type of its empty configuration, for registries without the referrers API."""
    name = f"cosign/{kind.replace('-', '')}{len(listed_as or '')}"
    reference, key = Reference.parse(registry.reference(f"{name}:v1")), PrivateKey.generate(kind)
    digest = push(bundle, reference, transport=quick()).digest
    with Bundle.open(bundle) as opened:
        subject = {"mediaType": INDEX, "digest": digest, "size": opened.index.size}
    uploads, document = Uploads(registry.host, name), cosign_bundle(digest, key)
    uploads.blob(document)
    uploads.blob(b"{}")
    made, size = uploads.manifest(cosign_manifest(subject, document), MANIFEST)
    entry = {"mediaType": MANIFEST, "size": size, "digest": made} | ({"artifactType": listed_as} if listed_as else {})
    uploads.manifest({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}, INDEX, f"sha256-{digest[7:]}")
    (tmp_path / "key.pub").write_bytes(key.public.pem)
    out = pull(reference, by_name(()), out=tmp_path / "out", transport=quick()).path
    result = CliRunner().invoke(main, ["verify", str(out), "--key", str(tmp_path / "key.pub")])
    assert result.exit_code == 0, result.output
    # Ours joins it in the list, and both are found.
    sign(out, PrivateKey.generate("ed25519"))
    push(out, reference, transport=quick())
    listed = Repository.of(quick(), reference).referrers(digest)
    assert len(listed) == 2
    with Bundle.open(pull(reference.at(digest), by_name(()), refresh=True, transport=quick()).path) as again:
        assert len(again.attachments()[0]) == 2
        assert signer(again, [key.public]).key is key.public


@pytest.mark.parametrize("api", [False, True], ids=["tag", "referrers API"])
@pytest.mark.parametrize("kind", KINDS)
def test_ours_are_stored_where_cosign_looks(registry: Registry, proxy: Proxy, bundle: Path, kind: str, api: bool) -> None:
    """``GetBundles`` of cosign, step by step: the list, the manifest, its only layer, and the fields of the bundle."""
    proxy.referrers = {} if api else None
    name = f"cosign/ours{len(kind)}{api:d}"
    key = PrivateKey.generate(kind)
    sign(bundle, key)
    digest = push(bundle, Reference.parse(proxy.reference(f"{name}:v1")), transport=quick()).digest
    uploads = Uploads(proxy.host, name)

    def get(path: str) -> bytes:
        status, _, body = uploads.ask("GET", f"/v2/{name}/{path}")
        assert status == 200, path
        return body

    listed = json.loads(get(f"referrers/{digest}" if api else f"manifests/sha256-{digest[7:]}"))
    assert referrers_tag(digest) == f"sha256-{digest[7:]}"
    assert (listed["schemaVersion"], listed["mediaType"]) == (2, INDEX)  # else cosign adds nothing to the list
    (entry,) = listed["manifests"]
    notes = {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": SIGN}
    assert (entry["artifactType"], entry["mediaType"], entry["annotations"]) == (SIGSTORE, MANIFEST, notes)
    data = get(f"manifests/{entry['digest']}")
    assert (digest_of(data), len(data)) == (entry["digest"], entry["size"])
    manifest = json.loads(data)
    assert manifest["artifactType"] == SIGSTORE
    assert manifest["config"] == {"mediaType": EMPTY, "digest": EMPTY_DIGEST, "size": 2}
    assert (manifest["annotations"], manifest["schemaVersion"], manifest["mediaType"]) == (notes, 2, MANIFEST)
    assert (manifest["subject"]["mediaType"], manifest["subject"]["digest"]) == (INDEX, digest)
    (layer,) = manifest["layers"]  # cosign wants exactly one
    assert layer["mediaType"] == SIGSTORE
    assert get(f"blobs/{EMPTY_DIGEST}") == b"{}"
    document = json.loads(get(f"blobs/{layer['digest']}"))
    # The names of the protocol buffers in JSON; cosign refuses names that it does not know.
    assert document.keys() == {"mediaType", "verificationMaterial", "dsseEnvelope"}
    assert document["mediaType"] == SIGSTORE
    assert document["verificationMaterial"].keys() == {"publicKey", "tlogEntries"}
    assert document["verificationMaterial"]["publicKey"] == {"hint": key.public.hint}
    envelope = document["dsseEnvelope"]
    assert envelope.keys() == {"payload", "payloadType", "signatures"}
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert {name for one in envelope["signatures"] for name in one} <= {"sig", "keyid"}


def test_the_subject_of_a_statement_is_the_digest() -> None:
    """cosign compares the digest of the image with the subjects of the statement."""
    found = about(Descriptor(INDEX, f"sha256:{'a' * 64}", 1), "name")
    assert found.digest == {"sha256": "a" * 64}


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(subject={"mediaType": INDEX, "digest": m["subject"]["digest"]}),  # as the specification's example
        lambda m: m.update(layers=[]),
        lambda m: m.update(layers=m["layers"] * 17),
        lambda m: m.update(layers="x"),
        lambda m: m["layers"][0].update(size=1 << 40),
        lambda m: m["layers"][0].update(digest=f"sha256:{'0' * 64}"),
        lambda m: m.update(subject={**m["subject"], "digest": f"sha256:{'0' * 64}"}),
    ],
    ids=["no size", "no layer", "many layers", "no list", "huge", "not there", "another subject"],
)
def test_a_damaged_referrer_does_not_hide_the_bundle(
    registry: Registry, proxy: Proxy, bundle: Path, tmp_path: Path, change: Any
) -> None:
    """Whoever may push can add a referrer. The bundle and its other signatures stay readable."""
    key = PrivateKey.generate("ed25519")
    sign(bundle, key)
    proxy.referrers = {}
    reference = Reference.parse(proxy.reference("cosign/damaged:v1"))
    report = push(bundle, reference, transport=quick())
    with Bundle.open(bundle) as opened:
        subject = {"mediaType": INDEX, "digest": report.digest, "size": opened.index.size}
    manifest = cosign_manifest(subject, cosign_bundle(report.digest, key))
    change(manifest)
    data = json.dumps(manifest).encode()
    bad = {"mediaType": MANIFEST, "size": len(data), "digest": digest_of(data), "artifactType": SIGSTORE}

    assert proxy.referrers is not None
    proxy.referrers[report.digest].insert(0, bad)
    proxy.faults = [Fault(f"/manifests/{bad['digest']}", status=200, body=data, headers={"Content-Type": MANIFEST})]
    with Bundle.open(pull(reference, by_name(()), out=tmp_path / "out", transport=quick()).path) as pulled:
        pulled.verify()
        assert signer(pulled, [key.public]).key is not None
        assert len(pulled.attachments()[0]) == 1


def test_large_referrers_do_not_hide_the_bundle(registry: Registry, proxy: Proxy, bundle: Path, tmp_path: Path) -> None:
    """Annotations of eight made ``index.json`` of the copy so large that the bundle was refused from then on."""
    key = PrivateKey.generate("ed25519")
    sign(bundle, key)
    proxy.referrers = {}
    reference = Reference.parse(proxy.reference("cosign/large:v1"))
    report = push(bundle, reference, transport=quick())
    with Bundle.open(bundle) as opened:
        subject = {"mediaType": INDEX, "digest": report.digest, "size": opened.index.size}
        (known,) = opened.attachments()[0]
    blob = {"mediaType": SIGSTORE, "size": known.layer.size, "digest": known.layer.digest}
    assert proxy.referrers is not None
    for i in range(8):
        manifest = {**cosign_manifest(subject, b""), "layers": [blob], "annotations": {"a": f"{i}{'x' * (1 << 20)}"}}
        data = json.dumps(manifest).encode()
        entry = {"mediaType": MANIFEST, "size": len(data), "digest": digest_of(data), "artifactType": SIGSTORE}
        proxy.referrers[report.digest] = [entry] * 3 + proxy.referrers[report.digest]
        proxy.faults += [Fault(f"/manifests/{entry['digest']}", status=200, body=data, headers={"Content-Type": MANIFEST})]
    with Bundle.open(pull(reference, by_name(()), out=tmp_path / "out", transport=quick()).path) as pulled:
        assert signer(pulled, [key.public]).key is not None
        assert len(pulled.attachments()[0]) == 9
