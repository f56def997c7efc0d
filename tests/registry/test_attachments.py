"""Signatures travel with a bundle, and a bundle travels as an image."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from support.archive import members

import aotpack
import aotpack_loader
from aotpack.registry.attachments import push_attachments
from aotpack.registry.copy import copy
from aotpack.registry.image import push_image
from aotpack.registry.push import push
from aotpack.signing.sign import sign
from aotpack.tools.cli import main
from aotpack_loader.archive.attachments import CYCLONEDX, IN_TOTO
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import RegistryContentError
from aotpack_loader.registry.client import Repository, referrers_tag
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference
from aotpack_loader.signing.keys import PrivateKey

from .conftest import Registry, quick, skopeo

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def key() -> PrivateKey:
    return PrivateKey.generate("ed25519")


def test_a_signature_travels_with_the_bundle(registry: Registry, bundle: Path, key: PrivateKey, tmp_path: Path) -> None:
    reference = Reference.parse(registry.reference("signed/tiny:v1"))
    push(bundle, reference, transport=quick())
    pull(reference, by_name(()), transport=quick())
    signed = sign(bundle, key)
    report = push(bundle, reference, transport=quick())  # the signature comes later
    assert report.attachments == [signed.attachment]
    out = pull(reference.at(report.digest), by_name(()), out=tmp_path / "out", refresh=True, transport=quick()).path
    assert members(out) == members(bundle)
    with Bundle.open(out) as opened:
        found, problems = opened.attachments()
        assert [attachment.descriptor.digest for attachment in found] == [signed.attachment]
        assert not problems
    # docker-registry 2.8 has no referrers API: the tag that stands for it lists the descriptor with its annotations.
    listed = json.loads(Repository.of(quick(), reference).manifest(referrers_tag(report.digest)).data)["manifests"]
    assert [entry["artifactType"] for entry in listed] == ["application/vnd.dev.sigstore.bundle.v0.3+json"]
    with Bundle.open(bundle) as opened:
        push_attachments(Repository.of(quick(), reference, write=True), opened)  # again changes nothing
    assert len(json.loads(Repository.of(quick(), reference).manifest(referrers_tag(report.digest)).data)["manifests"]) == 1


def test_copy_mounts_blobs_and_takes_signatures_along(registry: Registry, two: Path, key: PrivateKey, tmp_path: Path) -> None:
    signed = tmp_path / "signed.aotpack"
    signed.write_bytes(two.read_bytes())
    sign(signed, key)
    source = Reference.parse(registry.reference("copy/from:v1"))
    push(signed, source, transport=quick())
    destination = Reference.parse(registry.reference("copy/to:v2"))
    report = copy(source, destination, transport=quick())
    assert set(report.blobs) == {"exists"}  # what could be mounted was mounted before
    assert len(report.attachments) == 1
    out = pull(destination, by_name(()), out=tmp_path / "out", transport=quick()).path
    assert members(out) == members(signed)


def test_an_image_holds_the_bundle_and_each_names_the_other(registry: Registry, bundle: Path, tmp_path: Path) -> None:
    reference = Reference.parse(registry.reference("image/tiny:v1"))
    artifact = push(bundle, reference, transport=quick())
    image = Reference.parse(registry.reference("image/tiny:v1-image"))
    pushed = push_image(bundle, image, transport=quick())
    with Bundle.open(bundle) as opened:
        unpacked = pull(reference, by_name(()), out=f"{tmp_path}/unpacked/", transport=quick()).path
        assert push_image(unpacked, image, transport=quick()).digest == pushed.digest  # reproducible
        assert opened.digest == artifact.digest
    index = json.loads(Repository.of(quick(), image).manifest("v1-image").data)
    assert index["annotations"]["dev.aotpack.bundle"] == index["subject"]["digest"] == artifact.digest
    listed = json.loads(Repository.of(quick(), reference).manifest(referrers_tag(artifact.digest)).data)["manifests"]
    assert [entry["digest"] for entry in listed] == [pushed.digest]
    # What a node does: pull the image, and mount its layer.
    folder = tmp_path / "image"
    skopeo(
        "copy", "--preserve-digests", "--src-tls-verify=false", f"docker://{registry.host}/image/tiny:v1-image", f"oci:{folder}:x"
    )
    top = json.loads((folder / "index.json").read_text())["manifests"][0]["digest"]
    manifest = json.loads((folder / "blobs" / "sha256" / top[7:]).read_text())
    assert [layer["mediaType"] for layer in manifest["layers"]] == ["application/vnd.oci.image.layer.v1.tar"]
    mounted = tmp_path / "models" / "x"
    mounted.mkdir(parents=True)
    with tarfile.open(folder / "blobs" / "sha256" / manifest["layers"][0]["digest"][7:]) as archive:
        archive.extractall(mounted, filter="data")
    model = aotpack_loader.load(mounted).eval()
    with torch.no_grad():
        assert torch.equal(model(torch.ones(4)), torch.arange(4.0))
    with pytest.raises(RegistryContentError, match=r"is the image of a bundle(.|\n)*@sha256:"):
        pull(image, by_name(()), transport=quick())


def test_provenance_and_bill_travel_too(registry: Registry, tmp_path: Path) -> None:
    aotpack.build(torch.nn.ReLU(), (torch.ones(2),), out=tmp_path / "m", targets=["portable"], provenance=True, sbom=True)
    reference = Reference.parse(registry.reference("documents/relu:v1"))
    report = push(tmp_path / "m", reference, transport=quick())
    listed = json.loads(Repository.of(quick(), reference).manifest(referrers_tag(report.digest)).data)["manifests"]
    assert [entry["artifactType"] for entry in listed] == [IN_TOTO, CYCLONEDX]
    assert listed[0]["annotations"] == {"dev.sigstore.bundle.predicateType": "https://slsa.dev/provenance/v1"}
    out = pull(reference.at(report.digest), by_name(()), out=tmp_path / "out", transport=quick()).path
    assert {name: data for name, data in members(out).items() if name != "index.json"} == {
        name: data for name, data in members(tmp_path / "m").items() if name != "index.json"
    }
    shown = CliRunner().invoke(main, ["inspect", str(reference), "--json", "--plain-http", registry.host])
    assert [row["type"] for row in json.loads(shown.stdout)["attachments"]] == ["provenance", "bill of materials"]
