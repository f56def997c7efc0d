"""Native code on other releases of torch than it was compiled for: what may run, and what is said where it may not."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import aotpack
from aotpack.tools.cli import main
from aotpack.tools.report.describe import torch_releases_of
from aotpack_loader._symbols import not_exported_by_torch
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices import tried_releases
from aotpack_loader.devices.aoti import AotiExecutable
from aotpack_loader.devices.torch_releases import unlike_torch
from aotpack_loader.errors import TargetError
from aotpack_loader.format import schema
from aotpack_loader.loading import BackendWarning
from aotpack_loader.opening import other_release

EXPORTED = ["aoti_torch_delete_tensor_object", "aoti_torch_get_data_ptr"]
LACKED = [f"aoti_torch_of_another_release_{i}" for i in range(7)]
CALL_LIBRARY_TORCH = torch.__version__
INSTALLED = ".".join(torch.__version__.split(".")[:2])


def target(release: str = "2.8", imports: list[str] = EXPORTED) -> schema.Target:
    return schema.Target("cpu:x86-64-v3", "aoti", "cpu", torch=f"=={release}.*", imports=imports)


def test_code_for_this_release_runs() -> None:
    assert unlike_torch(target(INSTALLED, LACKED)) == ""  # the system's loader looks at the names then


@pytest.mark.parametrize("allowed", [False, True])
def test_code_that_does_not_say_what_it_calls_runs_nowhere_else(allowed: bool) -> None:
    assert unlike_torch(target(imports=[]), allow_untested=allowed).startswith("compiled for torch ==2.8.*, this is")


@pytest.mark.parametrize("allowed", [False, True])
def test_every_name_must_be_there(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    monkeypatch.setattr(tried_releases, "TRIED", {"2.8": (INSTALLED,)})
    reason = unlike_torch(target(imports=[*EXPORTED, *LACKED]), allow_untested=allowed)
    assert f"lacks what the code calls: {', '.join(LACKED[:5])} and 2 more" in reason
    assert EXPORTED[0] not in reason


def test_a_pair_that_was_tried_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tried_releases, "TRIED", {"2.8": (INSTALLED,)})
    assert unlike_torch(target()) == ""


def test_one_that_was_not_runs_where_the_caller_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tried_releases, "TRIED", {"2.8": ("2.7",)})
    assert unlike_torch(target()).endswith("not tried there: load with allow_untested_torch=True to run it all the same")
    assert unlike_torch(target(), allow_untested=True) == ""


@pytest.mark.parametrize(("imports", "needs"), [(EXPORTED, "torch 2.9, 2.10 or 2.11"), ([], "torch ==2.10.*")])
def test_a_report_names_the_releases_that_run_it(monkeypatch: pytest.MonkeyPatch, imports: list[str], needs: str) -> None:
    monkeypatch.setattr(tried_releases, "TRIED", {"2.10": ("2.9", "2.11")})
    assert torch_releases_of(target("2.10", imports)) == needs


def test_a_build_records_what_its_code_takes(digits_bundle: Path) -> None:
    """Names that torch exports, and no others: those of the system have versions."""
    with Bundle.open(digits_bundle) as bundle:
        (found,) = [target for target in bundle.targets.values() if target.kind == "aoti"]
    assert set(EXPORTED) <= set(found.imports)
    assert not_exported_by_torch(found.imports) == []


def test_a_load_on_a_release_that_was_not_tried(digits_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It falls back, or is an error for who asked for native code; the word lets it run."""
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.warns(BackendWarning, match=r"portable graphs.*this is 2\.99\.0; it was not tried there"):
        assert aotpack.load(digits_bundle).aotpack.backend == "portable"
    with pytest.raises(TargetError, match="allow_untested_torch=True"):
        aotpack.load(digits_bundle, backend="cpu")
    with pytest.warns(BackendWarning, match="not tried, and the bundle has no self-test"):
        assert aotpack.load(digits_bundle, allow_untested_torch=True).aotpack.backend.startswith("cpu:")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This torch counts as a release on which the code was tried; the cache is empty."""
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setattr(tried_releases, "TRIED", {INSTALLED: ("2.99",)})
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def tested_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("tested") / "m.aotpack"
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    aotpack.build(model, (torch.randn(5, 3),), out=out, targets=("cpu", "portable"), methods=("train",), self_test=True)
    return out


def replays(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The runs of a self-test from here on."""
    seen: list[object] = []
    original = other_release.replay
    monkeypatch.setattr(other_release, "replay", lambda path, *rest: (seen.append(path), original(path, *rest))[1])
    return seen


@pytest.mark.usefixtures("elsewhere")
def test_code_of_another_release_is_tested_once(tested_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its self-test runs at the first load. The state and the random numbers of the caller stay as they were."""
    seen = replays(monkeypatch)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model = aotpack.load(tested_bundle)
    assert torch.equal(torch.get_rng_state(), before)
    assert "runs on 2.99.0; its self-test passed here" in model.aotpack.reason
    assert torch.equal(model.get_buffer("1.running_mean"), torch.zeros(4))
    assert aotpack.load(tested_bundle, backend="cpu", weights=False).aotpack.reason.endswith("its self-test passed here")
    assert len(seen) == 1


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("allowed", [False, True])
def test_code_that_computes_something_else_there_is_refused(
    tested_bundle: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """At every load: only a pass is remembered."""

    def wrong(self: AotiExecutable, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [value * 1.01 if value.is_floating_point() else value for value in original(self, inputs)]

    original = AotiExecutable.__call__
    monkeypatch.setattr(AotiExecutable, "__call__", wrong)
    for _ in range(2):
        with pytest.raises(TargetError, match=r"computes other values than were recorded(.|\n)*result\.0: error"):
            aotpack.load(tested_bundle, allow_untested_torch=allowed)
    assert aotpack.load(tested_bundle, backend="portable").aotpack.backend == "portable"


def test_code_for_this_release_is_not_tested_again(tested_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = replays(monkeypatch)
    assert "self-test" not in aotpack.load(tested_bundle, backend="cpu").aotpack.reason
    assert seen == []


@pytest.mark.usefixtures("elsewhere")
def test_a_bundle_without_a_self_test(digits_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason of the load says so. Where the pair of releases was not tried either, there is a warning."""
    model = aotpack.load(digits_bundle)
    assert model.aotpack.reason.endswith("the bundle has no self-test, so its values were not compared here")
    assert set(model.aotpack.calls.values()) == {f"python: the call library is for torch {CALL_LIBRARY_TORCH}, this is 2.99.0"}
    monkeypatch.setattr(tried_releases, "TRIED", {})
    with pytest.warns(BackendWarning, match="not tried, and the bundle has no self-test"):
        aotpack.load(digits_bundle, allow_untested_torch=True)


def test_inspect_says_where_calls_are_native(digits_bundle: Path) -> None:
    """And what it costs elsewhere: the call library belongs to one torch and one Python."""
    found = CliRunner().invoke(main, ["inspect", str(digits_bundle)], env={"COLUMNS": "200"})
    assert f"torch {torch.__version__}, {EXTENSION_SUFFIXES[0]} (elsewhere Python makes them" in found.output
