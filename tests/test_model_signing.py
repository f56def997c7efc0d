"""OpenSSF Model Signing: its tool verifies our signatures, and we verify those that it makes. Nothing asks the network."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from support.archive import write_tiny

from aotpack.signing import write_keys
from aotpack.signing.model_signing import sign_detached, verify_detached
from aotpack.tools.cli import main
from aotpack_loader.errors import AotpackError, CorruptBundleError
from aotpack_loader.signing.keys import PrivateKey, private_key, public_key

model_signing = pytest.importorskip("model_signing")


@pytest.fixture(params=["file", "directory"])
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_tiny(tmp_path / "m", layout=request.param)
    return tmp_path / "m"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    _, private, public = write_keys("ecdsa-p256", tmp_path / "acme.key", None)
    return private, public


def test_its_tool_verifies_ours(bundle: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = files
    (tmp_path / "sig").write_bytes(sign_detached(bundle, private_key(private.read_bytes(), "acme")))
    verifier = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public)
    verifier.verify(bundle, tmp_path / "sig")
    changed = bundle if bundle.is_file() else bundle / "index.json"
    changed.write_bytes(changed.read_bytes() + b" ")
    with pytest.raises(ValueError, match="mismatch"):
        model_signing.verifying.Config().use_elliptic_key_verifier(public_key=public).verify(bundle, tmp_path / "sig")


def test_we_verify_its(bundle: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = files
    model_signing.signing.Config().use_elliptic_key_signer(private_key=private).sign(bundle, tmp_path / "sig")
    key = public_key(public.read_bytes(), "acme")
    verify_detached(bundle, tmp_path / "sig", key)
    with pytest.raises(CorruptBundleError, match="not of this key"):
        verify_detached(bundle, tmp_path / "sig", PrivateKey.generate("ecdsa-p256").public)
    if bundle.is_dir():
        (bundle / "more").write_bytes(b"")
        with pytest.raises(CorruptBundleError, match="more: is not in the signature"):
            verify_detached(bundle, tmp_path / "sig", key)
        (bundle / "more").unlink()
        blob = max((bundle / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
        data = blob.read_bytes()
        blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(AotpackError, match="sha256"):
            verify_detached(bundle, tmp_path / "sig", key)


def test_the_commands(bundle: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = files
    runner = CliRunner()
    words = [str(bundle), "--model-signing", str(tmp_path / "sig"), "--key"]
    assert runner.invoke(main, ["sign", *words, str(private)]).exit_code == 0
    assert runner.invoke(main, ["verify", *words, str(public)]).exit_code == 0
    _, _, other = write_keys("ecdsa-p256", tmp_path / "other.key", None)
    assert runner.invoke(main, ["verify", *words, str(other)]).exit_code == 1
    assert runner.invoke(main, ["verify", *words[:-1]]).exit_code == 2


def test_a_key_that_it_does_not_know(bundle: Path) -> None:
    with pytest.raises(AotpackError, match="does not know keys of ed25519"):
        sign_detached(bundle, PrivateKey.generate("ed25519"))
