"""What tests share: a cache and a state directory of their own, bundles built once, and processes that start from nothing."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.archive import write_tiny
from support.forks import Forks
from support.selection import has_changed, is_due, nightly, note_run

import aotpack
from aotpack._torch.api.patching import dotted, replacements
from aotpack._torch.api.process_copy import copies_are_made
from aotpack._torch.fixes import gate
from aotpack._torch.fixes.entries import FIXES, HOOKS
from aotpack._torch.fixes.sources import resolve
from aotpack_loader.errors import BuildError

ROOT = Path(__file__).resolve().parent.parent

FreshProcess = Callable[..., Any]
"""``fresh_process(code, *arguments)``: run ``code`` in a process of its own and return the JSON it printed."""

IMPORTED_BY_TORCH = frozenset({
    "torch.fx.experimental._constant_symnode",
    "torch.nested._internal", "torch.nested._internal.nested_int", "torch.nested._internal.nested_tensor",
})  # fmt: skip
"""What torch 2.15 imports itself in ``Tensor.backward``."""


@pytest.fixture(scope="session", autouse=True)
def private_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is read from or written to the user's own cache and state.

    ``AOTPACK_TEST_CACHE`` names a folder that outlives the session (``scripts/test`` sets it): compiled
    objects, headers and graphs are then taken from it.
    Loads read the documents, because tests replace parts of that. With ``AOTPACK_RECORDED_STARTS=1``
    they start from records, as a user's do; tests/test_recorded_start.py always does.
    """
    kept = os.environ.get("AOTPACK_TEST_CACHE")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AOTPACK_CACHE", str(Path(kept, "cache")) if kept else str(tmp_path_factory.mktemp("cache")))
        patch.setenv("AOTPACK_RECORDED_STARTS", os.environ.get("AOTPACK_RECORDED_STARTS", "0"))
        patch.setenv("AOTPACK_CONFIG", str(tmp_path_factory.mktemp("config")))
        patch.setenv("AOTPACK_STATE", str(tmp_path_factory.mktemp("state")))
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(Path(kept, "inductor")) if kept else str(tmp_path_factory.mktemp("inductor")))
        yield


_compared: set[tuple[str, str, str]] = set()


@pytest.fixture(autouse=True)
def registered_replacements() -> Iterator[None]:
    """Whatever a test lets the compiler replace in torch is in an entry of the register."""
    yield
    if not torch.__version__.startswith("2.13."):
        return  # the register has the names of the release that builds are tried on; some are older there
    for replacement in set(replacements()) - _compared:
        _compared.add(replacement)
        entry = next(entry for entry in (*FIXES, *HOOKS) if entry.id == replacement.identifier)
        assert (replacement.owner, replacement.name) in set(_owners_and_names(entry.patches)), replacement


def _owners_and_names(patches: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The module or class that has each patched name, and the name in it; a table's key is left out."""
    for patch in patches:
        owner, _, name = patch.partition("[")[0].rpartition(".")
        with contextlib.suppress(LookupError):  # not in this torch
            # A package can hold a function with the name of one of its modules.
            yield owner if owner in sys.modules else dotted(resolve(owner)), name


def compiles_native_code() -> bool:
    """Whether builds make native code with this torch."""
    return gate.is_tried(str(torch.__version__), gate.INDUCTOR_SUPPORTED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    if item.get_closest_marker("nightly") and not nightly():
        pytest.skip("scripts/test nightly runs it")
    turns = item.get_closest_marker("turns") or pytest.mark.turns(1).mark
    touched = turns.kwargs.get("touched") or functools.partial(has_changed, item.nodeid.partition("::")[0])
    if not is_due(item.nodeid, *turns.args) and not touched():
        pytest.skip("no change touches it, and its turn is at another commit")
    if item.get_closest_marker("copies") and (torch.cuda.is_initialized() or not copies_are_made()):
        pytest.skip("JAX or CUDA is started here, and a build beside it copies no process")
    return (yield from _without_native_code())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found if isinstance(report, pytest.TestReport)]
    note_run(reports, passed=exitstatus == 0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    torch.manual_seed(0)  # what a test draws is the same in each run: some draws put a ReLU within rounding of its kink
    return (yield from _without_native_code())


_NO_NATIVE_CODE = ("cannot compile for a named instruction set", "never tried with this aotpack and native code")
"""What a build says if it makes portable bundles with this torch, but no native code."""


def _without_native_code() -> Generator[None, None, None]:
    """Skip a test whose build asks for native code with a torch that makes none. All others must run there."""
    try:
        return (yield)
    except BuildError as error:
        if compiles_native_code() or not any(text in error.summary for text in _NO_NATIVE_CODE):
            raise
        pytest.skip(error.summary)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A bundle written by hand, of one method; tests damage it."""
    path = tmp_path / "tiny.aotpack"
    write_tiny(path)
    return path


class Tiny(torch.nn.Module):
    """The smallest model with something of everything a call has: a keyword, a nested result, a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.linear(x) * scale
        return {"loss": y.square().mean(), "y": y}


def tiny_inputs() -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(5, 4, generator=generator),), {"scale": torch.randn(5, 1, generator=generator)}


@pytest.fixture(scope="session")
def tiny_model() -> torch.nn.Module:
    """The model of ``tiny_bundle``; tests copy it before they change it."""
    torch.manual_seed(0)
    return Tiny()


@pytest.fixture(scope="session")
def tiny_bundle(tiny_model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A portable bundle of one linear layer."""
    out = tmp_path_factory.mktemp("tiny") / "tiny.aotpack"
    args, kwargs = tiny_inputs()
    aotpack.build(tiny_model, args, kwargs, out=out, targets=("portable",))
    return out


def load_example(name: str) -> Any:
    """The model.py of an example, as a module."""
    path = ROOT / "examples" / name / "model.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def digits_model() -> torch.nn.Module:
    """The model of ``digits_bundle``; tests copy it before they change it."""
    torch.manual_seed(0)
    model: torch.nn.Module = load_example("digits").model()
    return model


@pytest.fixture(scope="session")
def digits_bundle(digits_model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/digits with a dynamic batch, for this processor and portable."""
    out = tmp_path_factory.mktemp("digits") / "digits.aotpack"
    example = load_example("digits")
    aotpack.build(
        digits_model, example.example_inputs(), out=out, targets=("cpu", "portable"), dynamic_shapes=example.dynamic_shapes()
    )
    return out


@pytest.fixture(scope="session")
def portable_digits_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``digits_bundle`` for tests of its portable graphs: without native code where this torch makes none."""
    if compiles_native_code():
        found: Path = request.getfixturevalue("digits_bundle")
        return found
    out = tmp_path_factory.mktemp("digits") / "digits.aotpack"
    example = load_example("digits")
    model = request.getfixturevalue("digits_model")
    aotpack.build(model, example.example_inputs(), out=out, targets=("portable",), dynamic_shapes=example.dynamic_shapes())
    return out


@pytest.fixture(scope="session")
def fresh_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshProcess]:
    """Runs code where neither the repository's examples nor its tests can be imported, in an empty directory.

    ``importable`` names directories whose modules the code can import all the same. The process is a copy
    of one that has imported torch, unless ``from_nothing`` asks for one that has imported nothing, or an
    environment variable is given that torch may read.
    """
    forks = Forks()

    def run(code: str, *arguments: object, importable: Sequence[Path] = (), from_nothing: bool = False, **given: str) -> Any:
        code, words, paths = textwrap.dedent(code), list(map(str, arguments)), list(map(str, importable))
        environment = {**os.environ, **given, "PYTHONPATH": os.pathsep.join(paths)}
        folder = tmp_path_factory.mktemp("empty")
        if from_nothing or not all(name.startswith("AOTPACK_") for name in given):
            command = [sys.executable, "-P" if paths else "-I", "-W", "error", "-c", code, *words]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
        else:
            done = forks.run(code, words, cwd=folder, environment=environment, importable=paths, timeout=300)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
        return json.loads(done.stdout)

    yield run
    forks.close()
