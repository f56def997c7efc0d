"""Bundle files in stores that fsspec knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import aotpack_loader
from aotpack.cli import main
from aotpack_loader.errors import BundleNotFoundError, RegistryError
from aotpack_loader.registry.files import fetch_file

pytestmark = pytest.mark.usefixtures("cache")


def test_a_bundle_goes_to_a_store_and_comes_back(bundle: Path, tmp_path: Path, cache: Path) -> None:
    for url in ("memory://bucket/m.aotpack", f"file://{tmp_path}/copy.aotpack"):
        assert CliRunner().invoke(main, ["push", str(bundle), url], catch_exceptions=False).exit_code == 0
        model = aotpack_loader.load(url)
        assert aotpack_loader.load(url, digest=model.aotpack.digest).aotpack.path == url
        with pytest.raises(aotpack_loader.AotpackError, match="is wanted"):
            aotpack_loader.load(url, digest=f"sha256:{'0' * 64}")
    assert len(list((cache / "registry" / "files").iterdir())) == 1  # a local file is not copied


def test_what_is_not_there_or_not_known() -> None:
    with pytest.raises(BundleNotFoundError, match="memory://bucket/none"):
        fetch_file("memory://bucket/none")
    with pytest.raises(RegistryError, match="nostore"):
        aotpack_loader.load("nostore://bucket/model")
