"""Push, pull and load against a real registry, with skopeo as the outside judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import aotpack_loader
from aotpack.registry.push import push
from aotpack.tools.cli import main
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import NotABundleError, RegistryContentError, RegistryError, RegistryNotFoundError, TargetError
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference

from .bundles import CODE_BYTES, CPU, write_two
from .conftest import Registry, quick, skopeo
from .proxy import Proxy

pytestmark = pytest.mark.usefixtures("cache")


def run(*arguments: object) -> Any:
    """Run the command with ``--json`` and return what it printed."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def digest_of(path: Path) -> str:
    with Bundle.open(path) as opened:
        return opened.digest


def test_what_was_pushed_is_pulled_byte_for_byte(registry: Registry, two: Path, tmp_path: Path) -> None:
    name = registry.reference("a/two:v1")
    pushed = run("push", two, name)
    assert pushed["digest"] == digest_of(two)
    assert pushed["pinned"] == f"{name}@{pushed['digest']}"
    out = tmp_path / "pulled.aotpack"
    assert run("pull", pushed["pinned"], "-o", out)["bundle"] == str(out)
    assert out.read_bytes() == two.read_bytes()
    run("pull", name, "-o", f"{tmp_path}/unpacked/")
    with Bundle.open(tmp_path / "unpacked") as bundle:
        bundle.verify()
        assert bundle.digest == pushed["digest"]


def test_load_pulls_and_runs(registry: Registry, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = registry.reference("a/tiny:v1")
    digest = push(bundle, Reference.parse(name), transport=quick()).digest
    model = aotpack_loader.load(name).eval()
    with torch.no_grad():
        assert torch.equal(model(torch.ones(4)), torch.arange(4.0))
    assert model.aotpack.digest == digest
    assert model.aotpack.path == name
    # A digest that is cached needs no registry.
    monkeypatch.setattr("urllib3.PoolManager.urlopen", None)
    aotpack_loader.load(f"{name}@{digest}")


def test_a_pull_fetches_the_layers_of_one_target(registry: Registry, proxy: Proxy, two: Path, tmp_path: Path) -> None:
    push(two, Reference.parse(registry.reference("a/one:v1")), transport=quick())
    out = tmp_path / "portable.aotpack"
    report = run("pull", proxy.reference("a/one:v1"), "--target", "portable", "-o", out)
    assert report["targets"] == ["portable"]
    assert 6_000_000 < proxy.bodies("GET") < 6_000_000 + 20_000
    assert proxy.bodies("GET") + CODE_BYTES < two.stat().st_size
    assert report["digest"] == digest_of(two) == digest_of(out)
    with Bundle.open(out) as opened:
        assert list(opened.targets) == ["portable", CPU]  # its documents are there, so the digest is the original's
    # The other target's layers come on request, without those that are here.
    before = proxy.bodies("GET")
    run("pull", proxy.reference("a/one:v1"), "--target", "cpu")
    assert CODE_BYTES < proxy.bodies("GET") - before < CODE_BYTES + 20_000


def test_an_unknown_target_is_refused_with_those_there_are(registry: Registry, two: Path) -> None:
    name = Reference.parse(registry.reference("a/two:v1"))
    push(two, name, transport=quick())
    with pytest.raises(TargetError, match=r"no target 'cuda'.*\n.*portable, cpu:x86-64-v3"):
        pull(name, by_name(["cuda"]), transport=quick())


def test_a_second_bundle_of_one_base_sends_only_what_is_new(proxy: Proxy, tmp_path: Path) -> None:
    write_two(tmp_path / "base", base=7)
    write_two(tmp_path / "tuned", base=7, adapter=1)
    push(tmp_path / "base", Reference.parse(proxy.reference("share/model:base")), transport=quick())
    first = proxy.bodies("PATCH") + proxy.bodies("PUT")
    assert first > 6_000_000 + CODE_BYTES
    report = push(tmp_path / "tuned", Reference.parse(proxy.reference("share/model:tuned")), transport=quick())
    second = proxy.bodies("PATCH") + proxy.bodies("PUT") - first
    assert second < 10_000
    assert report.sizes["exists"] > 6_000_000 + CODE_BYTES
    # In another repository of the registry blobs are mounted, not sent.
    report = push(
        tmp_path / "tuned", Reference.parse(proxy.reference("share/other:v1")), transport=quick(), mounts=["share/model"]
    )
    assert set(report.blobs) == {"mounted"}
    assert proxy.bodies("PATCH") + proxy.bodies("PUT") - first - second < 10_000


def test_a_mount_that_is_refused_becomes_an_upload(registry: Registry, bundle: Path) -> None:
    name = Reference.parse(registry.reference("a/unmounted:v1"))
    assert set(push(bundle, name, transport=quick(), mounts=["a/absent"]).blobs) == {"uploaded"}


def test_a_dry_run_sends_nothing(proxy: Proxy, two: Path) -> None:
    report = run("push", two, proxy.reference("a/dry:v1"), "--dry-run")
    assert report["dryRun"]
    assert report["bytes"]["to upload"] > 6_000_000
    assert {seen.method for seen in proxy.seen} <= {"HEAD", "GET"}
    with pytest.raises(RegistryNotFoundError):
        pull(Reference.parse(proxy.reference("a/dry:v1")), by_name(()), transport=quick())


def test_tags_are_listed(registry: Registry, bundle: Path) -> None:
    for tag in ("v2", "v1"):
        push(bundle, Reference.parse(registry.reference(f"a/tags:{tag}")), transport=quick())
    assert run("list", registry.reference("a/tags"))["tags"] == ["v1", "v2"]


def test_skopeo_copies_both_ways_unchanged(registry: Registry, two: Path, tmp_path: Path) -> None:
    insecure = "--src-tls-verify=false", "--dest-tls-verify=false"
    skopeo("copy", "--all", *insecure, f"oci-archive:{two}", f"docker://{registry.host}/skopeo/in:v1")
    out = tmp_path / "ours.aotpack"
    run("pull", registry.reference("skopeo/in:v1"), "-o", out)
    assert out.read_bytes() == two.read_bytes()
    push(two, Reference.parse(registry.reference("skopeo/out:v1")), transport=quick())
    skopeo("copy", "--all", *insecure, f"docker://{registry.host}/skopeo/out:v1", f"oci:{tmp_path}/theirs:v1")
    with Bundle.open(tmp_path / "theirs") as opened:
        opened.verify()
        assert opened.digest == digest_of(two)


def test_a_copy_without_all_is_refused_with_the_way_out(registry: Registry, two: Path) -> None:
    insecure = "--src-tls-verify=false", "--dest-tls-verify=false"
    skopeo("copy", "--override-arch", "amd64", *insecure, f"oci-archive:{two}", f"docker://{registry.host}/skopeo/part:v1")
    with pytest.raises(RegistryContentError, match=r"one target of a bundle without its bundle index.\n.*skopeo copy --all"):
        aotpack_loader.load(registry.reference("skopeo/part:v1"))


def test_another_artifact_is_refused(registry: Registry, two: Path) -> None:
    push(two, Reference.parse(registry.reference("a/two:v1")), transport=quick())
    with pytest.raises(RegistryError, match="names another"):
        push(two, Reference.parse(registry.reference(f"a/two:v1@sha256:{'0' * 64}")), transport=quick())


def test_other_forms_of_skopeo_are_refused_with_the_way_out(two: Path, tmp_path: Path) -> None:
    skopeo("copy", "--all", f"oci-archive:{two}", f"dir:{tmp_path}/dir")
    with pytest.raises(NotABundleError, match=r"skopeo's `dir:` form(.|\n)*skopeo copy --all"):
        Bundle.open(tmp_path / "dir")
    skopeo("copy", "--override-arch", "amd64", f"oci-archive:{two}", f"oci:{tmp_path}/part:v1")
    with pytest.raises(NotABundleError, match=r"of one image(.|\n)*skopeo copy --all"):
        Bundle.open(tmp_path / "part")
