"""Keyless signatures of Sigstore, checked offline by its library against the trusted root of a local Sigstore."""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.archive import write_tiny

from aotpack.signing import sign
from aotpack.tools.cli import main
from aotpack.writer.attach import attach
from aotpack_loader.archive.attachments import SIGSTORE_BUNDLE, make
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.signing import documents
from aotpack_loader.signing.keys import PrivateKey

pytest.importorskip("sigstore")
from support.sigstore import SIGNED_AT, Sigstore

from aotpack_loader.signing.keyless import KeylessVerdict, identity_signed, read_root

WHO, ISSUER = "release@acme.example", "https://accounts.acme.example"
OURS = Sigstore()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("the network was asked"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("the network was asked"))
    monkeypatch.setenv("AOTPACK_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # sigstore's cache of its own root
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def signed(
    path: Path,
    *,
    by: Sigstore = OURS,
    identity: str = WHO,
    issuer: str = ISSUER,
    predicate: str = documents.SIGNED,
    digest: str = "",
    at: datetime.datetime = SIGNED_AT,
    change: Callable[[dict[str, Any]], object] | None = None,
) -> Path:
    """A tiny bundle with a keyless signature."""
    write_tiny(path)
    with Bundle.open(path) as bundle:
        subject = bundle.index
    about = documents.Subject({"sha256": digest or subject.digest[7:]})
    document = by.sign(documents.statement([about], predicate, {}), identity, issuer, at=at)
    if change is not None:
        change(document)
    attach(path, [make(subject, SIGSTORE_BUNDLE, json.dumps(document).encode())])
    return path


def verdict(path: Path, tmp_path: Path, identity: str = WHO, issuer: str = ISSUER) -> KeylessVerdict:
    with Bundle.open(path) as bundle:
        return identity_signed(bundle, identity, issuer, read_root(OURS.trusted_root(tmp_path / "root.json"), offline=True))


@pytest.mark.parametrize("identity", [WHO, "https://github.com/acme/model/.github/workflows/release.yml@refs/heads/main"])
def test_an_identity_signed_it(tmp_path: Path, identity: str) -> None:
    found = verdict(signed(tmp_path / "m", identity=identity), tmp_path, identity)
    assert found.problems == []
    assert found == KeylessVerdict(True, f"{identity} signed it, says {ISSUER}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"identity": "other@acme.example"}, "SANs do not match"),
        ({"issuer": "https://elsewhere.example"}, "OIDCIssuer does not match"),
        ({"by": Sigstore()}, "sigstore refuses it"),
        ({"by": Sigstore(authority=OURS.authority, log=OURS.log)}, "SCT"),
        ({"by": Sigstore(authority=OURS.authority, certificate_log=OURS.certificate_log)}, "checkpoint"),
        ({"at": SIGNED_AT + datetime.timedelta(hours=1)}, "sigstore refuses it"),
        ({"digest": "0" * 64}, "it is the signature of another bundle"),
        ({"predicate": "https://slsa.dev/provenance/v1"}, "which approves nothing"),
        ({"change": lambda d: d["dsseEnvelope"].update(payload="e30=")}, "sigstore refuses it"),
        ({"change": lambda d: d["verificationMaterial"].update(tlogEntries=[])}, "exactly one log entry"),
        ({"change": lambda d: d["verificationMaterial"]["certificate"].update(rawBytes="AAAA")}, "sigstore refuses it"),
        ({"change": lambda d: d["verificationMaterial"]["tlogEntries"][0].pop("inclusionProof")}, "sigstore refuses it"),
        ({"change": lambda d: d["verificationMaterial"]["tlogEntries"][0].pop("inclusionPromise")}, "inclusion promise"),
        ({"change": lambda d: d["verificationMaterial"]["tlogEntries"][0].update(integratedTime="1767225901")}, "SET"),
    ],
)
def test_what_is_not_believed(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    found = verdict(signed(tmp_path / "m", **options), tmp_path)
    assert not found.verified
    assert message in "\n".join(map(str, found.problems))


def test_a_good_one_among_bad_ones(tmp_path: Path) -> None:
    path = signed(tmp_path / "m", identity="other@acme.example")
    sign(path, PrivateKey.generate("ed25519"))
    with Bundle.open(path) as bundle:
        subject = bundle.index
    payload = documents.statement([documents.Subject({"sha256": subject.digest[7:]})], documents.SIGNED, {})
    document = OURS.sign(payload, WHO, ISSUER)
    attach(path, [make(subject, SIGSTORE_BUNDLE, json.dumps(document).encode())])
    found = verdict(path, tmp_path)
    assert found.verified
    assert len(found.problems) == 2


def test_the_command(tmp_path: Path) -> None:
    path, root = signed(tmp_path / "m"), OURS.trusted_root(tmp_path / "root.json")
    words = ["verify", str(path), "--json", "--identity", WHO, "--issuer", ISSUER]
    result = CliRunner().invoke(main, [*words, "--trusted-root", str(root)])
    assert result.exit_code == 0, result.output
    (check,) = (c for c in json.loads(result.stdout)["checks"] if c["name"] == "identity")
    assert check == {"name": "identity", "status": "ok", "detail": f"{WHO} signed it, says {ISSUER}"}
    # Sigstore's own root, as the library has it, knows nothing of ours.
    result = CliRunner().invoke(main, [*words, "--offline"])
    assert result.exit_code == 1, result.output
    (check,) = (c for c in json.loads(result.stdout)["checks"] if c["name"] == "identity")
    assert check["status"] == "failed"
    assert "sigstore refuses it" in check["detail"]
    assert CliRunner().invoke(main, ["verify", str(path), "--identity", WHO]).exit_code == 2
    (tmp_path / "bad").write_text("{}")
    result = CliRunner().invoke(main, [*words, "--trusted-root", str(tmp_path / "bad")])
    assert result.exit_code == 1
    assert "cannot be used" in result.output
    os.mkfifo(tmp_path / "fifo")  # was opened, and waited for a writer
    result = CliRunner().invoke(main, [*words, "--trusted-root", str(tmp_path / "fifo")])
    assert result.exit_code == 1
    assert "is no file" in result.output


def test_without_the_library_there_is_a_hint(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["sigstore.errors"] = None
try:
    import aotpack_loader.signing.keyless
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'aotpack-loader[sigstore]'" in done.stdout
