"""The commands of docs/guide/registry.md, in order, with a registry at another port and digests filled in."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support.archive import write_tiny
from support.markdown import ROOT, blocks

import aotpack_loader
from aotpack.tools.cli import main
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import LockError
from aotpack_loader.registry.lock import locked, read_lock, write_lock
from aotpack_loader.registry.reference import Reference

from .conftest import Registry, need, running

pytestmark = pytest.mark.usefixtures("cache")


def test_the_guide_works_as_it_stands(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    digest = write_tiny("model.aotpack")
    ran = []
    for block in blocks(ROOT / "docs" / "guide" / "registry.md"):
        if block.language != "sh" or block.title != "not run: needs a registry":
            continue
        for line in block.text.splitlines():
            text = line.replace("127.0.0.1:5000", registry.host).replace("sha256:…", digest)
            (tmp_path / "models").mkdir(exist_ok=True)
            text = text.replace("cpu:x86-64-v3", "portable").replace("oci://host/", f"oci://{registry.host}/")
            text = text.replace("oci://other/team/model", f"oci://{registry.host}/other/model")
            words = shlex.split(text, comments=True)
            result = CliRunner().invoke(main, words[1:])
            assert result.exit_code == 0, f"{text}\n{result.output}\n{result.exception!r}"
            ran.append(words[1])
    assert {"push", "pull", "verify", "list", "inspect", "copy", "cache"} <= set(ran)
    (block,) = (b for b in blocks(ROOT / "docs" / "guide" / "registry.md") if b.language == "python")
    variables: dict[str, Any] = {}
    exec(block.text.replace("127.0.0.1:5000", registry.host).replace("sha256:…", digest), variables)
    model = variables["model"].eval()
    with torch.no_grad():
        assert torch.equal(model(torch.ones(4)), torch.arange(4.0))


def test_the_registry_of_the_guide_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new user's first command, with the configuration that stands there, at another port."""
    monkeypatch.chdir(tmp_path)
    (block,) = (b for b in blocks(ROOT / "docs" / "guide" / "registry.md") if b.title == "not run: it starts a server")
    config = block.text.partition("<<'EOF'\n")[2].partition("EOF\n")[0]
    assert "docker-registry serve registry.yml" in block.text
    digest = write_tiny("model.aotpack")
    with running(tmp_path, config, "127.0.0.1:5000") as host:
        name = f"oci://{host}/team/model"
        commands = [
            ["push", "model.aotpack", f"{name}:v1"], ["pull", f"{name}@{digest}", "-o", "out.aotpack"], ["verify", "out.aotpack"]
        ]  # fmt: skip
        for words in commands:
            result = CliRunner().invoke(main, words)
            assert result.exit_code == 0, result.output
    assert (tmp_path / "registry").is_dir()


def test_other_tools_work_as_the_guide_says(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("skopeo")
    monkeypatch.chdir(tmp_path)
    digest = write_tiny("model.aotpack")
    (block,) = (b for b in blocks(ROOT / "docs" / "guide" / "registry.md") if b.title == "not run: other tools")
    for line in block.text.splitlines():
        words = shlex.split(line.replace("127.0.0.1:5000", registry.host))
        if words[0] == "aotpack":
            words[:1] = [sys.executable, "-m", "aotpack"]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    with Bundle.open("directory") as bundle:
        assert bundle.digest == digest


def test_a_lock_file_decides_and_a_digest_is_checked(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = registry.reference("lock/model:v1")
    first, second = (write_tiny(f"{name}.aotpack", name=name) for name in ("first", "second"))
    run = CliRunner().invoke
    assert run(main, ["pull", name, "--locked"]).exit_code == 1  # no entry
    assert run(main, ["push", "first.aotpack", name, "--lock"]).exit_code == 0
    assert run(main, ["push", "second.aotpack", name]).exit_code == 0  # the tag moves
    assert aotpack_loader.load(name).aotpack.digest == first
    assert run(main, ["pull", name, "--locked", "-o", "out.aotpack"]).exit_code == 0
    assert aotpack_loader.load("out.aotpack", digest=first).aotpack.digest == first
    with pytest.raises(aotpack_loader.AotpackError, match="is wanted"):
        aotpack_loader.load("out.aotpack", digest=second)
    with pytest.raises(aotpack_loader.AotpackError, match="is wanted"):
        aotpack_loader.load(name, digest=second)
    (tmp_path / "aotpack.lock").write_text("{}")
    with pytest.raises(aotpack_loader.AotpackError, match="not a lock file"):
        aotpack_loader.load(name)
    (tmp_path / "aotpack.lock").unlink()
    assert aotpack_loader.load(name).aotpack.digest == second


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 1, "bundles": {"%s": "sha256:' + "0" * 64 + '", "%s": "DIGEST"}}',  # which of the two?
        '{"version": 1, "bundles": {}, "bundles": {"%s": "DIGEST"}}',
        '{"version": 1, "bundles": {"%s": "DIGEST\\n"}}',
        '{"version": 1, "bundles": {"%s": ["DIGEST"]}}',
        '{"version": 2, "bundles": {"%s": "DIGEST"}}',
        '{"version": ' + "9" * 5000 + "}",
        "[" * 1_000_000,
        " " * (5 << 20),
        "\x00",
    ],
)
def test_a_hostile_lock_file_is_refused(registry: Registry, tmp_path: Path, text: str) -> None:
    digest = write_tiny(tmp_path / "m.aotpack")
    name = registry.reference("lock/hostile:v1")
    assert CliRunner().invoke(main, ["push", str(tmp_path / "m.aotpack"), name]).exit_code == 0
    (tmp_path / "aotpack.lock").write_text(text.replace("%s", name).replace("DIGEST", digest))
    with pytest.raises(LockError, match="not a lock file"):
        aotpack_loader.load(name, lock=tmp_path / "aotpack.lock")


def test_a_lock_file_of_another_user_is_not_used_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write to the working directory said which bundle a reference is, or hung the process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AOTPACK_LOCK", raising=False)
    digest, file = f"sha256:{'1' * 64}", tmp_path / "aotpack.lock"
    reference = Reference.parse("oci://127.0.0.1:9/acme/m:v1")

    def found(**options: Any) -> str:
        return locked(reference, file, **options).digest

    write_lock(file, reference.name, digest)
    assert found(is_named=False) == digest
    file.chmod(0o666)
    with pytest.raises(LockError, match="it is not used unasked"):
        found(is_named=False)
    with pytest.raises(LockError, match="it is not used unasked"):
        aotpack_loader.load("oci://127.0.0.1:9/acme/m:v1")
    assert found() == digest
    file.chmod(0o664)
    assert found(is_named=False) == digest
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
        with pytest.raises(LockError, match="it is not used unasked"):
            found(is_named=False)
        os.chown(file, 0, 0)
        file.rename(tmp_path / "mine")
        file.symlink_to("mine")
        assert found(is_named=False) == digest
        os.chown(file, 65534, 65534, follow_symlinks=False)
        with pytest.raises(LockError, match="it is not used unasked"):
            found(is_named=False)


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)],
    ids=["fifo", "directory", "device"],
)
def test_a_lock_file_that_is_no_file(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "aotpack.lock"
    make(path)
    for is_named in (True, False):
        with pytest.raises(LockError, match="is not a file"):
            read_lock(path, is_named=is_named)


def test_a_lock_file_is_found_whatever_the_case_of_the_host(tmp_path: Path) -> None:
    digest = f"sha256:{'a' * 64}"
    write_lock(tmp_path / "lock", Reference.parse("oci://GHCR.io/acme/m:v1").name, digest)
    assert locked(Reference.parse("oci://ghcr.IO/acme/m:v1"), tmp_path / "lock", required=True).digest == digest


def test_a_copy_goes_through_no_link(registry: Registry, tmp_path: Path) -> None:
    """``-o`` replaces a link to a file, and refuses a link to a directory: another user may have placed it."""
    write_tiny(tmp_path / "m.aotpack")
    name = registry.reference("links/model:v1")
    run = CliRunner().invoke
    assert run(main, ["push", str(tmp_path / "m.aotpack"), name]).exit_code == 0
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link.aotpack").symlink_to("victim")
    assert run(main, ["pull", name, "-o", str(tmp_path / "link.aotpack")]).exit_code == 0
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "link.aotpack").is_symlink()
    (tmp_path / "folder").mkdir()
    for target in ("folder", "nowhere"):
        (tmp_path / "to").symlink_to(target)
        result = run(main, ["pull", name, "-o", f"{tmp_path}/to/"])
        assert result.exit_code == 1
        assert "is not a directory" in result.output
        (tmp_path / "to").unlink()
    assert list((tmp_path / "folder").iterdir()) == []
    (tmp_path / "folder" / "mine").write_text("x")
    assert "holds no bundle" in run(main, ["pull", name, "-o", str(tmp_path / "folder")]).output


def test_the_cache_is_verified_and_pruned(registry: Registry, tmp_path: Path, cache: Path) -> None:
    write_tiny(tmp_path / "m.aotpack")
    name = registry.reference("cache/model:v1")
    run = CliRunner().invoke
    assert run(main, ["push", str(tmp_path / "m.aotpack"), name]).exit_code == 0
    assert run(main, ["pull", name]).exit_code == 0
    blob = max((cache / "registry" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.chmod(0o600)
    blob.write_bytes(b"x" * blob.stat().st_size)
    result = run(main, ["cache", "verify"])
    assert result.exit_code == 1
    assert blob.name in result.output
    assert run(main, ["cache", "verify"]).exit_code == 0
    assert run(main, ["pull", name]).exit_code == 0
    assert run(main, ["cache", "verify"]).exit_code == 0
    assert run(main, ["cache", "prune"]).exit_code == 0
    assert list((cache / "registry" / "bundles").iterdir())
    assert run(main, ["cache", "prune", "--unused-for", "0"]).exit_code == 0
    assert not list((cache / "registry" / "bundles").iterdir())
    assert not list((cache / "registry" / "blobs" / "sha256").iterdir())
