"""``aotpack diff`` with bundles in a registry: only documents are fetched, and weights are not compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aotpack.registry.push import push
from aotpack.tools.cli import main
from aotpack_loader.registry.reference import Reference

from .bundles import write_two
from .conftest import Registry, quick
from .proxy import Proxy

pytestmark = pytest.mark.usefixtures("cache")


def diff(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(main, ["diff", *map(str, arguments), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def test_either_bundle_may_be_in_a_registry(registry: Registry, proxy: Proxy, tmp_path: Path) -> None:
    first, second = tmp_path / "first.aotpack", tmp_path / "second.aotpack"
    write_two(first)
    write_two(second, base=1)
    for path in (first, second):
        push(path, Reference.parse(registry.reference(f"diff/two:{path.stem}")), transport=quick())
    local = diff(first, second, "--no-weights")
    names = [proxy.reference(f"diff/two:{path.stem}") for path in (first, second)]
    for pair in ((names[0], second), (first, names[1]), names):
        proxy.seen.clear()
        remote = diff(*pair)
        assert remote["weights"] is None
        assert {**remote, "first": "", "second": ""} == {**local, "first": "", "second": ""}
        assert sum(seen.sent for seen in proxy.seen) < 200_000, "the weights have 6 MB"


def test_a_page_of_bundles_in_a_registry(registry: Registry, tmp_path: Path) -> None:
    first, out = tmp_path / "first.aotpack", tmp_path / "diff.html"
    write_two(first)
    name = registry.reference("diff/page:v1")
    push(first, Reference.parse(name), transport=quick())
    done = CliRunner().invoke(main, ["diff", name, str(first), "--html", str(out)])
    assert done.exit_code == 0, done.output
    assert name in out.read_text()


def test_what_a_registry_does_not_have(registry: Registry, tmp_path: Path) -> None:
    first = tmp_path / "first.aotpack"
    write_two(first)
    found = diff(first, registry.reference("diff/none:v1"), code=1)
    assert found["error"]["kind"] == "RegistryNotFoundError"
