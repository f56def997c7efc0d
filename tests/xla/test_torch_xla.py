"""The loader on torch_xla 2.9, the last release: bundles that are built here, without it, and one that it lowered itself.

They are loaded in its own environment (scripts/setup-xla), which has no compiler.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError

from . import models
from .test_build import TwoViews
from .test_control_flow import Recurrent, example
from .test_train import train

PYTHON = Path(__file__).parents[2] / ".venv-xla/bin/python"
OLD = Path(__file__).with_name("built_with_torch_xla.bundle")
"""A linear layer, BatchNorm and another layer, which torch_xla 2.9.0 lowered (2026-11-30)."""

needs_torch_xla = pytest.mark.skipif(not PYTHON.exists(), reason="scripts/setup-xla makes the environment of torch_xla")

TRAINING = """
import json, sys
import torch, torch_xla
from torch_xla.debug import metrics
from aotpack_loader import load

def train(model, args):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses, compiles = [], []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(*args)
        loss = loss if isinstance(loss, torch.Tensor) else loss[0]
        loss = loss if not loss.dim() else loss.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        compiles.append(metrics.counter_value("UncachedCompile"))
    assert len(set(compiles[2:])) == 1, compiles  # the optimizer's own graphs come in the first steps, then nothing does
    return {"losses": losses, "state": {name: x.double().sum().item() for name, x in model.state_dict().items()}}

def given(path):
    return [arg.to("xla").requires_grad_(arg.requires_grad) for arg in torch.load(path)]

def address(tensor):
    torch_xla.sync(wait=True)
    return torch_xla._XLAC._unsafe_buffer_pointer(tensor)
"""


def run(code: str, *arguments: object, **environment: str) -> Any:
    """What a program in torch_xla's environment prints, as JSON on its last line; it follows :data:`TRAINING`."""
    command = [PYTHON, "-W", "ignore", "-c", TRAINING + code, *map(str, arguments)]
    variables = {**os.environ, "PJRT_DEVICE": "CPU", **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def build(model: torch.nn.Module, args: tuple[torch.Tensor, ...], out: Path, **options: Any) -> Path:
    aotpack.build(copy.deepcopy(model), args, out=out, targets=("xla",), **options)
    return out


def scan() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Squared(Recurrent(by_scan=True)), example()


class Squared(torch.nn.Module):
    """The mean square of a model's first result."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.inner(*args)[0].square().mean()
        return loss


class Old(torch.nn.Module):
    """What :data:`OLD` was built from."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.last(torch.relu(self.norm(self.first(x)))).square().mean()
        return loss


def old() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Old(), (torch.randn(5, 4),)


MODELS = {"mlp": models.mlp, "cnn": models.cnn, "gpt": models.gpt, "scan": scan, "old": old}


@pytest.mark.nightly
@needs_torch_xla
@pytest.mark.parametrize("donate", [False, True])
def test_ten_steps_are_eagers(donate: bool, tmp_path: Path) -> None:
    """Computations are compiled at load; the process has no compiler of ours."""
    paths: list[Path] = []
    for name, make in MODELS.items():
        model, args = make()
        paths += [OLD if name == "old" else build(model, args, tmp_path / name), tmp_path / f"{name}.pt"]
        torch.save(args, paths[-1])
    told = run(
        """
donate, *paths = sys.argv[1:]
found = []
for bundle, args in zip(paths[::2], paths[1::2]):
    before = metrics.counter_value("UncachedCompile") or 0
    model = load(bundle, device="xla", trust="all", donate=donate == "True")
    loaded = metrics.counter_value("UncachedCompile") - before
    found.append({**train(model, given(args)), "loaded": loaded})
print(json.dumps({"found": found, "torch": torch.__version__, "compiler": "aotpack" in sys.modules}))
""",
        donate,
        *paths,
    )
    assert told["torch"].startswith("2.9.")
    assert not told["compiler"]
    for (name, make), found in zip(MODELS.items(), told["found"], strict=True):
        model, args = make()
        torch.testing.assert_close(found["losses"], train(model, args), rtol=1e-4, atol=1e-5)
        expected = {key: value.double().sum().item() for key, value in model.state_dict().items()}
        assert found["state"] == pytest.approx(expected, rel=1e-3, abs=1e-4), name
        assert found["loaded"] >= 3, name  # train.forward, train.backward, infer.forward


class Cache(torch.nn.Module):
    """Writes into a buffer and into an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(128, 16))

    def forward(self, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        self.seen.mul_(0.5).add_(x)
        total.add_(x)
        return self.seen.sum() + total.mean()


@pytest.mark.nightly
@needs_torch_xla
def test_memory_is_given_on_where_nobody_sees_it(tmp_path: Path) -> None:
    """With ``donate`` what is written to keeps its memory; views and aliases follow it, clones do not. Kept graphs go on."""
    bundle = build(Cache(), (torch.randn(128, 16), torch.zeros(128, 16)), tmp_path / "cache", methods=("infer",))
    model, args = models.mlp()
    kept = build(model, args, tmp_path / "mlp")
    torch.save(args, tmp_path / "args.pt")
    told = run(
        """
cache, mlp, args = sys.argv[1:]
ones = torch.ones(128, 16).to("xla")
found = {}
for donate in (False, True):
    model, there = load(cache, device="xla", trust="all", donate=donate).eval(), torch.zeros(128, 16).to("xla")
    alias, view, copied = there.detach(), there[:4], there.clone()
    if not donate:
        other = torch.zeros(128, 16).to("xla")
        other.copy_(there)  # torch_xla lets the two share memory
    places = {address(model.seen), address(there)}
    with torch.no_grad():
        values = [model(ones, there).item() for _ in range(3)]
    found[str(donate)] = {
        "values": values,
        "stays": {address(model.seen), address(there)} == places,
        "others": [x.sum().item() for x in (alias, view, copied, model.seen)] + ([] if donate else [other.sum().item()]),
    }
model, args = load(mlp, device="xla", trust="all"), given(args)
loss = model(*args)
found["kept"] = []
for keep in (True, True, False):
    found["kept"].append([x.sum().item() for x in torch.autograd.grad(loss, list(model.parameters()), retain_graph=keep)])
print(json.dumps(found))
""",
        bundle,
        kept,
        tmp_path / "args.pt",
    )
    eager, total = Cache(), torch.zeros(128, 16)
    values = [eager(torch.ones(128, 16), total).item() for _ in range(3)]
    others = [x.sum().item() for x in (total, total[:4], torch.zeros(1), eager.seen)]
    assert told["True"] == {"values": pytest.approx(values), "stays": True, "others": pytest.approx(others)}
    assert told["False"] == {"values": pytest.approx(values), "stays": False, "others": pytest.approx([*others, 0.0])}
    gradients = [x.sum().item() for x in torch.autograd.grad(model(*args), list(model.parameters()))]
    assert told["kept"] == [pytest.approx(gradients, rel=1e-4, abs=1e-5)] * 3


@pytest.mark.nightly
@needs_torch_xla
def test_two_devices_share_a_batch(tmp_path: Path) -> None:
    """By SPMD: BatchNorm sees the whole batch. What was loaded before SPMD is refused, for torch_xla would crash."""
    model, args = models.cnn()
    bundle = build(model, args, tmp_path / "cnn")
    torch.save(args, tmp_path / "args.pt")
    told = run(
        """
import numpy
import torch_xla.distributed.spmd as spmd
import torch_xla.runtime as runtime

runtime.use_spmd()
model = load(sys.argv[1], device="xla", trust="all")
x, labels = given(sys.argv[2])
mesh = spmd.Mesh(numpy.arange(2), (2,), ("data",))
spmd.mark_sharding(x, mesh, ("data", None, None, None))
spmd.mark_sharding(labels, mesh, ("data",))
print(json.dumps({**train(model, (x, labels)), "sharding": torch_xla._XLAC._get_xla_sharding_spec(x)}))
""",
        bundle,
        tmp_path / "args.pt",
        CPU_NUM_DEVICES="2",
    )
    assert told["sharding"] == "{devices=[2,1,1,1]0,1}"
    torch.testing.assert_close(told["losses"], train(model, args), rtol=1e-4, atol=1e-5)
    late, donated = run(
        """
import torch_xla.runtime as runtime
from aotpack_loader.errors import TargetError

model, args = load(sys.argv[1], device="xla", trust="all"), given(sys.argv[2])
runtime.use_spmd()
refused = []
for attempt in (lambda: model(*args), lambda: load(sys.argv[1], device="xla", trust="all", donate=True)):
    try:
        attempt()
    except TargetError as error:
        refused.append(str(error))
print(json.dumps(refused))
""",
        bundle,
        tmp_path / "args.pt",
    )
    assert late.startswith("torch_xla's SPMD mode was turned on after this bundle was loaded.\nCall torch_xla.runtime.use_spmd()")
    assert donated == "donate=True: under SPMD buffers are not updated in place.\nLoad without it."


@pytest.mark.nightly
@needs_torch_xla
def test_what_load_refuses(tmp_path: Path) -> None:
    model, args = models.mlp()
    bundle, other = build(model, args, tmp_path / "mlp"), tmp_path / "portable"
    aotpack.build(model, args, out=other, targets=("portable",))
    torch.save(args, tmp_path / "args.pt")
    told = run(
        """
from aotpack_loader.errors import AotpackError

bundle, other, args = sys.argv[1:]
x, labels = torch.load(args)
attempts = (
    lambda: load(bundle, trust="all"),
    lambda: load(bundle, device="xla"),
    lambda: load(bundle, device="xla:7", trust="all"),
    lambda: load(bundle, device="xla", trust="all", check="full"),
    lambda: load(other, device="xla", trust="all"),
    lambda: load(other, backend="xla", trust="all"),
    lambda: load(bundle, device="xla", trust="all")(x, labels.to("xla")),
)
refused = []
for attempt in attempts:
    try:
        attempt()
    except AotpackError as error:
        refused.append(f"{type(error).__name__}: {error}")
print(json.dumps(refused))
""",
        bundle,
        other,
        tmp_path / "args.pt",
        AOTPACK_STATE=str(tmp_path / "state"),
    )
    wanted = (
        "TargetError: .*runs on an XLA device: load with device='xla'",
        "TrustError: ",
        r"TargetError: There is no device xla:7.*\n.*torch_xla has xla:0",
        ".*tensors on XLA devices do not have",
        ".*portable: needs tensors with memory and strides, which device='xla' does not have",
        "TargetError: .*has no target 'xla'",
        r"InputError: .*x: expected float32\[8,16\] on xla:0, got float32\[8,16\]",
    )
    assert len(told) == len(wanted)
    for found, pattern in zip(told, wanted, strict=True):
        assert re.search(pattern, found, re.DOTALL), found
    early = run(
        """
from aotpack_loader.errors import TargetError
(torch.ones(1, requires_grad=True) * 2).sum().backward()
try:
    load(sys.argv[1], device="xla", trust="all")
except TargetError as error:
    print(json.dumps(str(error)))
""",
        bundle,
    )
    assert "a backward pass ran before torch_xla made its device.\nLoad the bundle in a fresh process; or call" in early


def test_what_the_target_says(tmp_path: Path) -> None:
    aotpack.build(*models.mlp(), out=tmp_path / "m", targets=("xla",))
    bundle = Bundle.open(tmp_path / "m")
    target = bundle.targets["xla"]
    assert (target.kind, target.torch, target.packages) == ("xla", "==2.9.*", {"torch_xla": "==2.9.*"})
    assert set(target.xla) == {"train.forward", "train.backward", "infer.forward"}
    assert target.toolchain["torch"] == torch.__version__
    assert {"jax", "jaxlib", "stablehlo"} <= target.toolchain.keys()
    forward = target.xla["train.forward"]
    assert forward.hlo is not None
    assert forward.stablehlo is not None
    assert bundle.module(forward.stablehlo)[:4] == b"ML\xefR"  # MLIR bytecode


def constants(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(3) + torch.arange(3)


def transposed_in_place(x: torch.Tensor) -> torch.Tensor:
    x.t_()
    return x * 2


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (TwoViews(), r"part: shares its memory with whole\n.*clone\(\)"),
        (constants, r"infer\.forward depends on no argument, parameter or buffer.*\nCreate what it returns outside the model"),
        (transposed_in_place, r"changes sizes, strides or the storage of an argument in place \(metadata\)"),
        (lambda x: torch.linalg.qr(x).R, r"calls lapack_\w+, of jaxlib's library for the CPU\n.*xla:cpu"),
    ],
    ids=["shared state", "constants alone", "metadata", "linear algebra"],
)
def test_what_torch_xla_cannot_do_is_refused(model: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        aotpack.build(model, (torch.randn(3, 4),), out=tmp_path / "m", targets=("xla",), methods=("infer",))
    assert not (tmp_path / "m").exists()
