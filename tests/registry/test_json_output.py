"""``--json`` of every command has the fields that docs/reference/json-output.md lists, and the exit codes are those it lists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from aotpack.tools.cli import main
from devtools.paths import ROOT

from .conftest import Registry

pytestmark = pytest.mark.usefixtures("cache")
PAGE = ROOT / "docs/reference/json-output.md"
MODEL = """
import torch

def model():
    return torch.nn.Linear(4, 2)

def example_inputs():
    return (torch.ones(3, 4),)
"""


def documented() -> dict[str, tuple[str, ...]]:
    """The fields of each command. A command that prints a list ends with ``[]``."""
    rows = re.findall(r"^\| ([a-z -]+(?:\[\])?) \| (as build|`.*`) \|$", PAGE.read_text(), re.M)
    found = {name: tuple(re.findall(r"`([^`]+)`", fields)) for name, fields in rows}
    return {name: fields or found["build"] for name, fields in found.items()}


def commands(group: click.Group, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name


TRAINED = """
import torch

class model(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, x):
        return super().forward(x).square().mean()

def example_inputs():
    return (torch.ones(3, 4),)
"""


def test_every_command_is_listed() -> None:
    assert {name.removesuffix("[]") for name in documented()} == {*commands(main), "error"}


class Runner:
    """Runs commands with ``--json``, and compares what they print with the page."""

    def __init__(self) -> None:
        self.fields = documented()
        self.seen: set[str] = set()

    def __call__(self, name: str, *arguments: object, code: int = 0) -> Any:
        done = CliRunner().invoke(main, [*name.split(), *map(str, arguments), "--json"])
        assert done.exit_code == code, done.output
        found = json.loads(done.stdout)
        self.seen.add(name)
        listed = self.fields.get(f"{name}[]")
        for item in found if listed else [found]:
            assert tuple(item) == (listed or self.fields[name])
        return found


def test_the_fields_of_each_command(registry: Registry, tmp_path: Path) -> None:
    run = Runner()
    (tmp_path / "model.py").write_text(MODEL)
    bundle, name, key = tmp_path / "a.aotpack", registry.reference("json/bundle:v1"), tmp_path / "a.key"
    built = run("build", tmp_path / "model.py", "-o", bundle, "--target", "portable", "--self-test")
    assert run("inspect", bundle)["digest"] == built["digest"]
    assert run("diff", bundle, bundle)["equal"]
    assert run("verify", bundle)["ok"]
    run("run", bundle)
    assert run("profile", bundle, "--steps", 1, "--html", tmp_path / "p.html", "--trace", tmp_path / "t.json")["modules"]
    assert len(run("bench", bundle, "--rounds", 1, "--iterations", 1, "--html", tmp_path / "b.html")) == 1
    (tmp_path / "trained.py").write_text(TRAINED)
    trained = tmp_path / "trained.aotpack"
    run("build", tmp_path / "trained.py", "-o", trained, "--target", "portable", "--optimizer", "sgd", "--lr", 0.1)
    save_file({"x": torch.ones(6, 4)}, tmp_path / "data.safetensors")
    assert run("train", trained, "--data", tmp_path / "data.safetensors", "-o", tmp_path / "trained")["steps"] == 2
    assert run("export-weights", trained, "-o", tmp_path / "weights.safetensors")["tensors"] == 2
    run("keygen", "-o", key)
    assert run("sign", bundle, "--key", key)["statements"] == []
    run("trust add", key.with_suffix(".pub"))
    assert [one["name"] for one in run("trust list")["keys"]] == ["a"]
    run("trust remove", "a")
    run("push", bundle, name)
    run("pull", name, "-o", tmp_path / "pulled.aotpack")
    run("copy", name, registry.reference("json/copy:v1"))
    assert "v1" in run("list", name.rpartition(":")[0])["tags"], "the registry has a tag for signatures as well"
    run("pull", name)
    assert len(run("cache list")) == 1
    assert run("cache verify") == {"ok": True, "removed": {}}
    run("cache prune", "--dry-run")
    assert {*commands(main)} - run.seen == {"compile"}, "compile prints what build does, and takes a compiler"


def test_errors_and_exit_codes(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["inspect", str(tmp_path / "none"), "--json"])
    assert done.exit_code == 1
    assert tuple(json.loads(done.stdout)["error"]) == documented()["error"]
    assert CliRunner().invoke(main, ["inspect"]).exit_code == 2
    assert CliRunner().invoke(main, ["inspect", "--unknown"]).exit_code == 2


def test_an_interrupted_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aotpack_loader.archive.bundle.Bundle.open", interrupted)
    assert CliRunner().invoke(main, ["inspect", str(tmp_path)]).exit_code == 130
