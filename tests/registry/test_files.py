"""Bundle files in stores that fsspec knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import aotpack_loader
from aotpack.tools.cli import main
from aotpack_loader.errors import BundleNotFoundError, CorruptBundleError, PolicyError, RegistryError
from aotpack_loader.registry.files import copy_file, fetch_file

pytestmark = pytest.mark.usefixtures("cache")


def test_a_bundle_goes_to_a_store_and_comes_back(bundle: Path, tmp_path: Path, cache: Path) -> None:
    for url in ("memory://bucket/m.aotpack", f"file://{tmp_path}/copy.aotpack"):
        assert CliRunner().invoke(main, ["push", str(bundle), url], catch_exceptions=False).exit_code == 0
        model = aotpack_loader.load(url)
        assert aotpack_loader.load(url, digest=model.aotpack.digest).aotpack.path == url
        with pytest.raises(aotpack_loader.AotpackError, match="is wanted"):
            aotpack_loader.load(url, digest=f"sha256:{'0' * 64}")
    assert len(list((cache / "registry" / "files").iterdir())) == 1  # a local file is not copied


def test_bundles_of_stores_are_pushed_and_looked_at(bundle: Path, tmp_path: Path) -> None:
    run = CliRunner().invoke
    url = "memory://bucket/seen.aotpack"
    pushed = json.loads(run(main, ["push", str(bundle), url, "--json"], catch_exceptions=False).stdout)
    shown = json.loads(run(main, ["inspect", url, "--json"], catch_exceptions=False).stdout)
    assert pushed == {"reference": url, "bundle": str(bundle), "digest": shown["digest"]}
    compared = run(main, ["diff", url, str(bundle), "--json"], catch_exceptions=False)
    assert compared.exit_code == 0
    assert json.loads(compared.stdout)["weights"] == []  # they were compared
    for options in (["--dry-run"], ["--lock"], ["--as", "image"], ["--mount", "other"], ["--chunk-size", "1"]):
        assert run(main, ["push", str(bundle), "memory://bucket/refused.aotpack", *options]).exit_code == 2
    (tmp_path / "text.aotpack").write_text("no bundle")
    for path, code in ((tmp_path / "text.aotpack", 1), (tmp_path / "none", 1), (tmp_path, 2)):
        assert run(main, ["push", str(path), "memory://bucket/refused.aotpack"]).exit_code == code
    with pytest.raises(BundleNotFoundError):
        fetch_file("memory://bucket/refused.aotpack")


@pytest.mark.parametrize("command", ["bench", "compile", "profile", "push", "run", "sign", "verify"])
def test_commands_that_need_a_bundle_here_say_how_to_bring_it(command: str) -> None:
    result = CliRunner().invoke(main, [command, "oci://127.0.0.1:5000/team/model:v1"])
    assert result.exit_code == 2
    assert "aotpack pull oci://127.0.0.1:5000/team/model:v1 -o PATH" in " ".join(result.output.split())


def test_what_is_not_there_or_not_known() -> None:
    with pytest.raises(BundleNotFoundError, match="memory://bucket/none"):
        fetch_file("memory://bucket/none")
    with pytest.raises(RegistryError, match="nostore"):
        aotpack_loader.load("nostore://bucket/model")


def test_pull_copies_a_file_from_a_store(bundle: Path, tmp_path: Path, cache: Path) -> None:
    run = CliRunner().invoke
    for number, url in enumerate(("memory://bucket/pulled.aotpack", f"file://{tmp_path}/pulled.aotpack")):
        assert run(main, ["push", str(bundle), url], catch_exceptions=False).exit_code == 0
        out = tmp_path / f"out{number}.aotpack"
        result = run(main, ["pull", url, "-o", str(out), "--json"], catch_exceptions=False)
        assert json.loads(result.stdout)["bundle"] == str(out)
        assert out.read_bytes() == bundle.read_bytes()
        assert not (cache / "registry" / "files").exists()  # it takes space once
        assert run(main, ["pull", url, "--target", "portable"]).exit_code == 2
    assert json.loads(run(main, ["pull", "memory://bucket/pulled.aotpack", "--json"]).stdout)["targets"] == ["portable"]


def test_a_damaged_file_is_not_pulled(bundle: Path, tmp_path: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[data.index(b'"__metadata__"') if b'"__metadata__"' in data else len(data) // 2] ^= 1
    (tmp_path / "damaged.aotpack").write_bytes(data)
    for url, kind in ((f"file://{tmp_path}/damaged.aotpack", CorruptBundleError), ("memory://none", BundleNotFoundError)):
        result = CliRunner().invoke(main, ["pull", url, "-o", str(tmp_path / "out.aotpack")])
        assert result.exit_code == 1
        with pytest.raises(kind):
            copy_file(url, tmp_path / "out.aotpack")
        assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".aotpack") == [
            "damaged.aotpack",
            "tiny.aotpack",
        ]


@pytest.mark.parametrize("part", ["..", ".", "%2e%2e", "..%2fx", "\\..\\"])
def test_a_path_with_steps_upwards_is_refused(bundle: Path, part: str) -> None:
    """A policy that allows ``s3://bucket/ours/**`` must not allow what is elsewhere."""
    for url in (f"file://{bundle.parent}/{part}/{bundle.name}", f"memory://bucket/ours/{part}/m.aotpack"):
        with pytest.raises(RegistryError, match="parent directory"):
            aotpack_loader.load(url)


def test_a_local_file_has_the_name_of_its_path_in_a_policy(bundle: Path, tmp_path: Path) -> None:
    """Else a URL would be a way around the rules for paths, as a link would."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link.aotpack").symlink_to(bundle)
    policy = tmp_path / "policy.toml"
    policy.write_text(
        f'''version = 1
[[rules]]
match = ["{bundle}"]
mode = "enforce"
digests = ["sha256:{"0" * 64}"]
[[rules]]
match = ["file://**", "{tmp_path}/open/**"]
mode = "off"
'''
    )
    for name in (str(bundle), f"file://{bundle}", f"file://{tmp_path}/open/link.aotpack", str(tmp_path / "open/link.aotpack")):
        with pytest.raises(PolicyError, match="is not listed"):
            aotpack_loader.load(name, policy=policy)
