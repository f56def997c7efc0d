"""What ``load(..., device="xla")`` says where it cannot."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FreshProcess
from msgspec import structs

import aotpack
from aotpack.targets.xla import XlaTarget
from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices import xla
from aotpack_loader.errors import AotpackError, CorruptBundleError, InputError, TargetError, TrustError
from aotpack_loader.format import schema

from . import models
from .test_train import build


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(*models.mlp(), tmp_path_factory.mktemp("xla") / "model.aotpack")


def test_without_a_device_the_bundle_says_how_to_ask(bundle: Path) -> None:
    with pytest.raises(TargetError, match="runs on an XLA device: load with device='xla'"):
        load(bundle)
    assert load(bundle, backend="xla").aotpack.backend == "xla"


def test_a_bundle_without_the_target(tmp_path: Path) -> None:
    path = tmp_path / "model.aotpack"
    model, args = models.mlp()
    aotpack.build(model, args, out=path, targets=("portable",), front_ends=("export",))
    with pytest.raises(TargetError, match="portable: needs tensors with memory and strides, which device='xla' does not have"):
        load(path, device="xla")
    with pytest.raises(TargetError, match="has no target 'xla'"):
        load(path, backend="xla")


def test_a_device_that_is_not_there(bundle: Path) -> None:
    with pytest.raises(TargetError, match=r"There is no device xla:7.*\n.*torch_xla has xla:0"):
        load(bundle, device="xla:7")


def test_a_cpu_tensor_is_refused_by_path(bundle: Path, device: torch.device) -> None:
    _, (x, labels) = models.mlp()
    with pytest.raises(InputError, match=r"x: expected float32\[8,16\] on xla:0, got float32\[8,16\]"):
        load(bundle, device="xla")(x, labels.to(device))


def test_a_computation_needs_trust(bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AOTPACK_STATE", str(tmp_path / "another"))
    with pytest.raises(TrustError):
        load(bundle, device="xla")
    load(bundle, device="xla", trust="all")


def test_checks_of_memory_are_refused(bundle: Path) -> None:
    with pytest.raises(AotpackError, match="tensors on XLA devices do not have"):
        load(bundle, device="xla", check="full")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"packages": {"torch_xla": "==2.8.*"}}, r"lowered for torch_xla ==2\.8\.\*, this is 2\.9\.0.*aotpack-loader\[xla\]"),
        ({"torch": "==2.8.*"}, r"lowered for torch ==2\.8\.\*, this is 2\.9\.0"),
    ],
)
def test_what_was_lowered_for_another_release(
    bundle: Path, change: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = structs.replace(Bundle.open(bundle).targets["xla"], **change)
    monkeypatch.setattr(Bundle, "targets", property(lambda self: {"xla": other}))
    with pytest.raises(TargetError, match=rf"No target of this bundle can run here\.\n  xla: {reason}"):
        load(bundle, device="xla")


def test_results_of_other_types_are_refused(bundle: Path, device: torch.device) -> None:  # X3
    opened = Bundle.open(bundle)
    target = opened.targets["xla"]
    found = target.xla["infer.forward"]
    other = structs.replace(found, results=[schema.ArrayType("float32", [2])])
    lying = structs.replace(target, xla={**target.xla, "infer.forward": other})
    with pytest.raises(CorruptBundleError, match=r"X3: the computation of infer\.forward returns"):
        xla.XlaDevice(opened, lying, device).executable("infer.forward", opened.program.methods["infer"].forward, (6, 1))


@pytest.mark.parametrize(
    ("variables", "before", "message"),
    [
        (
            {},
            "x = torch.ones(1, requires_grad=True); (x * 2).sum().backward()",
            "a backward pass ran before torch_xla made its device.\nLoad the bundle in a fresh process; or call",
        ),
        ({"PJRT_DEVICE": "TPU"}, "", "torch_xla has no device here"),
    ],
)
def test_a_process_that_cannot(bundle: Path, variables: dict[str, str], before: str, message: str) -> None:
    code = f"""
import sys, torch
from aotpack_loader import load
from aotpack_loader.errors import TargetError
{before}
try:
    load(sys.argv[1], device="xla")
except TargetError as error:
    print(error)
"""
    environment = {**os.environ, **variables, "TPU_SKIP_MDS_QUERY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, bundle], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert message in done.stdout, done.stderr[-3000:]


def test_a_process_builds_loads_and_builds_again(tmp_path: Path, fresh_process: FreshProcess) -> None:
    """A build takes gradients while it traces: torch_xla makes its device first."""
    told = fresh_process(
        """
        import json, sys
        import torch
        import aotpack
        from aotpack_loader import load

        linear, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
        found = []
        for path in sys.argv[1:]:
            aotpack.build(linear, (x,), out=path, targets=("xla",))
            model = load(path, device="xla")
            model(x.to("xla")).sum().backward()
            found.append(model.weight.grad.cpu().tolist())
        print(json.dumps(found))
        """,
        tmp_path / "one",
        tmp_path / "two",
    )
    assert told == [[[4.0] * 3] * 2] * 2


def test_devices_that_a_build_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build chooses the CPU where nothing says which: where there may be a TPU, it warns."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found("torch" if name == "libtpu" else name))
    XlaTarget()
    monkeypatch.delenv("PJRT_DEVICE")
    with pytest.warns(UserWarning, match="this process can use no TPU any more"):
        XlaTarget()
