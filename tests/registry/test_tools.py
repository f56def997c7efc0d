"""The referrers API, and other programs at our bundles: skopeo and oras."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.archive import members

from aotpack.registry.copy import copy
from aotpack.registry.image import push_image
from aotpack.registry.push import push
from aotpack.signing.sign import sign
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.registry.client import Repository, referrers_tag
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference
from aotpack_loader.signing.keys import PrivateKey

from .conftest import Registry, quick, skopeo
from .proxy import Fault, Proxy

pytestmark = pytest.mark.usefixtures("cache")
INSECURE = "--src-tls-verify=false", "--dest-tls-verify=false"
SIGSTORE = "application/vnd.dev.sigstore.bundle.v0.3+json"


@pytest.fixture
def signed(bundle: Path) -> Path:
    sign(bundle, PrivateKey.generate("ed25519"))
    return bundle


def listed(proxy: Proxy, reference: Reference, digest: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.to_builtins(Repository.of(quick(), reference).referrers(digest))
    return found


def test_a_registry_with_the_referrers_api(proxy: Proxy, signed: Path, tmp_path: Path) -> None:
    proxy.referrers = {}
    reference = Reference.parse(proxy.reference("api/tiny:v1"))
    report = push(signed, reference, transport=quick())
    image = push_image(signed, Reference.parse(proxy.reference("api/tiny:v1-image")), transport=quick())
    tag = referrers_tag(report.digest)
    assert not [seen for seen in proxy.seen if tag in seen.path]  # no list under a tag beside the API
    kinds = {entry["digest"]: entry for entry in listed(proxy, reference, report.digest)}
    assert set(kinds) == {*report.attachments, image.digest}
    assert kinds[report.attachments[0]]["artifactType"] == SIGSTORE
    out = pull(reference, by_name(()), out=tmp_path / "out", transport=quick()).path
    assert members(out) == members(signed)
    copied = copy(reference, Reference.parse(proxy.reference("api/copy:v1")), transport=quick())
    assert copied.attachments == report.attachments


def test_a_fallback_tag_lists_what_the_api_would(registry: Registry, proxy: Proxy, signed: Path) -> None:
    """Equal descriptors, with annotations, from the API of one registry and under the tag of another."""
    found = []
    for host, has_api in ((proxy.host, True), (registry.host, False)):
        proxy.referrers = {} if has_api else None
        reference = Reference.parse(f"oci://{host}/fallback/tiny{has_api:d}:v1")
        digest = push(signed, reference, transport=quick()).digest
        push_image(signed, Reference.parse(f"oci://{host}/fallback/tiny{has_api:d}:image"), transport=quick())
        by_digest = {entry["digest"]: entry for entry in listed(proxy, reference, digest)}
        found.append(by_digest)
    api, tag = found
    assert api.keys() == tag.keys()
    for digest, entry in api.items():
        assert tag[digest].get("annotations", {}) == entry.get("annotations", {}) != {}
        assert (tag[digest]["size"], tag[digest]["mediaType"]) == (entry["size"], entry["mediaType"])


@pytest.mark.parametrize("fault", [
    Fault("/referrers/", status=404), Fault("/referrers/", status=405), Fault("/referrers/", status=400),
    Fault("/referrers/", status=200, body=b"<html>", headers={"Content-Type": "text/html"}),
])  # fmt: skip
def test_an_answer_that_is_no_list_means_the_tag(proxy: Proxy, signed: Path, tmp_path: Path, fault: Fault) -> None:
    reference = Reference.parse(proxy.reference(f"fallback/{tmp_path.name.replace('_', '')}:v1"))
    push(signed, reference, transport=quick())
    proxy.faults = [fault]
    assert members(pull(reference, by_name(()), out=tmp_path / "out", transport=quick()).path) == members(signed)


def test_skopeo_copies_attachments_too(registry: Registry, signed: Path, two: Path, tmp_path: Path) -> None:
    """Of a bundle with attachments skopeo copies the bundle, and the attachments where they are named."""
    reference = Reference.parse(registry.reference("skopeo/signed:v1"))
    report = push(signed, reference, transport=quick())
    there = f"docker://{registry.host}/skopeo/moved"
    skopeo("copy", "--all", "--preserve-digests", *INSECURE, f"docker://{registry.host}/skopeo/signed:v1", f"{there}:v1")
    tag = referrers_tag(report.digest)
    # The list is written anew by old releases of skopeo, which drop artifact types. What it lists keeps its digest.
    skopeo("copy", "--all", *INSECURE, f"docker://{registry.host}/skopeo/signed:{tag}", f"{there}:{tag}")
    moved = Reference.parse(registry.reference("skopeo/moved:v1"))
    out = pull(moved, by_name(()), out=tmp_path / "out", transport=quick()).path
    assert members(out) == members(signed)
    # And from a file: the entry of that name is the bundle.
    skopeo("copy", "--all", "--preserve-digests", *INSECURE, f"oci-archive:{signed}:latest", f"{there}:file")
    with Bundle.open(pull(moved.at(report.digest), by_name(()), transport=quick()).path) as bundle:
        assert bundle.digest == report.digest


def test_oras_lists_and_pulls_a_bundle(registry: Registry, two: Path, tmp_path: Path) -> None:
    """oras-py reads manifests by tag and digest, and brings blobs, so that the copy is the bundle."""
    oras = pytest.importorskip("oras.client", reason="oras is not installed; scripts/setup does it")
    push(two, Reference.parse(registry.reference("oras/two:v1")), transport=quick())
    name = f"{registry.host}/oras/two"
    client = oras.OrasClient(insecure=True)
    assert client.get_tags(f"{name}:v1") == ["v1"]
    blobs = tmp_path / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    accept = {"Accept": "application/vnd.oci.image.index.v1+json"}

    def manifest(wanted: str, kind: str) -> tuple[dict[str, Any], bytes]:
        data = client.do_request(f"http://{registry.host}/v2/oras/two/manifests/{wanted}", headers={"Accept": kind}).content
        return json.loads(data), data

    index, data = manifest("v1", accept["Accept"])
    assert index["artifactType"] == "application/vnd.aotpack.bundle.v1"
    with Bundle.open(two) as bundle:
        digest, size = bundle.digest, len(data)
    (blobs / digest[7:]).write_bytes(data)
    for entry in index["manifests"]:
        found = client.get_manifest(f"{name}@{entry['digest']}", allowed_media_type=[entry["mediaType"]])
        (blobs / entry["digest"][7:]).write_bytes(manifest(entry["digest"], entry["mediaType"])[1])
        for layer in (found["config"], *found["layers"]):
            client.download_blob(f"{name}:v1", layer["digest"], os.fspath(blobs / layer["digest"][7:]))
    entry = {"mediaType": index["mediaType"], "digest": digest, "size": size}
    (tmp_path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    with Bundle.open(tmp_path) as bundle:
        bundle.verify()
        assert bundle.digest == digest
