"""How much space a pull takes, what a copy with some targets says about the others, and caches that are full or read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import aotpack_loader
from aotpack.registry.push import push
from aotpack.tools.cli import main
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError, CorruptBundleError, DirectoryError, RegistryError, TargetError
from aotpack_loader.registry.pull import by_name, pull
from aotpack_loader.registry.reference import Reference
from aotpack_loader.registry.store import BlobCache

from .bundles import CODE_BYTES, CPU
from .conftest import Registry, quick
from .proxy import Fault, Proxy

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def name(registry: Registry, two: Path) -> str:
    push(two, Reference.parse(registry.reference("space/two:v1")), transport=quick())
    return "space/two:v1"


def cached_bytes(cache: Path) -> int:
    return sum(path.stat().st_size for path in (cache / "registry" / "blobs" / "sha256").iterdir())


@pytest.mark.parametrize("form", ["file", "directory"])
def test_layers_take_space_once(proxy: Proxy, name: str, two: Path, cache: Path, tmp_path: Path, form: str) -> None:
    out = tmp_path / "out" if form == "file" else f"{tmp_path}/out/"
    proxy.faults = [Fault("/blobs/sha256", times=3, cut_answer=1_500_000)]  # also where the connection breaks
    report = CliRunner().invoke(main, ["pull", proxy.reference(name), "-o", str(out), "--no-cache"], catch_exceptions=False)
    assert report.exit_code == 0
    assert cached_bytes(cache) < 100_000  # the documents alone
    assert proxy.bodies("GET") < two.stat().st_size + 50_000
    with Bundle.open(tmp_path / "out") as bundle:
        bundle.verify()
    if form == "file":
        assert (tmp_path / "out").read_bytes() == two.read_bytes()


def test_layers_that_are_cached_are_not_fetched_again(proxy: Proxy, name: str, tmp_path: Path, cache: Path) -> None:
    reference = Reference.parse(proxy.reference(name))
    pull(reference, by_name(["portable"]), transport=quick())
    before = proxy.bodies("GET")
    pull(reference, by_name(()), out=tmp_path / "out", keep=False, transport=quick())
    assert CODE_BYTES < proxy.bodies("GET") - before < CODE_BYTES + 20_000
    assert cached_bytes(cache) < 6_100_000
    with Bundle.open(tmp_path / "out") as bundle:
        bundle.verify()


def test_a_lie_or_a_failure_leaves_nothing(proxy: Proxy, name: str, tmp_path: Path) -> None:
    reference = Reference.parse(proxy.reference(name))
    for fault in (Fault("/blobs/sha256", change=lambda body: bytes(len(body))), Fault("/blobs/sha256", status=503)):
        pull(reference, lambda bundle: [], transport=quick())  # the documents
        proxy.faults = [fault]
        with pytest.raises(RegistryError):
            pull(reference, by_name(()), out=tmp_path / "out", keep=False, transport=quick(attempts=2))
        proxy.faults = []
        assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_target_that_was_not_pulled_is_told_from_a_lost_layer(registry: Registry, name: str, tmp_path: Path) -> None:
    reference = Reference.parse(registry.reference(name))
    part, whole = tmp_path / "part", tmp_path / "whole"
    pull(reference, by_name([CPU]), out=f"{part}/", transport=quick())
    pull(reference, by_name(()), out=f"{whole}/", transport=quick())
    with Bundle.open(part) as bundle:
        assert bundle.copied == {CPU}
        assert bundle.absence("portable") == ""  # all of its layers are CPU's too
        graph = bundle.program.methods["infer"].forward
        code = bundle.targets[CPU].executables["infer.forward"].code
        bundle.verify()
    # A layer that only the target that was pulled has.
    (part / "blobs" / "sha256" / code.digest[7:]).unlink()
    with Bundle.open(part) as bundle:
        assert f"has lost the layer {code.digest}" in bundle.absence(CPU)
        with pytest.raises(CorruptBundleError, match="Damaged blobs"):
            bundle.verify()
    (whole / "blobs" / "sha256" / graph.digest[7:]).unlink()
    with pytest.raises(TargetError, match=rf"portable: this copy of the bundle is damaged, it has lost the layer {graph.digest}"):
        aotpack_loader.load(whole, backend="portable")
    other = tmp_path / "other"
    pull(reference, by_name(["portable"]), out=f"{other}/", transport=quick())
    with Bundle.open(other) as bundle:
        assert "was not pulled into this copy" in bundle.absence(CPU)
        bundle.verify()
    with pytest.raises(TargetError, match="was not pulled into this copy"):
        aotpack_loader.load(other, backend=CPU, trust="all")
    # The cache collects targets.
    pulled = pull(reference, by_name(["portable"]), transport=quick()).path
    with Bundle.open(pulled) as bundle:
        assert bundle.copied == {"portable", CPU}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_cache_on_a_full_disk(registry: Registry, name: str, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Reference.parse(registry.reference(name))
    monkeypatch.setenv("AOTPACK_CACHE", str(small))
    with pytest.raises(DirectoryError, match=r"cannot be written to: No space left on device(.|\n)*aotpack cache prune"):
        pull(reference, by_name(()), transport=quick())
    subprocess.run(["mount", "-o", "remount,size=40m", str(small)], check=True)
    with Bundle.open(pull(reference, by_name(()), transport=quick()).path) as bundle:  # the next run succeeds
        bundle.verify()
    assert list(BlobCache().partial.iterdir()) == []


def test_a_copy_to_a_full_disk(registry: Registry, name: str, small: Path) -> None:
    reference = Reference.parse(registry.reference(name))
    for keep in (True, False):
        for out in (f"{small}/file", f"{small}/directory/"):
            with pytest.raises(RegistryError, match="cannot be written: No space left on device"):
                pull(reference, by_name(()), out=out, keep=keep, transport=quick())
            assert list(small.iterdir()) == []


def test_a_read_only_cache(registry: Registry, bundle: Path, two: Path, name: str, cache: Path) -> None:
    """What is there is used. What is not there is refused, with what to do."""
    reference = Reference.parse(registry.reference("space/tiny:v1"))
    digest = push(bundle, reference, transport=quick()).digest
    pull(reference, by_name(()), transport=quick())
    mounts = (["--bind", str(cache), str(cache)], ["-o", "remount,bind,ro", str(cache)])
    if any(subprocess.run(["mount", *words], capture_output=True).returncode for words in mounts):
        pytest.skip("no folder can be mounted read-only here")
    try:
        for wanted in (f"{reference}", f"{reference}@{digest}"):
            model = aotpack_loader.load(wanted).eval()
            with torch.no_grad():
                assert torch.equal(model(torch.ones(4)), torch.arange(4.0))
        with pytest.raises(AotpackError, match="Read-only file system"):
            pull(Reference.parse(registry.reference(name)), by_name(()), transport=quick())
    finally:
        subprocess.run(["umount", "--lazy", str(cache)], check=True)  # the model's mapping is still there
