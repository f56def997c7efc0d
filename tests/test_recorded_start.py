"""The next load of a bundle starts from a record of the first. It must be the same module, or say the same."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import IMPORTED_BY_TORCH, FreshProcess, load_example
from torch import nn

import aotpack
import aotpack_loader
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AutogradError, CorruptBundleError, InputError, TrustError
from aotpack_loader.opening import record_files
from aotpack_loader.opening.from_record import RecordedCall, plain
from aotpack_loader.opening.recording import packed


class Several(nn.Module):
    """Something of everything that a record holds."""

    scale: torch.Tensor
    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8, bias=False), nn.Linear(8, 3)
        self.last.bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))
        self.sizes, self.ratio = (1, 2), float("inf")
        self.tied = self.first

    def forward(self, x: torch.Tensor, weight: torch.Tensor | None = None, *, shift: int = 1) -> dict[str, Any]:
        self.steps += 1
        hidden = self.norm(torch.relu(self.tied(x))) + torch.arange(8.0) * shift
        y = self.last(hidden) * self.scale
        return {"loss": y.square().mean(), "both": (y, [hidden.detach(), x.shape[0]])}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    model = Several()
    out = tmp_path_factory.mktemp("several") / "m.aotpack"
    dynamic = ({0: torch.export.Dim("batch", min=2, max=64)},)
    aotpack.build(model, (torch.randn(5, 4),), out=out, targets=("cpu",), dynamic_shapes=dynamic)
    return out, model


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Starts are recorded, in a cache of its own."""
    monkeypatch.setenv("AOTPACK_RECORDED_STARTS", "1")
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "starts"


def is_recorded(model: Any) -> bool:
    return all(isinstance(call, RecordedCall) for call in model._aotpack_calls.values())


def test_a_recorded_start_is_the_same_module(records: Path, several: tuple[Path, nn.Module]) -> None:
    path, original = several
    first, second = aotpack.load(path, backend="cpu"), aotpack.load(path, backend="cpu")
    assert (is_recorded(first), is_recorded(second)) == (False, True)
    assert repr(first) == repr(second)
    infos = [vars(model.aotpack) for model in (first, second)]
    own = {"_program", "_updates", "_module"}
    assert {k: v for k, v in infos[0].items() if k not in own} == {k: v for k, v in infos[1].items() if k not in own}
    assert first.aotpack.methods == second.aotpack.methods == ("infer", "train")
    for mine, theirs in zip(second.named_modules(), first.named_modules(), strict=True):
        assert mine[0] == theirs[0]
        assert mine[1].training is theirs[1].training
        assert type(mine[1]).__mro__[1:] == type(theirs[1]).__mro__[1:]
        assert getattr(mine[1], "_aotpack_known", None) == getattr(theirs[1], "_aotpack_known", None)
    assert second.sizes == (1, 2)
    assert second.ratio == float("inf")
    assert second.tied is second.first
    assert second._non_persistent_buffers_set == {"scale"}
    state = original.state_dict()
    assert list(second.state_dict()) == list(state)
    for name, value in second.state_dict().items():
        assert torch.equal(value, state[name])
    for mine, theirs in zip(second.named_parameters(), first.named_parameters(), strict=True):
        assert (mine[0], mine[1].requires_grad, mine[1].stride()) == (theirs[0], theirs[1].requires_grad, theirs[1].stride())
    assert second.aotpack.program == first.aotpack.program


@pytest.mark.parametrize("batch", [5, 7])
@pytest.mark.parametrize("training", [True, False])
def test_steps_from_a_record_are_those_of_eager(
    records: Path, several: tuple[Path, nn.Module], batch: int, training: bool
) -> None:
    path, original = several
    aotpack.load(path, backend="cpu")
    model, eager = aotpack.load(path, backend="cpu"), copy.deepcopy(original)
    assert is_recorded(model)
    for _ in range(2):
        x = torch.randn(batch, 4)
        results = []
        for one in (model.train(training), eager.train(training)):
            with torch.set_grad_enabled(training):
                found = one(x)
            if training:
                one.zero_grad()
                found["loss"].backward()
            y, (hidden, size) = found["both"]
            results.append([found["loss"], y, hidden, torch.tensor(size), *one.buffers()])
            results[-1] += [parameter.grad for parameter in one.parameters() if parameter.grad is not None]
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs)


def test_an_error_of_a_backward_names_what_was_modified(records: Path, several: tuple[Path, nn.Module]) -> None:
    path, _ = several
    aotpack.load(path, backend="cpu")
    model = aotpack.load(path, backend="cpu")
    assert is_recorded(model)
    loss = model(torch.randn(5, 4))["loss"]
    with torch.no_grad():
        model.last.weight.add_(1)
    with pytest.raises(AutogradError, match=r"modified by an inplace operation(.|\n)*parameter 'last.weight': was modified"):
        loss.backward()


def test_unusual_calls_read_the_documents(records: Path, several: tuple[Path, nn.Module]) -> None:
    path, original = several
    aotpack.load(path, backend="cpu")
    model, eager = aotpack.load(path, backend="cpu"), copy.deepcopy(original)
    x = torch.randn(5, 4)
    torch.testing.assert_close(model(x=x, weight=None, shift=1)["loss"], eager(x)["loss"])  # by keyword, with defaults
    with pytest.warns(aotpack_loader.LayoutWarning):
        torch.testing.assert_close(model(x.t().contiguous().t())["loss"], eager(x)["loss"])
    with pytest.raises(InputError, match=r"expected float32\[batch=2\.\.64,4\], got float32\[65,4\]"):
        model(torch.randn(65, 4))
    with pytest.raises(InputError, match="built with its default 1"):
        model(x, shift=2)
    del model.last.weight
    with pytest.raises(InputError, match="was removed"):
        model(x)


def test_the_documents_are_read_from_the_loaded_file(records: Path, several: tuple[Path, nn.Module], tmp_path: Path) -> None:
    """Another bundle may have taken its name since."""
    path = tmp_path / "m.aotpack"
    path.write_bytes(several[0].read_bytes())
    aotpack.load(path, backend="cpu")
    model = aotpack.load(path, backend="cpu")
    assert is_recorded(model)
    path.unlink()
    path.write_text("another file")
    assert model.aotpack.program.methods.keys() == {"train", "infer"}
    assert torch.isfinite(model(x=torch.randn(3, 4))["loss"])


def test_whether_code_may_run_is_decided_at_each_load(
    records: Path, several: tuple[Path, nn.Module], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, _ = several
    assert "built it on this machine" in aotpack.load(path, backend="cpu").aotpack.reason
    monkeypatch.setenv("AOTPACK_STATE", str(tmp_path / "state"))
    with pytest.raises(TrustError):
        aotpack.load(path, backend="cpu")
    model = aotpack.load(path, backend="cpu", trust="all")
    assert is_recorded(model)
    assert model.aotpack.reason == 'asked for; fits this machine; the caller passed trust="all"'
    monkeypatch.setenv("AOTPACK_POLICY", str(tmp_path / "missing.toml"))
    with pytest.raises(aotpack.AotpackError, match=r"missing\.toml cannot be read"):
        aotpack.load(path, backend="cpu", trust="all")


def test_damaged_documents_and_code_are_found(records: Path, several: tuple[Path, nn.Module], tmp_path: Path) -> None:
    path = tmp_path / "m.aotpack"
    path.write_bytes(several[0].read_bytes())
    aotpack.load(path, backend="cpu")
    with Bundle.open(path) as bundle:
        entries, config = bundle.entries(), bundle.config
    start, _ = entries["blobs/sha256/" + config.digest.removeprefix("sha256:")]
    data = bytearray(path.read_bytes())
    data[start + 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBundleError):
        aotpack.load(path, backend="cpu")
    path.write_bytes(several[0].read_bytes())
    for file in (records.parent / "code" / "sha256").glob("*.so"):
        file.unlink()  # it is mapped: its bytes must stay
        file.write_bytes(b"damaged")
    assert not is_recorded(aotpack.load(path, backend="cpu"))  # extracted again
    assert is_recorded(aotpack.load(path, backend="cpu"))


@pytest.mark.parametrize("how", ["damaged", "cut", "writable by others", "removed", "another loader", "switched off"])
def test_a_record_that_does_not_fit_is_not_used(
    records: Path, several: tuple[Path, nn.Module], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path, _ = several
    aotpack.load(path, backend="cpu")
    (record,) = records.iterdir()
    record.chmod(0o700)
    text = record.read_bytes()
    if how == "damaged":
        record.write_bytes(text.replace(b'"float32"', b'"float64"', 1))
    elif how == "cut":
        record.write_bytes(text[: len(text) // 2])
    elif how == "writable by others":
        record.chmod(0o722)
    elif how == "removed":
        record.unlink()
    elif how == "another loader":
        monkeypatch.setattr(record_files, "_loader", lambda: "another")
    else:
        monkeypatch.setenv("AOTPACK_RECORDED_STARTS", "0")
    assert not is_recorded(aotpack.load(path, backend="cpu"))


def test_options_that_change_a_load_do_without_records(records: Path, several: tuple[Path, nn.Module]) -> None:
    path, _ = several
    for options in ({}, {"weights": False}, {"check": "full"}, {"verify": "full"}, {"digest": Bundle.open(path).digest}):
        for _ in range(2):
            model = aotpack.load(path, backend="cpu", **options)  # type: ignore[arg-type]
        assert is_recorded(model) is (not options)


def test_empty_collections_are_no_options(records: Path, several: tuple[Path, nn.Module]) -> None:
    path, _ = several
    for expected in (False, True):
        assert is_recorded(aotpack.load(path, backend="cpu", operators=[], subclasses=[])) is expected
    with pytest.raises(aotpack.AotpackError, match="operators='' is not understood"):
        aotpack.load(path, backend="cpu", operators="")


def test_another_machine_reads_the_documents(
    records: Path, several: tuple[Path, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = several
    aotpack.load(path, backend="cpu")
    monkeypatch.setattr("aotpack_loader.devices.cpuinfo.features", frozenset)
    with pytest.raises(aotpack.AotpackError, match="this processor lacks"):
        aotpack.load(path, backend="cpu")


def test_two_loads_have_parameters_of_their_own(records: Path, several: tuple[Path, nn.Module]) -> None:
    path, _ = several
    aotpack.load(path, backend="cpu")
    one, other = aotpack.load(path, backend="cpu"), aotpack.load(path, backend="cpu")
    with torch.no_grad():
        one.last.weight.zero_()
        one.steps += 5
    assert bool(other.last.weight.any())
    assert not other.steps.any()
    copied = copy.deepcopy(other)
    torch.testing.assert_close(copied(torch.ones(5, 4))["loss"], other(torch.ones(5, 4))["loss"])


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2.5, float("inf"), "text", 1 + 2j, (1, (2,)), [1, [2.0, None]], {"a": (1,), 2: [3]}, torch.Size((1, 2)),
        torch.float32, torch.strided, torch.channels_last, torch.device("cpu"), [], (), {},
    ],
)  # fmt: skip
def test_plain_data_passes_through_a_record(value: Any) -> None:
    found = plain(json.loads(json.dumps(packed(value))))
    assert type(found) is type(value)
    assert found == value


RECORDED = frozenset({
    "", "_process", "_torch_compat", "errors", "loading", "options", "text", "trust", "value",
    "module", "module.edits", "module.frozen", "module.info", "module.original_class", "module.outline", "module.program",
    "module.submodules", "opening", "opening.from_record", "opening.own_class", "opening.record_files",
    "archive", "archive.cache", "archive.checked", "archive.digest", "archive.layout", "archive.private", "archive.tar",
    "devices", "devices.call_library", "devices.call_sizes", "devices.cpuinfo", "devices.packages",
})  # fmt: skip
"""Modules of the loader that a start from a record and a first step import. Each costs 0.1 to 0.4 ms."""

FIRST_STEP = """
import json, sys
import torch
before = set(sys.modules)
from aotpack_loader import load
load(sys.argv[1])(torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3]))["loss"].backward()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_a_recorded_start_imports_little(digits_bundle: Path, fresh_process: FreshProcess, records: Path) -> None:
    fresh_process(FIRST_STEP, digits_bundle, from_nothing=True)
    added = fresh_process(FIRST_STEP, digits_bundle, from_nothing=True)
    own = {name.removeprefix("aotpack_loader").removeprefix(".") for name in added if name.startswith("aotpack_loader")}
    assert own == RECORDED
    others = {name for name in added if not name.startswith("aotpack_loader")}
    assert others <= IMPORTED_BY_TORCH


def test_examples_step_alike_from_a_record(digits_bundle: Path, digits_model: nn.Module, records: Path) -> None:
    example = load_example("digits")
    args, kwargs = example.example_inputs(), {}
    if isinstance(args[-1], dict):
        args, kwargs = args
    aotpack.load(digits_bundle)
    model, eager = aotpack.load(digits_bundle), copy.deepcopy(digits_model)
    assert is_recorded(model)
    for one in (model, eager):
        one(*args, **kwargs)["loss"].backward()
    for (name, mine), theirs in zip(model.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, msg=name, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changed", ["runtime/autograd.py", "runtime/views.py", "devices/literals.py", "new.py", "__init__.py"])
def test_a_record_is_of_the_loader_that_wrote_it(changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any file of the loader that changes makes all records another loader's."""
    root = tmp_path / "loader"
    shutil.copytree(Path(aotpack_loader.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(record_files, "__file__", str(root / "opening" / "record_files.py"))
    monkeypatch.setattr(record_files, "_loader", record_files._loader.__wrapped__)
    before = record_files._loader()
    assert record_files._loader() == before
    with (root / changed).open("a") as file:
        file.write("\n")
    assert record_files._loader() != before


def test_a_changed_loader_starts_from_no_record(
    records: Path, several: tuple[Path, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = several
    aotpack.load(path)
    assert is_recorded(aotpack.load(path))
    root = tmp_path / "loader"
    shutil.copytree(Path(aotpack_loader.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    with (root / "runtime" / "autograd.py").open("a") as file:
        file.write("# computes other gradients\n")
    monkeypatch.setattr(record_files, "__file__", str(root / "opening" / "record_files.py"))
    monkeypatch.setattr(record_files, "_loader", record_files._loader.__wrapped__)
    assert not is_recorded(aotpack.load(path))
