"""Each kind of target is compiled from graphs of its own, which are stored once where they are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conftest import FreshProcess
from torch import Tensor, nn

import aotpack
from aotpack.tools.cli import main
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.manifests import require_one_model
from aotpack_loader.errors import CorruptBundleError
from aotpack_loader.format.schema import Program


class Flipped(nn.Module):
    """Inductor decomposes these operators; eager has kernels for them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return nn.functional.softmax(self.norm(self.first(x.flip(1))), -1).square().sum()


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x


def built(model: nn.Module, out: Path, *targets: str) -> dict[str, Program]:
    aotpack.build(model, (torch.ones(2, 4),), out=out, targets=targets, methods=("train",), cache="objects")
    with Bundle.open(out) as bundle:
        return {name.partition(":")[0]: bundle.for_target(name).program for name in bundle.targets}


def graphs(program: Program) -> list[str]:
    halves = [(method.forward, None if method.backward is None else method.backward.graph) for method in program.methods.values()]
    return [graph.digest for pair in halves for graph in pair if graph is not None]


@pytest.mark.compiled
def test_portable_has_the_same_graphs_beside_cpu(tmp_path: Path) -> None:
    alone = built(Flipped(), tmp_path / "alone", "portable")
    beside = built(Flipped(), tmp_path / "beside", "cpu", "portable")
    assert graphs(beside["portable"]) == graphs(alone["portable"]) != graphs(beside["cpu"])
    built(Flipped(), tmp_path / "turned", "portable", "cpu")
    assert (tmp_path / "turned").read_bytes() == (tmp_path / "beside").read_bytes()


TRAIN = """
import json, sys, torch, aotpack_loader
found = []
for backend in sys.argv[2:]:
    model = aotpack_loader.load(sys.argv[1], backend=backend, trust="all")
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    for _ in range(2):
        model(x).backward()
    found.append([model.first.weight.grad.tolist(), model.calls.item()])
    if backend == "portable":
        assert not {"sympy", "torch._dynamo", "torch._inductor"} & {*sys.modules}
print(json.dumps(found))
"""


@pytest.mark.compiled
def test_a_fresh_process_trains_each_target(tmp_path: Path, fresh_process: FreshProcess) -> None:
    out = tmp_path / "m"
    built(Flipped(), out, "cpu", "portable")
    model, x = Flipped(), torch.linspace(-1, 1, 8).reshape(2, 4)
    for _ in range(2):
        model(x).backward()
    expected = [model.first.weight.grad, model.calls]
    for found in fresh_process(TRAIN, out, "portable", "cpu"):
        for value, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.tensor(value), wanted.detach())


@pytest.mark.compiled
def test_equal_programs_are_stored_once(tmp_path: Path) -> None:
    found = built(Doubled(), tmp_path / "m", "cpu", "portable")
    assert found["cpu"] == found["portable"]
    assert not found["cpu"].features


@pytest.mark.compiled
def test_a_further_target_takes_the_graphs_of_its_kind(tmp_path: Path) -> None:
    before = built(Flipped(), tmp_path / "m", "cpu:x86-64-v3", "portable")
    aotpack.compile_bundle(tmp_path / "m", ["cpu:x86-64-v2"], out=tmp_path / "more", cache="objects")
    with Bundle.open(tmp_path / "more") as bundle:
        assert graphs(bundle.for_target("cpu:x86-64-v2").program) == graphs(before["cpu"])
        assert graphs(bundle.for_target("portable").program) == graphs(before["portable"])


@pytest.mark.compiled
def test_inspect_shows_the_graphs_of_a_target(tmp_path: Path) -> None:
    out = tmp_path / "m"
    built(Flipped(), out, "cpu:x86-64-v3", "portable")
    run = CliRunner().invoke
    assert "of cpu:x86-64-v3; --target portable shows its own" in run(main, ["inspect", str(out)]).output
    drawn = ["inspect", str(out), "--graph", "train.forward", "--target"]
    assert "native_layer_norm" in run(main, [*drawn, "portable"]).output
    assert "native_layer_norm" not in run(main, [*drawn, "cpu:x86-64-v3"]).output
    assert "It has: cpu:x86-64-v3, portable." in run(main, [*drawn, "tpu"]).output


@pytest.mark.compiled
def test_programs_of_other_models_are_refused(tmp_path: Path) -> None:
    first, second = built(Flipped(), tmp_path / "m", "cpu", "portable").values()
    require_one_model([first, second])
    other: Any = built(Doubled(), tmp_path / "other", "portable")["portable"]
    with pytest.raises(CorruptBundleError, match=r"not of one program"):
        require_one_model([first, other])
