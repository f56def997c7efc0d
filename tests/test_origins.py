"""A bundle records the module and the source line of every node."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.format import schema


def origins_of(path: Path) -> tuple[schema.Origins, dict[str, schema.Graph]]:
    with Bundle.open(path) as bundle:
        found, method = bundle.origins(), bundle.program.methods["train"]
        assert found is not None
        assert method.backward is not None
        graphs = {"train.forward": bundle.graph(method.forward), "train.backward": bundle.graph(method.backward.graph)}
    return found, graphs


def modules_by_operator(found: schema.Origins, graphs: dict[str, schema.Graph], key: str) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = {}
    for node, module in zip(graphs[key].nodes, found.graphs[key].modules, strict=True):
        modules.setdefault(node.op, []).append(found.modules[module])
    return modules


def test_nodes_of_both_graphs_have_modules_and_lines(portable_digits_bundle: Path) -> None:
    found, graphs = origins_of(portable_digits_bundle)
    forward, backward = (modules_by_operator(found, graphs, f"train.{half}") for half in ("forward", "backward"))
    assert forward["aten.convolution.default"] == ["features.0", "features.3", "features.6"]
    assert backward["aten.convolution_backward.default"] == ["features.6", "features.3", "features.0"]
    assert forward["aten.mean.dim"] == [""]
    assert set(found.lines) == {"model.py:21", "model.py:22"}


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_every_front_end_records(front_end: str, tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(2, 2)])})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks["a"][0](x).sin()

    out = tmp_path / "model.aotpack"
    aotpack.build(Model(), (torch.ones(3, 2),), out=out, targets=("portable",), methods=("train",), front_ends=(front_end,))
    found, graphs = origins_of(out)
    forward = modules_by_operator(found, graphs, "train.forward")
    backward = modules_by_operator(found, graphs, "train.backward")
    assert forward["aten.addmm.default"] == ["blocks.a.0"]
    assert set(backward["aten.mm.default"]) == {"blocks.a.0"}
    assert forward["aten.sin.default"] == [""]
    assert [line.partition(":")[0] for line in found.lines] == ["test_origins.py"]


def test_a_sum_of_gradients_is_in_the_module_around_what_it_adds(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.sin()
            return self.first(x) * self.second(x)

    out = tmp_path / "model.aotpack"
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Block()))
    aotpack.build(model, (torch.ones(3, 2),), out=out, targets=("portable",), methods=("train",))
    found, graphs = origins_of(out)
    assert modules_by_operator(found, graphs, "train.backward")["aten.add.Tensor"] == ["1.0"]


def test_a_load_does_not_read_them(portable_digits_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(bundle: Bundle) -> None:
        raise AssertionError("a load read the origins")

    monkeypatch.setattr(Bundle, "origins", read)
    aotpack.load(portable_digits_bundle, backend="portable")
