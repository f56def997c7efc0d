"""Signatures: made from digests, kept beside the bundle, and believed only for a trusted key."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support.archive import Documents, members, pack, write_tiny

from aotpack.signing import sign
from aotpack.tools.cli import main
from aotpack.writer.attach import attach
from aotpack_loader import load, trust
from aotpack_loader.archive.attachments import CYCLONEDX, SIGSTORE_BUNDLE, make
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError, DirectoryError, TrustError
from aotpack_loader.signing import documents, key_store
from aotpack_loader.signing.keys import KINDS, PrivateKey, private_key, public_key
from aotpack_loader.signing.verify import signer


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("AOTPACK_STATE", str(tmp_path / "state"))


@pytest.fixture(params=KINDS)
def key(request: pytest.FixtureRequest) -> PrivateKey:
    return PrivateKey.generate(request.param)


@pytest.fixture
def ed25519() -> PrivateKey:
    return PrivateKey.generate("ed25519")


@pytest.fixture(params=["file", "directory"])
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "m"
    write_tiny(path, layout=request.param)
    return path


def run(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 1, result.output
    return result.output


def decide(path: Path, argument: Any = None) -> trust.TrustDecision:
    with Bundle.open(path) as opened:
        return trust.decide_trust(opened.digest, argument, opened)


def trust_key(key: PrivateKey, name: str = "acme") -> Path:
    return key_store.add(key.public, name)


# ---------------------------------------------------------------- signing


def test_a_signature_by_a_trusted_key_lets_native_code_run(bundle: Path, key: PrivateKey) -> None:
    with Bundle.open(bundle) as opened:
        digest = opened.digest
    signed = sign(bundle, key)
    with Bundle.open(bundle) as opened:
        assert opened.digest == digest == signed.digest
        opened.verify()
    before = decide(bundle)
    assert not before.trusted
    assert "it is signed, but this user trusts no key" in before.reason
    trust_key(key)
    assert decide(bundle) == trust.TrustDecision(True, "the key 'acme' signed it")


def test_signing_changes_no_blob_and_is_reproducible(tmp_path: Path, ed25519: PrivateKey) -> None:
    paths = tmp_path / "a", tmp_path / "b"
    for path in paths:
        write_tiny(path)
    old = members(paths[0])
    for path in paths:
        sign(path, ed25519)
    new = members(paths[0])
    assert {name: new[name] for name in old if name != "index.json"} == {n: d for n, d in old.items() if n != "index.json"}
    assert paths[0].read_bytes() == paths[1].read_bytes()
    sign(paths[0], ed25519)  # the same signature is not added twice
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_layout_is_that_of_cosign(tmp_path: Path, key: PrivateKey) -> None:
    write_tiny(tmp_path / "m")
    signed = sign(tmp_path / "m", key)
    files = members(tmp_path / "m")
    subject, entry = json.loads(files["index.json"])["manifests"]
    assert subject["digest"] == signed.digest
    assert subject["annotations"] == {"org.opencontainers.image.ref.name": "latest"}
    notes = {"dev.sigstore.bundle.content": "dsse-envelope", "dev.sigstore.bundle.predicateType": documents.SIGNED}
    assert entry["artifactType"] == SIGSTORE_BUNDLE
    assert entry["annotations"] == notes
    manifest = json.loads(files["blobs/sha256/" + entry["digest"][7:]])
    assert manifest["artifactType"] == SIGSTORE_BUNDLE
    assert manifest["annotations"] == notes
    assert manifest["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    assert manifest["subject"] == {name: subject[name] for name in ("mediaType", "digest", "size")}
    document = json.loads(files["blobs/sha256/" + manifest["layers"][0]["digest"][7:]])
    assert document["verificationMaterial"] == {"publicKey": {"hint": key.public.hint}, "tlogEntries": []}
    statement = json.loads(base64.b64decode(document["dsseEnvelope"]["payload"]))
    assert statement == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "tiny", "digest": {"sha256": signed.digest[7:]}}],
        "predicateType": documents.SIGNED,
        "predicate": {},
    }


def test_openssl_agrees(tmp_path: Path) -> None:
    """An outside judge: OpenSSL checks the signature over DSSE's encoding."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key = PrivateKey.generate("ecdsa-p256")
    payload = b'{"a":1}'
    (tmp_path / "sig").write_bytes(key.sign(payload))
    (tmp_path / "key").write_bytes(key.public.pem)
    (tmp_path / "text").write_bytes(b"DSSEv1 28 application/vnd.in-toto+json 7 " + payload)
    command = ["openssl", "dgst", "-sha256", "-verify", "key", "-signature", "sig", "text"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=True).stdout == b"Verified OK\n"


def test_skopeo_copies_a_signed_bundle(tmp_path: Path, ed25519: PrivateKey) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed")
    write_tiny(tmp_path / "m")
    digest = sign(tmp_path / "m", ed25519).digest
    command = ["skopeo", "copy", "-q", "--all", f"oci-archive:{tmp_path / 'm'}:latest", f"oci:{tmp_path / 'out'}:latest"]
    subprocess.run(command, check=True)
    with Bundle.open(tmp_path / "out") as opened:
        opened.verify()
        assert opened.digest == digest


def test_weights_are_not_read(tmp_path: Path, ed25519: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle holds four megabytes of weights; less than one is read."""
    path = tmp_path / "m"
    write_tiny(path, layout="directory", tensors=[("big", torch.zeros(1 << 20))])
    read = 0
    real = os.pread

    def counted(handle: int, length: int, offset: int) -> bytes:
        nonlocal read
        data = real(handle, length, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    sign(path, ed25519)
    assert 0 < read < 1 << 20


def test_a_bundle_packed_in_another_order_is_signed_too(tmp_path: Path, ed25519: PrivateKey) -> None:
    write_tiny(tmp_path / "m")
    files = members(tmp_path / "m")
    names = sorted(files)
    (tmp_path / "m").write_bytes(pack({name: files[name] for name in ["index.json", *names[::-1]] if name in files}))
    sign(tmp_path / "m", ed25519)
    new = members(tmp_path / "m")
    assert {name: new[name] for name in files if name != "index.json"} == {n: d for n, d in files.items() if n != "index.json"}
    with Bundle.open(tmp_path / "m") as opened:
        assert signer(opened, [ed25519.public]).key is ed25519.public


def test_a_failed_write_leaves_the_bundle(tmp_path: Path, ed25519: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "m")
    before = (tmp_path / "m").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AotpackError, match="No space left"):
        sign(tmp_path / "m", ed25519)
    assert (tmp_path / "m").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".aotpack")] == []


# ---------------------------------------------------------------- what is not believed


def test_another_key_is_not_believed(bundle: Path, key: PrivateKey) -> None:
    sign(bundle, key)
    trust_key(PrivateKey.generate("ed25519"))
    decision = decide(bundle)
    assert "no trusted key signed it" in decision.reason
    assert key.public.hint in str(decision.problems[0])
    with pytest.raises(TrustError, match="no given key made it"), Bundle.open(bundle) as opened:
        trust.check_trust(opened.digest, None, opened)


def test_a_signature_of_another_bundle_is_not_believed(tmp_path: Path, key: PrivateKey) -> None:
    """An attacker takes a signature from a signed bundle and attaches it to his own."""
    write_tiny(tmp_path / "good", name="good")
    write_tiny(tmp_path / "evil", name="evil")
    with Bundle.open(tmp_path / "good") as good, Bundle.open(tmp_path / "evil") as evil:
        payload = documents.statement([documents.Subject({"sha256": good.digest[7:]})], documents.SIGNED, {})
        document = documents.sigstore_bundle(payload, key.sign(payload), key.public.hint)
        subject = evil.index
    attach(tmp_path / "evil", [make(subject, SIGSTORE_BUNDLE, document)])
    trust_key(key)
    decision = decide(tmp_path / "evil")
    assert not decision.trusted
    assert "signature of another bundle" in str(decision.problems[0])


@pytest.mark.parametrize("predicate", ["https://slsa.dev/provenance/v1", "", "https://sigstore.dev/cosign/sign/v2"])
def test_another_statement_approves_nothing(tmp_path: Path, ed25519: PrivateKey, predicate: str) -> None:
    write_tiny(tmp_path / "m")
    with Bundle.open(tmp_path / "m") as opened:
        subject = opened.index
    payload = documents.statement([documents.Subject({"sha256": subject.digest[7:]})], predicate, {})
    document = documents.sigstore_bundle(payload, ed25519.sign(payload), "")
    attach(tmp_path / "m", [make(subject, SIGSTORE_BUNDLE, document)])
    trust_key(ed25519)
    assert not decide(tmp_path / "m").trusted


def changed(document: bytes, change: Any) -> bytes:
    found = json.loads(document)
    change(found)
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["dsseEnvelope"].update(payload=base64.b64encode(b"{}").decode()), "no given key made it"),
        (lambda d: d["dsseEnvelope"].update(payloadType="text/plain"), "no given key made it"),
        (lambda d: d["dsseEnvelope"].update(signatures=[]), "no given key made it"),
        (lambda d: d["dsseEnvelope"]["signatures"][0].update(sig="AAAA"), "no given key made it"),
        (lambda d: d["dsseEnvelope"].update(signatures=d["dsseEnvelope"]["signatures"] * 17), "the limit is 16"),
        (lambda d: d["verificationMaterial"]["publicKey"].update(hint="other"), "its key: other"),
        (lambda d: d.update(verificationMaterial={}), "not made with a key"),
        (lambda d: d.update(mediaType="text/plain"), "expected 'application/vnd.dev.sigstore"),
        (lambda d: d.pop("dsseEnvelope"), "missing required field"),
        (lambda d: d.update(x="y" * (1 << 20)), "bytes"),
    ],
)
def test_a_forged_signature_is_refused(tmp_path: Path, ed25519: PrivateKey, change: Any, message: str) -> None:
    write_tiny(tmp_path / "m")
    with Bundle.open(tmp_path / "m") as opened:
        subject = opened.index
    payload = documents.statement([documents.Subject({"sha256": subject.digest[7:]})], documents.SIGNED, {})
    document = changed(documents.sigstore_bundle(payload, ed25519.sign(payload), ed25519.public.hint), change)
    attach(tmp_path / "m", [make(subject, SIGSTORE_BUNDLE, document)])
    trust_key(ed25519)
    decision = decide(tmp_path / "m")
    assert not decision.trusted
    assert message in "\n".join(map(str, decision.problems))


def test_a_damaged_attachment_does_not_hide_a_good_one(tmp_path: Path, ed25519: PrivateKey) -> None:
    write_tiny(tmp_path / "m", layout="directory")
    with Bundle.open(tmp_path / "m") as opened:
        other = make(opened.index, CYCLONEDX, b"{}")
        broken = make(opened.index, SIGSTORE_BUNDLE, b"not a signature")
    attach(tmp_path / "m", [other, broken])
    sign(tmp_path / "m", ed25519)
    (tmp_path / "m" / "blobs" / "sha256" / other.descriptor.digest[7:]).write_bytes(b"damaged")
    trust_key(ed25519)
    assert decide(tmp_path / "m").trusted
    with Bundle.open(tmp_path / "m") as opened:
        assert [problem.where for problem in signer(opened, [ed25519.public]).problems]


def test_two_bundles_in_one_layout_are_none(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m")
    edited = Documents(tmp_path / "m")
    edited.top["manifests"] *= 2
    (tmp_path / "m").write_bytes(pack(edited.files()))
    with pytest.raises(AotpackError, match="exactly one index"):
        Bundle.open(tmp_path / "m")


# ---------------------------------------------------------------- the caller's word


def test_keys_that_the_caller_names_are_final(tmp_path: Path, key: PrivateKey) -> None:
    write_tiny(tmp_path / "m")
    digest = sign(tmp_path / "m", key).digest
    public = tmp_path / "acme.pub"
    public.write_bytes(key.public.pem)
    other = tmp_path / "other.pub"
    other.write_bytes(PrivateKey.generate("ed25519").public.pem)
    assert decide(tmp_path / "m", f"key:{public}").trusted
    assert decide(tmp_path / "m", [f"key:{other}", f"key:{public}"]).trusted
    assert decide(tmp_path / "m", [f"key:{other}", digest]).trusted
    trust.record_built(digest)
    assert not decide(tmp_path / "m", f"key:{other}").trusted  # although it was built here
    trust_key(key, "stored")
    assert decide(tmp_path / "m", "key:stored").trusted
    assert decide(tmp_path / "m", f"key:{key.public.id}").trusted
    with pytest.raises(AotpackError, match="no trusted key 'nobody'"):
        decide(tmp_path / "m", "key:nobody")


@pytest.mark.parametrize("argument", ["nonsense", "key:", b"all", ["all"], 3])
def test_nonsense_is_refused_for_a_bundle_without_native_code_too(tmp_path: Path, argument: Any) -> None:
    write_tiny(tmp_path / "m")
    with pytest.raises(trust.TrustArgumentError, match="is not understood"):
        load(tmp_path / "m", trust=argument)
    with pytest.raises(trust.TrustArgumentError, match="is not understood"):
        load(tmp_path / "m", trust=argument, backend="portable")


def test_keys_named_by_the_environment(tmp_path: Path, key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "m")
    sign(tmp_path / "m", key)
    public = tmp_path / "acme.pub"
    public.write_bytes(key.public.pem)
    monkeypatch.setenv("AOTPACK_TRUST_KEYS", str(public))
    assert decide(tmp_path / "m").trusted
    public.chmod(0o666)
    with pytest.raises(DirectoryError, match="Other users may write"):
        decide(tmp_path / "m")


# ---------------------------------------------------------------- the trusted keys


@pytest.mark.parametrize("what", ["config", "config/keys", "config/keys/acme.pem"])
def test_keys_that_others_may_write_are_refused(tmp_path: Path, ed25519: PrivateKey, what: str) -> None:
    trust_key(ed25519)
    (tmp_path / what).chmod(0o777)
    with pytest.raises(DirectoryError, match="Other users may write"):
        key_store.trusted_keys()


def test_a_link_is_no_trusted_key(tmp_path: Path, ed25519: PrivateKey) -> None:
    path = trust_key(ed25519)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DirectoryError, match="symbolic link"):
        key_store.trusted_keys()


@pytest.mark.parametrize("name", ["", ".", "../up", "a/b", "-x", "é", "a" * 65, "a b"])
def test_names_of_keys(ed25519: PrivateKey, name: str) -> None:
    with pytest.raises(AotpackError, match="no name of a key"):
        trust_key(ed25519, name)


def test_files_that_are_no_keys(tmp_path: Path) -> None:
    with pytest.raises(AotpackError, match="no public key in PEM"):
        public_key(b"", "x")
    with pytest.raises(AotpackError, match="pass the public one"):
        public_key(PrivateKey.generate("ed25519").pem(None), "x")
    with pytest.raises(AotpackError, match="no private key"):
        private_key(PrivateKey.generate("ed25519").public.pem, "x")
    encrypted = PrivateKey.generate("ed25519").pem(b"secret")
    with pytest.raises(AotpackError, match="cannot be read"):
        private_key(encrypted, "x")
    with pytest.raises(AotpackError, match="passphrase is wrong"):
        private_key(encrypted, "x", b"other")
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    for other in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        pem = other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        with pytest.raises(AotpackError, match="of another kind"):
            public_key(pem, "x")


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "m.aotpack")
    monkeypatch.chdir(tmp_path)
    assert "acme.pub" in run("keygen", "--out", "acme.key", "--kind", kind)
    assert (tmp_path / "acme.key").stat().st_mode & 0o777 == 0o600
    assert "exists" in refused("keygen", "--out", "acme.key")
    assert "failed" in refused("verify", "m.aotpack", "--key", "acme.pub")
    signed = json.loads(run("sign", "m.aotpack", "--key", "acme.key", "--json"))
    assert "ok" in run("verify", "m.aotpack", "--key", "acme.pub")
    run("keygen", "--out", "other")
    report = json.loads(refused("verify", "m.aotpack", "--key", "other.pub", "--json"))
    assert [check["status"] for check in report["checks"]] == ["ok", "ok", "failed", "skipped"]
    assert "No key is trusted" in run("trust", "list")
    assert signed["key"] in run("trust", "add", "acme.pub")
    assert "trusted already" in refused("trust", "add", "acme.pub", "--name", "again")
    assert json.loads(run("trust", "list", "--json"))["keys"] == [{"name": "acme", "kind": kind, "id": signed["key"]}]
    [found] = [check for check in json.loads(run("verify", "m.aotpack", "--json"))["checks"] if check["name"] == "signature"]
    assert found == {"name": "signature", "status": "ok", "detail": f"acme  {signed['key']}"}
    run("trust", "remove", "acme")
    assert "no trusted key" in refused("trust", "remove", "acme")


def test_an_encrypted_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny(tmp_path / "m")
    monkeypatch.setenv("AOTPACK_PASSPHRASE", "secret")
    run("keygen", "--out", tmp_path / "k", "--passphrase")
    assert b"ENCRYPTED" in (tmp_path / "k").read_bytes()
    run("sign", tmp_path / "m", "--key", tmp_path / "k")
    monkeypatch.setenv("AOTPACK_PASSPHRASE", "other")
    assert "passphrase is wrong" in refused("sign", tmp_path / "m", "--key", tmp_path / "k")


def test_without_the_library_there_is_a_hint(tmp_path: Path, ed25519: PrivateKey) -> None:
    """Portable graphs of a signed bundle load without cryptography; a decision that needs it names the extra."""
    write_tiny(tmp_path / "m")
    sign(tmp_path / "m", ed25519)
    trust_key(ed25519)
    code = """
import sys
sys.modules["cryptography"] = None
import aotpack_loader
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader import trust
aotpack_loader.load(sys.argv[1])
opened = Bundle.open(sys.argv[1])
try:
    trust.decide_trust(opened.digest, None, opened)
except aotpack_loader.errors.AotpackError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m")], capture_output=True, text=True, check=True)
    assert "pip install 'aotpack-loader[signing]'" in done.stdout
