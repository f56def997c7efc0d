"""Native code on other releases of torch than it was compiled for: what may run, and what is said where it may not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import aotpack
from aotpack_loader._symbols import not_exported_by_torch
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices import torch_releases
from aotpack_loader.devices.torch_releases import unlike_torch
from aotpack_loader.errors import TargetError
from aotpack_loader.format import schema
from aotpack_loader.loading import BackendWarning

EXPORTED = ["aoti_torch_delete_tensor_object", "aoti_torch_get_data_ptr"]
LACKED = [f"aoti_torch_of_another_release_{i}" for i in range(7)]
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
    monkeypatch.setattr(torch_releases, "TRIED", {"2.8": (INSTALLED,)})
    reason = unlike_torch(target(imports=[*EXPORTED, *LACKED]), allow_untested=allowed)
    assert f"lacks what the code calls: {', '.join(LACKED[:5])} and 2 more" in reason
    assert EXPORTED[0] not in reason


def test_a_pair_that_was_tried_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_releases, "TRIED", {"2.8": (INSTALLED,)})
    assert unlike_torch(target()) == ""


def test_one_that_was_not_runs_where_the_caller_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_releases, "TRIED", {"2.8": ("2.7",)})
    assert unlike_torch(target()).endswith("not tried there: load with allow_untested_torch=True to run it all the same")
    assert unlike_torch(target(), allow_untested=True) == ""


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
    assert aotpack.load(digits_bundle, allow_untested_torch=True).aotpack.backend.startswith("cpu:")
