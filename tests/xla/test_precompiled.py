"""XLA's own code as a variant: built for the CPU and run by jaxlib without a compile; built for a TPU that is not here."""

from __future__ import annotations

import copy
import importlib.util
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import FreshProcess
from msgspec import structs

import aotpack
from aotpack.targets import find_targets
from aotpack.targets.xla import aot
from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices import select
from aotpack_loader.devices.pjrt import PjrtDevice
from aotpack_loader.errors import BuildError, CorruptBundleError, TargetError, TrustError
from aotpack_loader.format import media_types, schema
from aotpack_loader.options import LoadOptions

from . import models
from .test_train import train

WITH_LIBTPU = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not there: scripts/setup-xla --tpu installs it"
)


def build(model: Any, args: tuple[Any, ...], out: Path, *, targets: tuple[str, ...] = ("xla:cpu",), **options: Any) -> Path:
    aotpack.build(copy.deepcopy(model), args, out=out, targets=targets, **options)
    return out


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    targets = ("xla:cpu", "xla", "portable")
    return build(*models.mlp(), tmp_path_factory.mktemp("xla") / "model.aotpack", targets=targets)


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt"])
def test_ten_steps_are_eagers(name: str, tmp_path: Path) -> None:
    model, args = getattr(models, name)()
    loaded = load(build(model, args, tmp_path / "model.aotpack"), backend="xla:cpu")
    assert {p.device for p in loaded.parameters()} == {torch.device("cpu")}
    losses, expected = train(loaded, args), train(model, args)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-5, atol=1e-5)
    for entry, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[entry], value, rtol=1e-4, atol=1e-5)


def test_nothing_is_compiled_at_load(bundle: Path, tmp_path: Path, fresh_process: FreshProcess) -> None:
    """XLA dumps every module that it compiles; here there is nothing to dump, until a compile shows that it would."""
    code = """
        import json, os, sys
        import torch
        from aotpack_loader import load

        model = load(sys.argv[1], backend="xla:cpu")
        loss = model(torch.ones(8, 16), torch.zeros(8, dtype=torch.int64))
        loss.backward()
        ran = os.listdir(sys.argv[2])
        imported = [name for name in ("torch_xla", "aotpack") if name in sys.modules]
        import jax
        jax.jit(lambda x: x * 2)(1.0)
        print(json.dumps({"ran": ran, "compiled": len(os.listdir(sys.argv[2])), "imported": imported, "loss": loss.item()}))
        """
    dumped = tmp_path / "dumped"
    dumped.mkdir()
    told = fresh_process(code, bundle, dumped, XLA_FLAGS=f"--xla_dump_to={dumped}")
    assert (told["ran"], told["imported"]) == ([], [])
    assert told["compiled"] > 0
    model, _ = models.mlp()
    assert told["loss"] == pytest.approx(model(torch.ones(8, 16), torch.zeros(8, dtype=torch.int64)).item(), rel=1e-5)


def test_what_the_target_says(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    target, portable = opened.targets["xla:cpu"], opened.targets["xla:cpu"]
    assert (target.kind, target.device, target.torch, target.topology) == ("xla", "cpu", "", "")
    assert set(target.packages) == {"jax", "jaxlib"}
    assert target.packages["jaxlib"].startswith("==")
    assert target.cpu_features
    assert opened.manifests["xla:cpu"].platform.os == "linux"  # type: ignore[union-attr]
    forward = target.xla["train.forward"]
    assert forward.code is not None
    assert forward.code.media_type == media_types.CODE_PJRT
    assert forward.hlo is None
    assert forward.stablehlo == portable.xla["train.forward"].stablehlo  # one blob for both


def test_code_that_is_kept_is_the_same_bytes(tmp_path: Path) -> None:
    """XLA writes other bytes each time: what was compiled once is taken again."""
    model, args = models.mlp()
    first, second = (build(model, args, tmp_path / f"{name}.aotpack") for name in ("first", "second"))
    assert Bundle.open(first).digest == Bundle.open(second).digest


class Everything(torch.nn.Module):
    """A buffer and an argument that are written to, a view of an argument, one of a result, strides that are not row-major."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.weight = torch.nn.Parameter(torch.randn(4, 3).t())

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.seen.add_(1)
        total.add_(x.detach().sum(0))
        base = (x * 2).t()
        return base * self.weight.t().sum(), total, x.t(), base[1:], torch.zeros(3)


def test_mutations_aliases_and_strides(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Everything()
    x, total = torch.randn(3, 4, requires_grad=True), torch.zeros(4)
    loaded = load(build(model, (x, total), tmp_path / "model.aotpack"), backend="xla:cpu")
    for given in (x, torch.randn(30, 4)[1:4]):  # the second begins where XLA cannot read it in place
        found, sums, expected, wanted = [], total.clone(), [], total.clone()
        for module, target, results in ((loaded, sums, found), (model, wanted, expected)):
            leaf = given.detach().requires_grad_()
            outputs = module(leaf, target)
            assert outputs[1] is target
            assert outputs[2]._base is leaf
            (outputs[0].sum() + outputs[2].sum() + outputs[3].square().sum()).backward()
            outputs[4].add_(1)  # a constant, in memory of its own
            results += [*outputs, leaf.grad, module.weight.grad, module.seen]
        for ours, theirs in zip(expected, found, strict=True):
            torch.testing.assert_close(theirs, ours)
            assert theirs.stride() == ours.stride()


def test_every_call_satisfies_the_full_check(tmp_path: Path) -> None:
    model, args = models.cnn()
    loaded = load(build(model, args, tmp_path / "model.aotpack"), backend="xla:cpu", check="full")
    torch.testing.assert_close(train(loaded, args), train(model, args), rtol=1e-4, atol=1e-4)


def test_random_numbers_come_from_torchs_generator(tmp_path: Path) -> None:
    class Drop(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(x, 0.25, self.training)

    x = torch.ones(100, 1000, requires_grad=True)
    loaded = load(build(Drop(), (x,), tmp_path / "model.aotpack"), backend="xla:cpu")
    torch.manual_seed(1)
    first, second = loaded(x), loaded(x)
    torch.manual_seed(1)
    assert torch.equal(loaded(x), first)
    assert not torch.equal(first, second)
    assert (first != 0).double().mean().item() == pytest.approx(0.75, abs=0.01)
    assert first.mean().item() == pytest.approx(1, abs=0.01)
    first.sum().backward()
    assert torch.equal(x.grad, first.detach())
    with torch.no_grad():
        assert torch.equal(loaded.eval()(x), x)


def test_it_is_added_to_a_bundle_and_tested_there(tmp_path: Path) -> None:
    """From graphs traced for another target, whose fused operators XLA has no kernels for."""
    path = build(*models.gpt(), tmp_path / "model.aotpack", targets=("portable",), self_test=True)
    report = aotpack.compile_bundle(path, targets=("xla:cpu",), out=tmp_path / "more.aotpack", self_test=True)
    assert any("xla:cpu: the self-test's" in note and "agree" in note for note in report.notes), report.notes
    assert list(Bundle.open(tmp_path / "more.aotpack").targets) == ["portable", "xla:cpu"]


def test_it_runs_where_it_is_asked_for(bundle: Path) -> None:
    """Each call costs more than one of a ``cpu`` target, so the loader does not take it by itself."""
    reason = "runs where it is asked for: load with backend='xla:cpu'"
    loaded = load(bundle)
    assert (loaded.aotpack.backend, loaded.aotpack.rejected["xla:cpu"]) == ("portable", reason)
    assert load(bundle, backend="xla:cpu", device="cpu").aotpack.backend == "xla:cpu"
    with pytest.raises(TargetError, match="xla:cpu: runs on the CPU, and device='xla' was asked for"):
        load(bundle, backend="xla:cpu", device="xla")
    with pytest.raises(TargetError, match=r"lowered for torch ==2\.9"):
        load(bundle, backend="xla")  # a name, before a kind


def test_it_needs_trust(bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AOTPACK_STATE", str(tmp_path / "another"))
    with pytest.raises(TrustError):
        load(bundle, backend="xla:cpu")
    load(bundle, backend="xla:cpu", trust=Bundle.open(bundle).digest)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"packages": {"jaxlib-of-nobody": "==1"}}, "needs jaxlib-of-nobody ==1, which is not installed"),
        ({"device": "tpu", "topology": "v5e:2x2"}, "is code for tpu v5e:2x2, which torch_xla cannot load"),
    ],
)
def test_code_for_something_else_is_never_loaded(
    bundle: Path, change: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Bundle.open(bundle)
    other = structs.replace(opened.targets["xla:cpu"], **change)
    monkeypatch.setattr(Bundle, "targets", property(lambda self: {"xla:cpu": other}))
    with pytest.raises(TargetError, match=rf"The target 'xla:cpu' cannot run here\.\n  xla:cpu: {reason}"):
        select.select(opened, LoadOptions(backend="xla:cpu", trust="all"))


ELSEWHERE = [
    ({"packages": {"jaxlib": "==0.1.2"}}, r"compiled for jaxlib ==0\.1\.2, this is .*aotpack-loader\[xla-cpu\]"),
    ({"cpu_features": ["avx", "teleport"]}, "needs native; this processor lacks teleport"),
    ({"architecture": "s390x"}, "built for s390x, this machine is"),
]


@pytest.mark.parametrize(("change", "reason"), ELSEWHERE)
def test_elsewhere_the_program_is_compiled_at_load(
    bundle: Path, change: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code is not touched. A target without programs is refused."""
    opened = Bundle.open(bundle)
    target = opened.targets["xla:cpu"]
    without_code = {key: structs.replace(item, code=None) for key, item in target.xla.items()}
    monkeypatch.setattr(
        Bundle, "targets", property(lambda self: {"xla:cpu": structs.replace(target, **change, xla=without_code)})
    )
    model, args = models.mlp()
    loaded = load(bundle, backend="xla:cpu", trust="all")
    torch.testing.assert_close(torch.tensor(train(loaded, args)), torch.tensor(train(model, args)), rtol=1e-5, atol=1e-5)
    code_alone = {key: structs.replace(item, stablehlo=None) for key, item in target.xla.items()}
    monkeypatch.setattr(Bundle, "targets", property(lambda self: {"xla:cpu": structs.replace(target, **change, xla=code_alone)}))
    with pytest.raises(TargetError, match=reason):
        load(bundle, backend="xla:cpu", trust="all")


def test_state_that_moves_and_state_that_is_written_to(bundle: Path) -> None:
    """Buffers of the state are kept between calls: they see values written in place, and other memory replaces them."""
    model, args = models.mlp()
    loaded = load(bundle, backend="xla:cpu", trust="all")
    loaded.load_state_dict(model.state_dict())
    for change in (
        lambda weight: weight.data.mul_(2),
        lambda weight: setattr(weight, "data", weight.data + 1),
        lambda weight: setattr(weight, "data", torch.randn(17, weight.numel()).flatten()[3 : 3 + weight.numel()].view_as(weight)),
        lambda weight: weight.data.neg_(),
        lambda weight: weight.data.set_(weight.data.t().contiguous().t()),
        lambda weight: weight.data.mul_(0.5),
    ):
        for module in (model, loaded):
            torch.manual_seed(0)
            change(module.first.weight)  # type: ignore[no-untyped-call]
            module.zero_grad()
            module(*args).backward()
        torch.testing.assert_close(loaded.first.weight, model.first.weight)
        torch.testing.assert_close(loaded(*args), model(*args))
        torch.testing.assert_close(loaded.first.weight.grad, model.first.weight.grad)


def test_code_that_is_damaged_or_returns_something_else(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # X3
    opened = Bundle.open(bundle)
    target, graph = opened.targets["xla:cpu"], opened.program.methods["infer"].forward
    executable = target.xla["infer.forward"]
    lying = structs.replace(executable, results=[schema.ArrayType("float32", [2])])
    found = PjrtDevice(opened, structs.replace(target, xla={"infer.forward": lying})).executable("infer.forward", graph, (6, 1))
    with pytest.raises(CorruptBundleError, match=r"X3: the code of infer\.forward returns"):
        found([*(parameter.detach() for parameter in models.mlp()[0].parameters()), *models.mlp()[1]])
    empty = structs.replace(executable, code=None)
    with pytest.raises(CorruptBundleError, match=r"xla:cpu has no code for infer\.forward"):
        PjrtDevice(opened, structs.replace(target, xla={"infer.forward": empty})).executable("infer.forward", graph, (6, 1))
    monkeypatch.setattr(Bundle, "module", lambda self, descriptor: b"no code")
    for compiles, failed in ((False, "load"), (True, "compile")):
        device = PjrtDevice(opened, target, compiles=compiles)
        with pytest.raises(TargetError, match=rf"jaxlib cannot {failed} the code of infer\.forward for xla:cpu: "):
            device.executable("infer.forward", graph, (6, 1))


@pytest.mark.parametrize("name", ["xla:tpu", "xla:gpu", "xla:cpu-v3", "xla:tpu-v5e"])
def test_a_platform_that_there_is_not(name: str) -> None:
    with pytest.raises(BuildError, match=f"There is no target '{name}'"):
        find_targets(name)


def test_libtpu_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(package: str) -> str:
        if package == "libtpu":
            raise PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(aot, "version", release)
    with pytest.raises(BuildError, match=r"needs libtpu\.\npip install 'aotpack\[xla-tpu\]'"):
        find_targets("xla:tpu-v5e-2x2")


@WITH_LIBTPU
def test_an_executable_for_a_tpu(tmp_path: Path) -> None:
    """Built where there is no TPU. Nobody here has run one on a TPU, and the loader takes none."""
    path = build(*models.mlp(), tmp_path / "model.aotpack", targets=("xla:tpu-v5e-2x2", "portable"))
    opened = Bundle.open(path)
    target = opened.targets["xla:tpu-v5e-2x2"]
    assert (target.kind, target.device, target.topology, target.cpu_features) == ("xla", "tpu", "v5e:2x2", [])
    assert set(target.packages) == {"jax", "jaxlib", "libtpu"}
    assert "v5 lite" in target.toolchain["platform"]
    for key in ("train.forward", "train.backward", "infer.forward"):
        code = target.xla[key].code
        assert code is not None
        assert len(opened.module(code)) > 10_000
    with pytest.raises(TargetError, match="is code for tpu v5e:2x2, which torch_xla cannot load"):
        load(path, backend="xla:tpu-v5e-2x2")
    assert load(path).aotpack.backend == "portable"


@WITH_LIBTPU
def test_an_arrangement_that_libtpu_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"libtpu knows no arrangement of TPUs called 'v99:2x2'"):
        build(*models.mlp(), tmp_path / "model.aotpack", targets=("xla:tpu-v99-2x2",))
