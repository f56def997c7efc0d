"""Loading: the module that comes out, its weights, which target runs it, and what is refused."""

from __future__ import annotations

import copy
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from conftest import FreshProcess
from support.archive import Documents, members, pack
from torch import nn

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices import cpuinfo
from aotpack_loader.errors import (
    AotpackError,
    BundleNotFoundError,
    CorruptBundleError,
    NotABundleError,
    StateError,
    TargetError,
    TrustError,
    UnsupportedVersionError,
)


class Varied(nn.Module):
    """State of every kind: tied, frozen, transposed, shared storage, integer and non-persistent buffers, nested modules."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.ModuleDict({"deep": nn.Linear(6, 6)})["deep"])
        self.inner[0].bias.requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.mix = nn.Parameter(torch.randn(3, 6).t())
        self.register_buffer("table", torch.arange(6.0), persistent=False)
        self.register_buffer("count", torch.tensor(3, dtype=torch.int32))
        self.register_buffer("front", torch.arange(12.0)[:6])
        self.register_parameter("absent", None)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.inner(self.embed(tokens)) + self.table * self.count + self.front)
        return nn.functional.cross_entropy(self.head(x @ self.mix @ self.mix.t()), tokens)


TOKENS = torch.tensor([0, 1, 2, 3, 4, 5, 6, 1])


@pytest.fixture(scope="module")
def varied() -> Varied:
    torch.manual_seed(0)
    return Varied()


@pytest.fixture(scope="module")
def varied_bundle(varied: Varied, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("varied") / "varied.aotpack"
    aotpack.build(varied, (TOKENS,), out=out, targets=("portable",))
    return out


@pytest.fixture
def loaded(varied_bundle: Path) -> aotpack.LoadedProgram:
    return aotpack.load(varied_bundle)


def step(model: nn.Module) -> None:
    model.zero_grad()
    model(TOKENS).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 0.5 * parameter.grad


# ---------------------------------------------------------------- the module


def described(named: Iterator[tuple[str, torch.Tensor]]) -> list[tuple[Any, ...]]:
    return [(name, t.dtype, t.shape, t.stride(), t.requires_grad, type(t) is nn.Parameter) for name, t in named]


def test_names_types_shapes_strides_and_flags_are_the_originals(varied: Varied, loaded: aotpack.LoadedProgram) -> None:
    assert described(loaded.named_parameters(remove_duplicate=False)) == described(
        varied.named_parameters(remove_duplicate=False)
    )
    assert described(loaded.named_parameters()) == described(varied.named_parameters())
    assert described(loaded.named_buffers()) == described(varied.named_buffers())
    assert loaded._non_persistent_buffers_set == {"table"}
    assert all(torch.equal(value, varied.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert torch.equal(loaded.get_buffer("table"), varied.table)


def test_tied_weights_are_one_parameter(loaded: aotpack.LoadedProgram) -> None:
    assert loaded.get_parameter("head.weight") is loaded.get_parameter("embed.weight")


def test_state_dict_has_the_originals_order(varied: Varied, loaded: aotpack.LoadedProgram) -> None:
    assert list(loaded.state_dict()) == list(varied.state_dict())


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_that_of_the_build(varied: Varied, tmp_path: Path, training: bool) -> None:
    model = copy.deepcopy(varied).train(training)
    aotpack.build(model, (TOKENS,), out=tmp_path / "m", targets=("portable",), methods=("infer",))
    assert model.training is training
    assert aotpack.load(tmp_path / "m").training is training


def test_a_submodule_cannot_be_called(loaded: aotpack.LoadedProgram) -> None:
    with pytest.raises(AotpackError, match="called as a whole"):
        loaded.get_submodule("norm")(torch.zeros(3, 6))


def test_info_says_what_runs_and_where_it_came_from(varied_bundle: Path, loaded: aotpack.LoadedProgram) -> None:
    info = loaded.aotpack
    assert (info.path, info.backend, info.reason) == (str(varied_bundle), "portable", "runs anywhere")
    assert info.digest == Bundle.open(varied_bundle).digest
    assert set(info.methods) == {"train", "infer"}
    assert info.rejected == {}
    assert info.program.name == "Varied"
    assert "backend=portable" in repr(loaded)


# ---------------------------------------------------------------- state dicts


def test_a_state_dict_goes_there_and_back(varied: Varied, loaded: aotpack.LoadedProgram, tmp_path: Path) -> None:
    original = copy.deepcopy(varied)
    step(original)
    torch.save(original.state_dict(), tmp_path / "state.pt")
    assert str(loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))) == "<All keys matched successfully>"
    step(loaded)
    step(original)
    fresh = Varied()
    fresh.load_state_dict(loaded.state_dict())
    for name, value in original.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], value, msg=name)


def test_a_state_dict_that_does_not_fit_is_refused_whole(varied: Varied, loaded: aotpack.LoadedProgram) -> None:
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    state: dict[str, Any] = {name: torch.zeros_like(value) for name, value in varied.state_dict().items()}
    del state["norm.bias"], state["count"]
    state |= {"mix": torch.zeros(6, 4), "front": 3, "extra": torch.zeros(1), "inner.0.more": torch.zeros(1)}
    with pytest.raises(StateError) as caught:
        loaded.load_state_dict(state)
    assert {str(problem) for problem in caught.value.problems} == {
        "mix: expected shape [6, 3], got [6, 4]",
        "front: expected a tensor, got int",
        "norm.bias: missing",
        "count: missing",
        "extra: unexpected",
        "inner.0.more: unexpected",
    }
    assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())


def test_not_strict_fills_what_it_can(varied: Varied, loaded: aotpack.LoadedProgram) -> None:
    found = loaded.load_state_dict({"mix": torch.full((6, 3), 2.0), "extra": torch.zeros(1)}, strict=False)
    assert found.unexpected_keys == ["extra"]
    assert "norm.bias" in found.missing_keys
    assert torch.equal(loaded.get_parameter("mix"), torch.full((6, 3), 2.0))
    with pytest.raises(StateError, match="mix: expected shape"):
        loaded.load_state_dict({"mix": torch.zeros(2)}, strict=False)


def test_assigned_tensors_are_used_and_checked(varied: Varied, loaded: aotpack.LoadedProgram) -> None:
    state = {name: value.clone() for name, value in varied.state_dict().items()}
    loaded.load_state_dict(state, assign=True)
    with pytest.raises(aotpack.AotpackError, match=r"head.weight: was tied to embed.weight"):
        loaded(TOKENS)
    state["head.weight"] = state["embed.weight"] = nn.Parameter(state["embed.weight"])
    loaded.load_state_dict(state, assign=True)
    assert loaded.get_parameter("mix").data_ptr() == state["mix"].data_ptr()
    torch.testing.assert_close(loaded(TOKENS), copy.deepcopy(varied)(TOKENS))
    loaded.load_state_dict({**state, "mix": state["mix"].contiguous()}, assign=True)
    with pytest.raises(aotpack.AotpackError, match="mix: expected strides"):
        loaded(TOKENS)


# ---------------------------------------------------------------- weights


def test_without_weights_only_what_no_state_dict_holds_is_read(varied: Varied, varied_bundle: Path) -> None:
    loaded = aotpack.load(varied_bundle, weights=False)
    assert described(loaded.named_parameters()) == described(varied.named_parameters())
    assert described(loaded.named_buffers()) == described(varied.named_buffers())
    assert torch.equal(loaded.get_buffer("table"), varied.table)
    assert loaded.get_parameter("head.weight") is loaded.get_parameter("embed.weight")
    loaded.load_state_dict(varied.state_dict())
    torch.testing.assert_close(loaded(TOKENS), copy.deepcopy(varied)(TOKENS))


def test_without_weights_their_blob_may_be_damaged(varied: Varied, varied_bundle: Path, tmp_path: Path) -> None:
    damaged = flip_a_weight(varied, varied_bundle, tmp_path / "damaged")
    loaded = aotpack.load(damaged, weights=False)
    loaded.load_state_dict(varied.state_dict())
    torch.testing.assert_close(loaded(TOKENS), copy.deepcopy(varied)(TOKENS))


def test_training_changes_neither_the_file_nor_another_load(varied_bundle: Path) -> None:
    before = varied_bundle.read_bytes()
    first, second = aotpack.load(varied_bundle), aotpack.load(varied_bundle)
    for _ in range(2):
        step(first)
    assert not torch.equal(first.get_parameter("mix"), second.get_parameter("mix"))
    assert not torch.equal(first.get_buffer("norm.running_mean"), second.get_buffer("norm.running_mean"))
    third = aotpack.load(varied_bundle)
    for name, value in third.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert varied_bundle.read_bytes() == before


def test_a_deleted_bundle_stays_usable(varied: Varied, varied_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(varied_bundle.read_bytes())
    loaded = aotpack.load(path)
    path.unlink()
    torch.testing.assert_close(loaded(TOKENS), copy.deepcopy(varied)(TOKENS))


def flip_a_weight(varied: Varied, source: Path, out: Path) -> Path:
    data = bytearray(source.read_bytes())
    needle = varied.mix.detach().t().contiguous().numpy().tobytes()
    assert data.count(needle) == 1
    data[data.index(needle)] ^= 1
    out.write_bytes(data)
    return out


def test_full_verification_finds_a_flipped_weight(varied: Varied, varied_bundle: Path, tmp_path: Path) -> None:
    damaged = flip_a_weight(varied, varied_bundle, tmp_path / "damaged")
    with pytest.raises(CorruptBundleError, match="sha256:"):
        aotpack.load(damaged, verify="full")
    assert aotpack.load(varied_bundle, verify="full").aotpack.backend == "portable"
    with pytest.raises(AotpackError, match='"code" or "full"'):
        aotpack.load(varied_bundle, verify="none")  # type: ignore[arg-type]


def test_any_other_flipped_byte_is_found_without_asking(varied: Varied, varied_bundle: Path, tmp_path: Path) -> None:
    with Bundle.open(varied_bundle) as bundle:
        graph = bundle.program.methods["train"].forward.digest[len("sha256:") :]
    content = members(varied_bundle)[f"blobs/sha256/{graph}"]
    data = bytearray(varied_bundle.read_bytes())
    data[data.index(content) + len(content) // 2] ^= 1
    (tmp_path / "m").write_bytes(data)
    with pytest.raises(CorruptBundleError, match=graph):
        aotpack.load(tmp_path / "m")


# ---------------------------------------------------------------- what is no bundle


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BundleNotFoundError, match=r"nothing\.aotpack") as caught:
        aotpack.load(tmp_path / "nothing.aotpack")
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("content", [b"", b"not a bundle", b"PK\x03\x04" + bytes(600), bytes(4096)])
def test_a_file_of_another_kind(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises((NotABundleError, CorruptBundleError), match=str(tmp_path / "m")):
        aotpack.load(tmp_path / "m")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.99])
def test_a_truncated_bundle(varied_bundle: Path, tmp_path: Path, kept: float) -> None:
    data = varied_bundle.read_bytes()
    (tmp_path / "m").write_bytes(data[: int(len(data) * kept)])
    with pytest.raises((NotABundleError, CorruptBundleError)):
        aotpack.load(tmp_path / "m")


def test_an_unknown_major_version(varied_bundle: Path, tmp_path: Path) -> None:
    documents = Documents(varied_bundle)
    documents.program["format"]["major"] += 1
    (tmp_path / "m").write_bytes(pack(documents.files()))
    with pytest.raises(UnsupportedVersionError, match=r"version 2") as caught:
        aotpack.load(tmp_path / "m")
    assert len(caught.value.summary.splitlines()) == 1


# ---------------------------------------------------------------- which target runs


def without_warnings(path: Path, **options: Any) -> aotpack.LoadedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return aotpack.load(path, **options)


def native_name(path: Path) -> str:
    return next(name for name in Bundle.open(path).targets if name != "portable")


def test_the_best_that_fits_is_taken(digits_bundle: Path) -> None:
    loaded = without_warnings(digits_bundle)
    assert loaded.aotpack.backend == native_name(digits_bundle)
    assert loaded.aotpack.reason == "fits this machine; this user built it on this machine"


def test_a_target_is_asked_for_by_kind_or_name(digits_bundle: Path) -> None:
    native = native_name(digits_bundle)
    for backend, expected in (("cpu", native), (native, native), ("portable", "portable")):
        loaded = without_warnings(digits_bundle, backend=backend)
        assert loaded.aotpack.backend == expected
        assert loaded.aotpack.reason.startswith("asked for; ")


@pytest.mark.parametrize("backend", ["cuda", "cpu:x86-64-v9", "", "port"])
def test_a_target_the_bundle_does_not_have(tiny_bundle: Path, backend: str) -> None:
    with pytest.raises(TargetError, match="has no target") as caught:
        aotpack.load(tiny_bundle, backend=backend)
    assert "It has: portable." in str(caught.value)


@pytest.mark.parametrize("device", ["cuda:77", torch.device("xpu", 77), "hpu"])
def test_a_device_that_is_not_there(tiny_bundle: Path, device: Any) -> None:
    with pytest.raises(TargetError, match=rf"(?s)device={device}: torch .* has no such device here: .*\.\nHere are cpu"):
        aotpack.load(tiny_bundle, device=device)


@pytest.mark.parametrize("device", ["meta", "xla"])
def test_devices_without_memory_need_targets_of_their_own(tiny_bundle: Path, device: str) -> None:
    with pytest.raises(TargetError, match=f"(?s)portable: needs tensors with memory.*device='{device}'.*'xla' behind XLA"):
        aotpack.load(tiny_bundle, device=device)


def test_a_device_that_makes_no_sense(tiny_bundle: Path) -> None:
    with pytest.raises(AotpackError, match="nonsense"):
        aotpack.load(tiny_bundle, device="nonsense")


def test_the_cpu_may_be_asked_for(tiny_bundle: Path) -> None:
    assert aotpack.load(tiny_bundle, device="cpu").aotpack.backend == "portable"


@pytest.fixture
def older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpuinfo, "features", lambda: frozenset(cpuinfo.X86_LEVELS["x86-64-v2"]))


@pytest.mark.usefixtures("older_processor")
def test_code_for_a_wider_processor_is_refused_when_asked_for(digits_bundle: Path) -> None:
    native = native_name(digits_bundle)
    for backend in ("cpu", native):
        with pytest.raises(TargetError) as caught:
            aotpack.load(digits_bundle, backend=backend)
        assert caught.value.summary == f"The target {backend!r} cannot run here."
        (problem,) = caught.value.problems
        assert problem.where == native
        assert problem.message.startswith(f"needs {native.removeprefix('cpu:')}; this processor lacks ")
        assert "avx2" in problem.message
        assert "backend='portable'" in str(caught.value)


@pytest.mark.usefixtures("older_processor")
def test_code_for_a_wider_processor_gives_way_to_portable(digits_bundle: Path) -> None:
    with pytest.warns(aotpack.BackendWarning, match="this processor lacks") as caught:
        loaded = aotpack.load(digits_bundle)
    assert caught[0].filename == __file__
    assert loaded.aotpack.backend == "portable"
    assert "avx2" in loaded.aotpack.rejected[native_name(digits_bundle)]
    without_warnings(digits_bundle, backend="portable")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "s390x"}, r"built for s390x, this machine is \w+"),
        ({"torch": "==1.2.*"}, r"compiled for torch ==1\.2\.\*, this is "),
        ({"cpu_features": ["quantum"]}, "this processor lacks quantum"),
        ({"kind": "future"}, "this loader does not know code of kind 'future'"),
        ({"device": "npu"}, "this loader has no device 'npu'"),
    ],
)
def test_a_target_of_another_machine(
    digits_bundle: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    native = native_name(digits_bundle)
    targets = dict(Bundle.open(digits_bundle).targets)
    targets[native] = msgspec.structs.replace(targets[native], **change)
    monkeypatch.setattr(Bundle, "targets", property(lambda self: targets))
    with pytest.warns(aotpack.BackendWarning, match=reason):
        assert aotpack.load(digits_bundle).aotpack.backend == "portable"
    with pytest.raises(TargetError, match=reason):
        aotpack.load(digits_bundle, backend=native)


def test_a_bundle_for_another_torch(tiny_bundle: Path, tmp_path: Path) -> None:
    documents = Documents(tiny_bundle)
    documents.program["requirements"]["torch"] = "<2.0"
    (tmp_path / "m").write_bytes(pack(documents.files()))
    with pytest.raises(TargetError, match=r"portable: needs torch <2\.0, this is "):
        aotpack.load(tmp_path / "m")


# ---------------------------------------------------------------- trust


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user, or another machine: nothing was built here."""
    monkeypatch.setenv("AOTPACK_STATE", str(tmp_path / "state-of-a-stranger"))


@pytest.mark.usefixtures("stranger")
def test_untrusted_native_code_is_refused_when_asked_for(digits_bundle: Path) -> None:
    with pytest.raises(TrustError) as caught:
        aotpack.load(digits_bundle, backend="cpu")
    for way in ("as this user on this machine", Bundle.open(digits_bundle).digest, 'trust="all"', "portable"):
        assert way in str(caught.value)


@pytest.mark.usefixtures("stranger")
def test_untrusted_native_code_gives_way_to_portable(digits_bundle: Path) -> None:
    with pytest.warns(aotpack.BackendWarning, match="not trusted") as caught:
        loaded = aotpack.load(digits_bundle)
    assert loaded.aotpack.backend == "portable"
    assert f'load it with trust="{Bundle.open(digits_bundle).digest}"' in str(caught[0].message)
    assert loaded.aotpack.rejected[native_name(digits_bundle)].startswith("not trusted: ")
    without_warnings(digits_bundle, backend="portable")


@pytest.mark.usefixtures("stranger")
def test_untrusted_native_code_is_never_extracted(digits_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))
    with pytest.warns(aotpack.BackendWarning):
        aotpack.load(digits_bundle)
    with pytest.raises(TrustError):
        aotpack.load(digits_bundle, backend="cpu")
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.usefixtures("stranger")
def test_the_caller_may_vouch(digits_bundle: Path) -> None:
    digest = Bundle.open(digits_bundle).digest
    for trust, reason in (("all", 'the caller passed trust="all"'), (digest, "pinned"), ([digest], "pinned")):
        loaded = without_warnings(digits_bundle, trust=trust)
        assert loaded.aotpack.backend == native_name(digits_bundle)
        assert reason in loaded.aotpack.reason
    with pytest.raises(TrustError, match="not one the caller pinned"):
        aotpack.load(digits_bundle, backend="cpu", trust="sha256:" + "0" * 64)


# ---------------------------------------------------------------- memory that malloc keeps

WHERE = """
import json, sys, torch
from aotpack_loader import load
{load}
block = torch.empty(30 << 20, dtype=torch.uint8).data_ptr()
heap = next(line for line in open("/proc/self/maps") if line.endswith("[heap]\\n")).split()[0].split("-")
print(json.dumps(int(heap[0], 16) <= block < int(heap[1], 16)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of another library")
def test_what_a_step_frees_is_there_for_the_next(
    tiny_bundle: Path, fresh_process: FreshProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a bundle is loaded, memory comes from malloc's heap, not anew from the system. What the user asks of malloc stands."""
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    assert not fresh_process(WHERE.format(load=""), tiny_bundle, from_nothing=True)
    loading = WHERE.format(load="load(sys.argv[1])")
    assert fresh_process(loading, tiny_bundle, from_nothing=True)
    assert not fresh_process(loading, tiny_bundle, MALLOC_TRIM_THRESHOLD_="131072", from_nothing=True)
