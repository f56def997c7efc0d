"""The gate before a build: a torch that was not tried, or is not what was tried, is one error; an override is recorded."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conftest import FreshProcess
from support.releases import TORCH

import aotpack
from aotpack._torch.fixes import gate, sources
from aotpack._torch.fixes.applying import fixes_of
from aotpack._torch.fixes.entries import FIXES, HOOKS
from aotpack._torch.fixes.register import INDUCTOR, INDUCTOR_SUPPORTED, SUPPORTED, name_of
from aotpack._torch.tracing import aot_autograd
from aotpack.tools.report.describe import producer_text
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError, UnsupportedTorchError

HERE = name_of(TORCH)


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    gate._misfits.cache_clear()
    yield
    gate._misfits.cache_clear()


def build(out: Path, *targets: str, allow_untested_torch: bool = False) -> dict[str, str]:
    """The record of the first target's tool chain."""
    arguments = (torch.ones(3),)
    aotpack.build(torch.sin, arguments, out=out, targets=targets, methods=("infer",), allow_untested_torch=allow_untested_torch)
    with Bundle.open(out) as bundle:
        return next(iter(bundle.targets.values())).toolchain


def differ(monkeypatch: pytest.MonkeyPatch, name: str, found: str | None) -> None:
    """Let a patched name be another function in this torch, or be gone."""
    original = sources.fingerprint
    monkeypatch.setattr(gate, "fingerprint", lambda one: found if one == name else original(one))


def test_every_entry_is_found_and_recorded_here() -> None:
    entries = [*FIXES, *HOOKS]
    assert len({entry.id for entry in entries}) == len(entries)
    for entry in entries:
        for name in entry.patches:
            assert sources.recorded()[name].get(HERE) == sources.fingerprint(name), f"{entry.id}: {name}"
    recorded = set(sources.recorded())
    assert recorded == {name for entry in entries for name in entry.patches}, "run scripts/torch-fixes record"


def private_overrides(module: ModuleType) -> Iterator[str]:
    """The methods of torch's private classes that a module's subclasses override; abstract ones are interfaces."""
    for kind in vars(module).values():
        if inspect.isclass(kind) and kind.__module__ == module.__name__:
            for base in kind.__mro__[1:]:
                if base.__module__.startswith("torch._"):
                    own = [vars(base)[name] for name in vars(kind).keys() & vars(base).keys()]
                    yield from (f"{base.__module__}.{method.__qualname__}" for method in own if is_method(method))


def is_method(value: object) -> bool:
    return inspect.isroutine(value) and not getattr(value, "__isabstractmethod__", False)


@pytest.mark.skipif(HERE not in INDUCTOR_SUPPORTED, reason="aotpack uses no Inductor of this torch")
def test_every_method_that_a_subclass_overrides_is_registered() -> None:
    package = aotpack._torch
    names = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    modules = [importlib.import_module(name) for name in names if not name.rpartition(".")[2].startswith("xla")]
    found = {name for module in modules for name in private_overrides(module)}
    assert found, "no subclass was found"
    assert found <= {name for entry in (*FIXES, *HOOKS) for name in entry.patches}


def only_recorded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this torch be the newest that was recorded: what was never tried is compared with that one."""
    here = {name: {HERE: hashes[HERE]} for name, hashes in sources.recorded().items() if HERE in hashes}
    monkeypatch.setattr(gate, "recorded", lambda: here)


def test_the_modules_and_functions_of_entries_are_found() -> None:
    package = aotpack._torch.__name__
    for hook in HOOKS:
        assert importlib.util.find_spec(f"{package}.{hook.module}") is not None, f"{hook.id}: {hook.module}"
    for fix in FIXES:
        module, _, name = fix.apply.partition(":")
        assert hasattr(importlib.import_module(f"{package}.{module}"), name), f"{fix.id}: {fix.apply}"


def test_a_hook_that_is_never_reached_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a torch that still has a private name, but calls another function."""
    monkeypatch.setattr(aot_autograd, "count_call", lambda identifier: None)
    with pytest.raises(UnsupportedTorchError, match="aot-export"):
        build(tmp_path / "x", "portable")


def test_a_torch_that_was_not_tried_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_recorded_here(monkeypatch)
    monkeypatch.setattr(torch, "__version__", "2.99.1")
    with pytest.raises(UnsupportedTorchError, match=r"torch 2\.99\.1 was never tried") as found:
        build(tmp_path / "x", "portable")
    assert isinstance(found.value, BuildError)
    assert ", ".join(SUPPORTED) in str(found.value)
    assert "all fit it" in str(found.value)
    assert "allow_untested_torch=True" in found.value.hint
    assert not (tmp_path / "x").exists()


def test_a_torch_may_be_tried_with_portable_targets_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "INDUCTOR_SUPPORTED", ("2.8",))
    with pytest.raises(UnsupportedTorchError, match=r"never tried with this aotpack and native code \(tried: 2\.8\)") as found:
        build(tmp_path / "x", "cpu")
    assert "The portable target was tried with this one." in found.value.hint
    build(tmp_path / "x", "portable")


def test_an_override_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "untested_torch" not in build(tmp_path / "tried", "portable")
    monkeypatch.setattr(torch, "__version__", "2.99.1")
    assert build(tmp_path / "x", "portable", allow_untested_torch=True)["untested_torch"] == "2.99.1"
    for name, told in (("tried", False), ("x", True)):
        with Bundle.open(tmp_path / name) as bundle:
            assert producer_text(bundle).endswith("(not tried together)") == told


@pytest.mark.parametrize("found", [None, "0123456789abcdef"])
def test_each_name_that_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None) -> None:
    uses = Counter(name for entry in (*FIXES, *HOOKS) for name in entry.patches)
    fix = next(fix for fix in fixes_of() if fix.component in INDUCTOR and fix.patches and uses[fix.patches[0]] == 1)
    differ(monkeypatch, fix.patches[0], found)
    with pytest.raises(UnsupportedTorchError, match="differs from the one") as refused:
        build(tmp_path / "x", "cpu")
    assert [problem.where for problem in refused.value.problems] == [fix.id]
    assert fix.patches[0] in str(refused.value)
    build(tmp_path / "x", "portable")  # which Inductor does not compile


def test_the_fixes_are_recorded(tmp_path: Path) -> None:
    expected = sorted(fix.id for fix in fixes_of() if fix.component not in INDUCTOR)
    assert build(tmp_path / "x", "portable")["fixes"].split() == expected


def test_modules_that_cannot_be_imported_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gate.check_imports()
    monkeypatch.setattr(torch, "__version__", "2.99.1")
    gate.check_imports()  # all can

    def missing(name: str) -> None:
        if name.endswith(".api.shape_env"):
            raise ImportError("cannot import name 'ShapeEnv'")

    monkeypatch.setattr(gate.importlib, "import_module", missing)
    with pytest.raises(UnsupportedTorchError, match=r"shape_env: cannot import name 'ShapeEnv'") as refused:
        gate.check_imports()
    assert "No option helps" in refused.value.hint


def test_an_untested_torch_can_be_imported(fresh_process: FreshProcess) -> None:
    """All modules over private APIs are imported before ``aotpack._torch`` is complete."""
    code = """
        import json, torch, warnings
        warnings.simplefilter("ignore")
        torch.__version__ = "2.99.1"
        import aotpack._torch
        print(json.dumps("imported"))
    """
    assert fresh_process(code, from_nothing=True) == "imported"
