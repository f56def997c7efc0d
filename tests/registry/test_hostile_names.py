"""Every command shows hostile names as text that can be seen: no terminal escape, control character or right-to-left mark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.progress import Progress
from support.hostile import HIDDEN, HOSTILE, hostile_bundle

import aotpack_loader
from aotpack.registry.push import push
from aotpack.tools.cli import console, main
from aotpack_loader.errors import AotpackError, Problem
from aotpack_loader.registry.reference import Reference
from devtools.paths import ROOT

from .conftest import Registry, quick
from .proxy import Fault, Proxy

pytestmark = pytest.mark.usefixtures("cache")
NAME = "evil\x1b]0;owned\x07\u202e\x9b31m"
"""A name of a file or a tag."""


MODEL = """
import torch

def model():
    return torch.nn.Linear(4, 2)

def example_inputs():
    return (torch.ones(3, 4),)
"""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), env={"AOTPACK_PASSPHRASE": "word"})


class Scene:
    """Bundles and files with hostile names, and a registry that holds such a bundle."""

    def __init__(self, folder: Path, registry: Registry, proxy: Proxy) -> None:
        self.folder = folder / NAME
        self.folder.mkdir()
        self.bundle = hostile_bundle(self.folder, operators=())
        self.other = hostile_bundle(self.folder, operators=("no_such_operators\u202e",), name="other")
        self.name = registry.reference("hostile/bundle:v1")
        push(self.bundle, Reference.parse(self.name), transport=quick())
        tags = json.dumps({"name": "hostile/bundle", "tags": ["v1", NAME, HOSTILE]}).encode()
        proxy.faults.append(Fault("tags/list", change=lambda _: tags))
        self.proxied = f"oci://{proxy.host}/hostile/bundle"

    def model(self, text: str) -> Path:
        path = self.folder / "model.py"
        path.write_text(text)
        return path

    @property
    def key(self) -> Path:
        path = self.folder / "hostile.key"
        if not path.exists():
            invoke("keygen", "-o", path)
        return path


@pytest.fixture
def scene(tmp_path: Path, registry: Registry, proxy: Proxy) -> Scene:
    return Scene(tmp_path, registry, proxy)


def build(scene: Scene) -> Result:
    return invoke("build", scene.model(MODEL), "-o", scene.folder / "made.aotpack", "--target", "portable", "-v")


def failing_build(scene: Scene) -> Result:
    return invoke("build", scene.model(f"raise ValueError({NAME!r})\n"), "-o", scene.folder / "made.aotpack", "-v")


def trust(scene: Scene) -> list[Result]:
    key = scene.key.with_suffix(".pub")
    return [
        invoke("trust", "add", key, "--name", NAME),
        invoke("trust", "add", key),
        invoke("trust", "list"),
        invoke("trust", "remove", NAME),
    ]


CASES: dict[str, Callable[[Scene], Result | list[Result]]] = {
    "build": lambda s: [build(s), failing_build(s)],
    "compile": lambda s: invoke("compile", s.other, "-o", s.folder / "more.aotpack", "--target", NAME),
    "inspect": lambda s: [
        *(invoke("inspect", s.bundle, *more) for more in ([], ["-v"], ["--json"], ["--graph", NAME])),
        invoke("inspect", s.bundle, "--html", s.folder / "a.html"),
        *(invoke("inspect", s.bundle, "--graph", "train.backward", "--format", form) for form in ("text", "dot")),
        invoke("inspect", s.name),
    ],
    "diff": lambda s: [
        invoke("diff", s.bundle, s.other),
        invoke("diff", s.bundle, s.other, "--json"),
        invoke("diff", s.bundle, s.name),
    ],
    "verify": lambda s: [invoke("verify", s.bundle), invoke("verify", s.bundle, "--json"), invoke("verify", s.other)],
    "run": lambda s: [invoke("run", s.bundle), invoke("run", s.bundle, "--json"), invoke("run", s.other)],
    "bench": lambda s: [
        invoke("bench", s.bundle, "--rounds", 1, "--iterations", 1, "--html", s.folder / "bench.html"),
        invoke("bench", s.other, "--rounds", 1, "--iterations", 1),
    ],
    "profile": lambda s: [
        invoke("profile", s.bundle, "--steps", 1, "--html", s.folder / "p.html", "--by", "module", "--by", "kernel"),
        invoke("profile", s.bundle, "--steps", 1, "--json"),
        invoke("profile", s.other),
    ],
    "push": lambda s: [invoke("push", s.bundle, s.name), invoke("push", s.bundle, NAME)],
    "pull": lambda s: [
        invoke("pull", s.name, "-o", s.folder / "out.aotpack"),
        invoke("pull", s.name),
        invoke("pull", s.name + NAME),
    ],
    "copy": lambda s: [invoke("copy", s.name, s.name + "2"), invoke("copy", s.name, NAME)],
    "list": lambda s: [invoke("list", s.proxied), invoke("list", s.proxied, "--json"), invoke("list", NAME)],
    "cache": lambda s: [invoke("pull", s.name), *(invoke("cache", more) for more in ("list", "verify", "prune"))],
    "keygen": lambda s: [invoke("keygen", "-o", s.folder / "a.key"), invoke("keygen", "-o", s.folder / "a.key")],
    "sign": lambda s: [invoke("sign", s.bundle, "--key", s.key), invoke("sign", s.bundle, "--key", s.folder / "none")],
    "trust": trust,
    "train": lambda s: [
        invoke("build", s.model(MODEL), "-o", s.folder / "o.aotpack", "--target", "portable", "--optimizer", "sgd"),
        invoke("train", s.folder / "o.aotpack", "--data", "none:batches", "-o", s.folder / "trained", "--optimizer", NAME),
        invoke("train", s.folder / "o.aotpack", "--data", f"{NAME}:batches", "-o", s.folder / "trained"),
        invoke("train", s.bundle, "--data", s.folder / "none.safetensors", "-o", s.folder / "trained"),
    ],
    "export-weights": lambda s: [
        invoke("export-weights", s.bundle, "-o", s.folder / "weights.safetensors"),
        invoke("export-weights", s.folder, "-o", s.folder / "weights.safetensors"),
    ],
}  # fmt: skip


def test_every_command_has_a_case() -> None:
    assert set(CASES) == set(main.commands)


@pytest.mark.parametrize("command", CASES)
def test_names_are_inert(command: str, scene: Scene) -> None:
    results = CASES[command](scene)
    shown = ""
    for result in results if isinstance(results, list) else [results]:
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code in (0, 1), result.output
        assert not HIDDEN & set(result.output), result.output
        shown += result.output
    assert re.search(r"\\(x1b|u202e|u001b)", shown), shown


def test_only_the_console_writes() -> None:
    """Commands write with ``say``, ``plain`` and the consoles of ``console.py``, which make names visible."""
    wrong = re.compile(r"click\.echo\(|\bprint\(|(?<![_\w])Console\(|sys\.std(out|err)\.write")
    for path in sorted((ROOT / "aotpack/tools/cli").glob("*.py")):
        if path.name != "console.py":
            text = re.sub(r"\.print\(", "", path.read_text())
            assert not wrong.findall(text), path.name


def test_a_profile_counts_kernels_of_modules_with_hostile_names(scene: Scene) -> None:
    """torch's profiler drops events whose names hold control characters."""
    kernels = {row["name"]: row["forward"] for row in json.loads(invoke("profile", scene.bundle, "--json").stdout)["kernels"]}
    assert kernels["aten.convolution.default"] > 0


def test_progress_bars_are_inert(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(console=console.stderr()) as progress:
        progress.add_task(NAME, total=1)
    console.stderr().print(NAME)
    assert not HIDDEN & set(capsys.readouterr().err)


def test_messages_of_errors_are_inert() -> None:
    error = AotpackError(f"summary {NAME}\nsecond", [Problem(f"a\n{NAME}", f"b\n{NAME}")], hint=NAME)
    assert not HIDDEN & set(str(error))
    assert r"a\x0aevil\x1b" in str(error)
    assert "\nsecond\n" in str(error)
    assert error.problems[0].where == f"a\n{NAME}", "programs get the name as it is"


def test_the_text_of_a_loaded_program_is_inert(tmp_path: Path) -> None:
    model = aotpack_loader.load(hostile_bundle(tmp_path, operators=()))
    assert r"\u202e" in repr(model)
    assert not HIDDEN & set(repr(model))
    assert not HIDDEN & set(model._repr_html_())
