"""What of XLA targets is true where neither jax nor torch_xla is; tests/xla has the rest."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs

import aotpack_loader
from aotpack.targets.xla import XlaTarget, aot
from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices.backends import unfit
from aotpack_loader.devices.pjrt import PjrtDevice
from aotpack_loader.devices.xla import XlaDevice, unsupported, without_strides
from aotpack_loader.errors import BuildError, CorruptBundleError, TargetError
from aotpack_loader.format import media_types, schema
from aotpack_loader.format.donations import of_backward
from aotpack_loader.format.validate_xla import validate_computations

HLO = schema.Descriptor(media_types.CODE_HLO, "sha256:" + "0" * 64, 1)
FLOATS = schema.ArrayType("float32", [5, 4])
WITHOUT = pytest.mark.skipif(importlib.util.find_spec("torch_xla") is not None, reason="torch_xla is there")


def target(**fields: object) -> schema.Target:
    return schema.Target("xla", "xla", "xla", **fields)  # type: ignore[arg-type]


@pytest.fixture
def program(tiny_bundle: Path) -> schema.Program:
    return Bundle.open(tiny_bundle).program


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"torch": "==1.2.*"}, "lowered for torch ==1.2.*, this is"),
        ({"packages": {"pytest": "==1.2.*"}}, "lowered for pytest ==1.2.*, this is"),
        ({"packages": {"no-such-package": ">=1"}}, "needs no-such-package >=1, which is not installed"),
        pytest.param({}, "needs torch_xla: pip install 'aotpack-loader[xla]'", marks=WITHOUT),
    ],
)
def test_why_a_target_does_not_fit(program: schema.Program, fields: dict[str, object], reason: str) -> None:
    assert unfit(target(**fields), program).startswith(reason)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device": "tpu", "topology": "v5e:2x2"}, "is code for tpu v5e:2x2, which torch_xla cannot load"),
        ({"device": "cpu", "torch": "==1.2.*"}, "compiled for torch ==1.2.*, this is"),
        ({"device": "cpu", "packages": {"pytest": "==1.2.*"}}, "compiled for pytest ==1.2.*, this is"),
        ({"device": "cpu", "architecture": "s390x"}, "built for s390x, this machine is"),
        pytest.param(
            {"device": "cpu", "packages": {"jaxlib": "==0.10.2"}},
            "needs jaxlib ==0.10.2, which is not installed: pip install 'aotpack-loader[xla-cpu]'",
            marks=pytest.mark.skipif(importlib.util.find_spec("jaxlib") is not None, reason="jaxlib is there"),
        ),
    ],
)
def test_why_compiled_code_does_not_fit(program: schema.Program, fields: dict[str, Any], reason: str) -> None:
    assert unfit(schema.Target("xla:cpu", "xla", **fields), program).startswith(reason)


def test_devices(tiny_bundle: Path) -> None:
    with pytest.raises(TargetError, match="portable: needs tensors with memory and strides, which device='xla' does not have"):
        load(tiny_bundle, device="xla")
    with pytest.raises(TargetError, match=r"device=cuda: torch .* has no such device here"):
        load(tiny_bundle, device="cuda")
    with pytest.raises(TargetError, match="device='abacus' is not a device"):
        load(tiny_bundle, device="abacus")
    assert load(tiny_bundle, device="cpu").aotpack.backend == "portable"


@pytest.mark.parametrize("variant", ["", "cpu"])
def test_a_build_says_what_it_needs(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(aot, "version", missing)
    with pytest.raises(BuildError, match=r"Compiling for XLA needs jax\.\npip install 'aotpack\[xla\]'"):
        XlaTarget(variant)


def test_packages_that_cannot_be_imported(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch_xla's library with another torch: both are installed, and the linker finds a symbol missing."""
    opened = Bundle.open(tiny_bundle)
    for package in ("_torch_xla_compat", "_jax_compat"):
        monkeypatch.delattr(aotpack_loader, package, raising=False)
        monkeypatch.setitem(sys.modules, f"aotpack_loader.{package}", None)
    with pytest.raises(TargetError, match=r"torch_xla cannot be imported with torch 2\..*\n.*torch of its own release"):
        XlaDevice(opened, target(), torch.device("xla"))
    with pytest.raises(TargetError, match=r"xla:cpu needs jax, which cannot be imported: "):
        PjrtDevice(opened, schema.Target("xla:cpu", "xla", "cpu"))


@pytest.mark.parametrize(
    ("computation", "message"),
    [
        (schema.XlaExecutable([schema.XlaParameter(FLOATS, 9)], [FLOATS], [0] * 5, HLO), "index 9 is out of range"),
        (
            schema.XlaExecutable([schema.XlaParameter(FLOATS, 0)] * 2, [FLOATS], [0] * 5, HLO),
            "an input of the graph is two parameters",
        ),
        (schema.XlaExecutable([], [FLOATS], [1] * 5, HLO), "index 1 is out of range, there are 1"),
        (schema.XlaExecutable([], [FLOATS], [schema.GivenInput(7)] * 5, HLO), "index 7 is out of range"),
        (schema.XlaExecutable([], [FLOATS], [schema.ResultView(3, [])] * 5, HLO), "index 3 is out of range, there are 1"),
        (schema.XlaExecutable([], [FLOATS], [0] * 9, HLO), "9 outputs for a graph with"),
        (schema.XlaExecutable([], [FLOATS], [0] * 5), "there are results and no computation"),
    ],
)
def test_computations_fit_their_graphs(program: schema.Program, computation: schema.XlaExecutable, message: str) -> None:  # C14
    with pytest.raises(CorruptBundleError, match=f"C14: {message}"):
        validate_computations(target(xla={"train.forward": computation}), program, "target")


def test_what_needs_strides_or_addresses_is_refused(program: schema.Program) -> None:
    method = program.methods["train"]
    for changed, message in (
        (
            {"mutations": [schema.Mutation(0, 0, "metadata")]},
            "changes sizes, strides or the storage of an argument in place (metadata)",
        ),
        ({"rng": "eager"}, "draws eager's random numbers"),
        ({"primals": [schema.SyntheticBasePrimal([], "float32", 4)]}, "writes to arguments that share memory"),
    ):
        (problem,) = unsupported("train", structs.replace(method, **changed))
        assert message in problem.message
    first = program.state[0]
    twice = structs.replace(program, state=[first, structs.replace(first, name="other")])
    with pytest.raises(TargetError, match=r"other: shares its memory with linear\.weight"):
        without_strides(twice)


def test_the_pins_are_the_same_everywhere() -> None:
    root = Path(__file__).resolve().parent.parent
    loader = tomllib.loads((root / "loader" / "pyproject.toml").read_text())["project"]
    installed = (root / "scripts" / "requirements-xla.txt").read_text().split()
    pins = [pin for extra in ("xla", "xla-cpu") for pin in loader["optional-dependencies"][extra]]
    assert set(pins) <= set(installed)
    tested = (root / "scripts" / "constraints.txt").read_text().split()
    assert set(loader["optional-dependencies"]["xla-cpu"]) <= set(tested)


@pytest.mark.parametrize(
    ("forward", "backward", "message"),
    [
        ([1], [], "C26: input 1 may not be donated"),  # a primal that nothing writes to
        ([0], [], ""),
        ([], [0], ""),
        ([], [1], "C26: input 1 may not be donated"),  # saved, and a result as well
        ([], [2], "C26: input 2 may not be donated"),  # a primal
        ([], [9], "C26: input 9 may not be donated"),
        ([], [0, 0], "C26: an input is donated twice"),
    ],
)
def test_whose_memory_may_be_taken(program: schema.Program, forward: list[int], backward: list[int], message: str) -> None:  # C26
    method = program.methods["train"]
    saved = [schema.SavedOutput(1, donated=True), schema.SavedOutput(2, donated=True), schema.SavedPrimal(1)]
    assert method.backward is not None
    changed = structs.replace(
        method,
        primals=[schema.ParameterPrimal("a"), schema.ParameterPrimal("b")],
        num_outputs=3,
        mutations=[schema.Mutation(0, 0)],
        results=[schema.FreshResult(2)],
        subclasses=[],
        backward=structs.replace(method.backward, saved=saved, tangents=[], gradients=[0, None], subclasses=[]),
    )
    parameters = [schema.XlaParameter(FLOATS, i) for i in range(3)]
    computations = {
        "train.forward": schema.XlaExecutable(parameters[:2], [FLOATS] * 3, [0, 1, 2], HLO, donated=forward),
        "train.backward": schema.XlaExecutable(parameters, [FLOATS], [0], HLO, donated=backward),
    }
    changed_program = structs.replace(program, methods={"train": changed})
    if not message:
        validate_computations(target(xla=computations), changed_program, "target")
        return
    with pytest.raises(CorruptBundleError, match=message):
        validate_computations(target(xla=computations), changed_program, "target")


def test_what_a_result_shares_is_not_donated(program: schema.Program) -> None:  # C26
    """Positions that serve two outputs, and outputs that are an input."""
    method = program.methods["train"]
    assert method.backward is not None
    saved = [schema.SavedOutput(i, donated=True) for i in (0, 1, 2, 2)]
    method = structs.replace(method, mutations=[], results=[], backward=structs.replace(method.backward, saved=saved))
    forward = schema.XlaExecutable([], [FLOATS] * 2, [0, schema.GivenInput(0), 1, 0], HLO)
    assert of_backward(method, forward) == frozenset()
    assert of_backward(method, structs.replace(forward, outputs=[0, schema.GivenInput(0), 1, 1])) == {0}
    assert of_backward(method, structs.replace(forward, outputs=[0, schema.ResultView(0, []), 1, 1])) == frozenset()
