"""Bundles for torch_xla, built without it: they train in its own environment (scripts/setup-xla) as eager does here."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError

from . import models
from .test_control_flow import Recurrent, example
from .test_train import train

PYTHON = Path(__file__).parents[2] / ".venv-xla/bin/python"
TRAINING = """
import json, sys
import torch, torch_xla
torch_xla.device()
from aotpack_loader import load

path, given, donate = sys.argv[1:]
model = load(path, device="xla", trust="all", donate=donate == "True")
args = [arg.to("xla").requires_grad_(arg.requires_grad) for arg in torch.load(given)]
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
losses = []
for _ in range(10):
    optimizer.zero_grad()
    loss = model(*args)
    loss = loss if isinstance(loss, torch.Tensor) else loss[0]
    loss = loss if not loss.dim() else loss.square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
state = {name: value.double().sum().item() for name, value in model.state_dict().items()}
print(json.dumps({"losses": losses, "state": state, "torch": torch.__version__, "compiler": "aotpack" in sys.modules}))
"""


def scan() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Recurrent(by_scan=True), example()


MODELS = {"mlp": models.mlp, "cnn": models.cnn, "gpt": models.gpt, "scan": scan}


@pytest.mark.nightly
@pytest.mark.skipif(not PYTHON.exists(), reason="scripts/setup-xla makes the environment of torch_xla")
@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_ten_steps_on_torch_xla_are_eagers(name: str, donate: bool, tmp_path: Path) -> None:
    model, args = MODELS[name]()
    aotpack.build(copy.deepcopy(model), args, out=tmp_path / "m", targets=("xla",))
    torch.save(args, tmp_path / "args.pt")
    command = [PYTHON, "-c", TRAINING, tmp_path / "m", tmp_path / "args.pt", str(donate)]
    done = subprocess.run(
        command, env={**os.environ, "PJRT_DEVICE": "CPU"}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["torch"].startswith("2.9.")
    assert not told["compiler"]
    if name == "scan":
        model = Squared(model)
    losses = train(model, args)
    torch.testing.assert_close(told["losses"], losses, rtol=1e-4, atol=1e-5)
    expected = {key.removeprefix("inner."): value.double().sum().item() for key, value in model.state_dict().items()}
    assert told["state"] == pytest.approx(expected, rel=1e-3, abs=1e-4)


class Squared(torch.nn.Module):
    """The mean square of a model's first result."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.inner(*args)[0].square().mean()
        return loss


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


class TwoViews(torch.nn.Module):
    """Two parameters over one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = torch.nn.Parameter(torch.randn(4, 4))
        self.part = torch.nn.Parameter(self.whole.detach()[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.whole).sum() + (x @ self.part.t()).sum()


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
