"""Provenance and bills of materials: valid by their schemas, equal for equal builds, kept and shown with a bundle."""

from __future__ import annotations

import base64
import importlib.util
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from click.testing import CliRunner
from referencing import Registry, Resource
from support.archive import digest_of, tiny_graph, tiny_program, write_tiny

import aotpack
from aotpack.signing import sign, write_keys
from aotpack.tools.cli import main
from aotpack.writer.attach import attach
from aotpack.writer.bundle import BlobStore, TargetEntry, write_bundle
from aotpack.writer.weights import write_weights
from aotpack_loader.archive.attachments import CYCLONEDX, IN_TOTO, SIGSTORE_BUNDLE, make
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError, CorruptBundleError
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import Target
from aotpack_loader.signing import documents
from aotpack_loader.signing.keys import PrivateKey

MODEL = """\
import torch
from parts import Scale

def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), Scale())

def example_inputs():
    return (torch.ones(2, 4),)
"""
PARTS = """\
import torch

class Scale(torch.nn.Module):
    def forward(self, x):
        return 2 * x
"""


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


def run(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def build(folder: Path, *options: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.py").write_text(MODEL)
    (folder / "parts.py").write_text(PARTS)
    words = ("--target", "portable", "--provenance", "--sbom")
    run("build", folder / "model.py", "-o", folder / "m", *words, *options)
    return folder / "m"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("built"), "--builder", "https://ci.example.com/7")


def attached(path: Path) -> dict[str, Any]:
    with Bundle.open(path) as bundle:
        found, problems = bundle.attachments()
        assert not problems
        return {each.kind: json.loads(bytes(bundle.attached(each))) for each in found}


# ---------------------------------------------------------------- what they say


def test_provenance(built: Path) -> None:
    statement = attached(built)[IN_TOTO]
    with Bundle.open(built) as bundle:
        assert statement["subject"] == [{"digest": {"sha256": bundle.digest[7:]}, "name": bundle.program.name}]
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["targets"] == ["portable"]
    assert definition["externalParameters"]["partitioner"] == "min-cut"
    read = {each["name"]: each for each in definition["resolvedDependencies"]}
    for name, text in (("model.py", MODEL), ("parts.py", PARTS)):
        assert read[name] == {"name": name, "digest": {"sha256": digest_of(text.encode())[7:]}}
    assert read["torch"]["uri"] == f"pkg:pypi/torch@{metadata.version('torch').replace('+', '%2B')}"
    assert statement["predicate"]["runDetails"]["builder"]["id"] == "https://ci.example.com/7"
    assert "metadata" not in statement["predicate"]["runDetails"]
    assert str(built.parent) not in json.dumps(statement)  # no path of the machine


def test_bill_of_materials(built: Path) -> None:
    bom = attached(built)[CYCLONEDX]
    with Bundle.open(built) as bundle:
        model = bom["metadata"]["component"]
        assert model["hashes"] == [{"alg": "SHA-256", "content": bundle.digest[7:]}]
        hashes = {each["hashes"][0]["content"] for each in bom["components"] if each["type"] == "file"}
        assert {blob.digest[7:] for blob in bundle.program.weights} <= hashes
    assert model["type"] == "machine-learning-model"
    assert model["modelCard"]["modelParameters"]["inputs"] == [{"format": "input float32[2, 4]"}]
    assert {"name": "aotpack:parameters", "value": "15"} in model["properties"]
    assert [each["name"] for each in bom["components"] if each["type"] == "framework"] == ["torch"]


def test_the_outside_judges_agree(built: Path) -> None:
    """SLSA's predicate by sigstore's model of it, which forbids other fields; CycloneDX by its own JSON Schema."""
    predicates = pytest.importorskip("sigstore.dsse._predicate")
    found = attached(built)
    predicates.SLSAPredicateV1_0.model_validate(found[IN_TOTO]["predicate"])
    spec = importlib.util.find_spec("cyclonedx")
    if spec is None or spec.origin is None:
        pytest.skip("cyclonedx-python-lib is not installed")
    folder = Path(spec.origin).parent / "schema" / "_res"
    schemas = {
        name: json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text()) for name in ("bom-1.6", "spdx", "jsf-0.82")
    }
    base = "http://cyclonedx.org/schema/"
    known = [(f"{base}{name}{end}", Resource.from_contents(text)) for name, text in schemas.items()
             for end in (".schema.json", ".SNAPSHOT.schema.json")]  # fmt: skip
    validator = jsonschema.Draft7Validator(schemas["bom-1.6"], registry=Registry().with_resources(known))
    validator.validate(found[CYCLONEDX])
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(found[CYCLONEDX] | {"bomFormat": "other"})


# ---------------------------------------------------------------- equal bytes


def test_equal_builds_have_equal_bytes(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = build(tmp_path / "elsewhere", "--builder", "https://ci.example.com/7")
    assert again.read_bytes() == built.read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    dated = attached(build(tmp_path / "elsewhere"))
    assert dated[CYCLONEDX]["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert dated[IN_TOTO]["predicate"]["runDetails"]["metadata"]["startedOn"] == "2023-11-14T22:13:20Z"


def test_a_bad_time_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(BuildError, match="SOURCE_DATE_EPOCH='today'"):
        aotpack.build(torch.nn.ReLU(), (torch.ones(2),), out=tmp_path / "m", targets=["portable"], provenance=True)
    assert not (tmp_path / "m").exists()


def test_documents_change_no_digest(built: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "parts.py").write_text(PARTS)
    run("build", tmp_path / "model.py", "-o", tmp_path / "plain", "--target", "portable")
    with Bundle.open(built) as documented, Bundle.open(tmp_path / "plain") as plain:
        assert documented.digest == plain.digest
        assert not plain.has_attachments
        documented.verify()


def test_compile_writes_its_own(tmp_path: Path) -> None:
    """What it attaches names the old bundle, and lists the old targets too."""
    with BlobStore(tmp_path / "m") as blobs:
        weights = write_weights([("scale", torch.arange(4.0))], blobs)
        graph = blobs.add_compressed(encode(tiny_graph()), media_types.GRAPH)
        entry = TargetEntry(Target("other", "portable", "cpu"), None, [graph, *weights])
        old = write_bundle(tmp_path / "m", blobs, tiny_program(graph, weights), [entry])
    aotpack.compile_bundle(tmp_path / "m", ["portable"], out=tmp_path / "n", provenance=True, sbom=True)
    found = attached(tmp_path / "n")
    definition = found[IN_TOTO]["predicate"]["buildDefinition"]
    assert definition["buildType"] == "https://aotpack.dev/compile/v1"
    assert {"name": "tiny", "digest": {"sha256": old[7:]}} in definition["resolvedDependencies"]
    assert definition["externalParameters"]["targets"] == ["portable"]
    assert {"name": "aotpack:targets", "value": "other,portable"} in found[CYCLONEDX]["metadata"]["component"]["properties"]


# ---------------------------------------------------------------- shown and signed


def test_inspect_lists_attachments_with_their_signers(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(built.read_bytes())
    rows = json.loads(run("inspect", path, "--json"))["attachments"]
    assert [(row["type"], row["signer"]) for row in rows] == [
        ("provenance", "none: not signed"),
        ("bill of materials", "none: not signed"),
    ]
    public, private, file = write_keys("ed25519", tmp_path / "acme.key", None)
    run("sign", path, "--key", private, "--statements")
    rows = json.loads(run("inspect", path, "--json"))["attachments"]
    assert [row["type"] for row in rows] == ["provenance", "bill of materials", "signature", "provenance"]
    assert [row["trusted"] for row in rows] == [False] * 4
    assert f"no trusted key (its key: {public.hint})" == rows[2]["signer"]
    run("trust", "add", file)
    rows = json.loads(run("inspect", path, "--json"))["attachments"]
    assert [row["trusted"] for row in rows] == [False, False, True, True]
    assert rows[3]["signer"] == f"acme  {public.id}"
    shown = run("inspect", path)
    assert "provenance" in shown
    assert f"acme  {public.id}" in shown


def test_a_signed_statement_is_the_statement(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(built.read_bytes())
    key = PrivateKey.generate("ecdsa-p256")
    signed = sign(path, key, statements=True)
    with Bundle.open(path) as bundle:
        found = {each.descriptor.digest: each for each in bundle.attachments()[0]}
        plain = next(each for each in found.values() if each.kind == IN_TOTO)
        (copy,) = (found[each] for each in signed.statements)
        assert copy.kind == SIGSTORE_BUNDLE
        payload = json.loads(bytes(bundle.attached(copy)))["dsseEnvelope"]["payload"]
        assert base64.b64decode(payload) == bytes(bundle.attached(plain))


def test_a_statement_about_another_bundle_is_not_signed(built: Path, tmp_path: Path) -> None:
    with Bundle.open(built) as bundle:
        document = bytes(bundle.attached(bundle.attachments()[0][0]))
    write_tiny(tmp_path / "other")
    with Bundle.open(tmp_path / "other") as other:
        subject = other.index
    attach(tmp_path / "other", [make(subject, IN_TOTO, document)])
    with pytest.raises(CorruptBundleError, match="about another bundle"):
        sign(tmp_path / "other", PrivateKey.generate("ed25519"), statements=True)


def test_a_hostile_list_is_shown_in_bounded_time_and_plain_characters(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m")
    with Bundle.open(tmp_path / "m") as bundle:
        subject = bundle.index
    payload = documents.statement([documents.Subject({"sha256": subject.digest[7:]})], documents.SIGNED, {})
    many = [
        make(subject, SIGSTORE_BUNDLE, documents.sigstore_bundle(payload, b"", f"\x1b[2J{number}"), {"number": str(number)})
        for number in range(70)
    ]
    attach(tmp_path / "m", many)
    signers = [row["signer"] for row in json.loads(run("inspect", tmp_path / "m", "--json"))["attachments"]]
    assert signers[0] == "no trusted key (its key: [2J0)"
    assert signers.count("not checked: there are more than 64 attachments") == 6
