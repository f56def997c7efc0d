"""The modules of the original in a loaded bundle: what they print, what they are, and what happens to edits of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from torch import nn

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import CorruptBundleError
from aotpack_loader.format import schema
from aotpack_loader.format.validate import validate_program


class Block(nn.Module):
    """A convolution with everything that has a mode."""

    rate = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU()
        self.scale = 2.0
        self.picked = torch.sigmoid

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.picked(self.act(self.norm(self.conv(x)))) * self.scale * self.rate


class Net(nn.Module):
    """Containers of every kind, a layer under two names, dropout of something and of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(Block(), nn.Dropout(0.25), nn.Dropout(0.0))
        self.head = nn.Linear(4, 2, bias=False)
        self.tasks = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.again = self.layers[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.features(x).mean((2, 3)))
        for layer in (*self.layers, self.again, *self.tasks.values()):
            y = layer(y)
        return y


IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def net_bundle(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("net") / "net.aotpack"
    aotpack.build(net, (IMAGES,), out=out, targets=("portable",))
    return out


# ---------------------------------------------------------------- the document


def test_the_program_has_the_modules_of_the_original(net: Net, net_bundle: Path) -> None:
    with Bundle.open(net_bundle) as bundle:
        program = bundle.program
    names = {module.name: module for module in program.modules}
    assert list(names) == [name for name, _ in net.named_modules(remove_duplicate=False)]
    classes = {name: program.module_classes[module.kind] for name, module in names.items()}
    assert classes["features.0"].name.endswith("test_modules.Block")
    assert classes["features.0"].base == ""
    assert {"rate", "picked"} <= set(classes["features.0"].names)
    assert classes["features.0.norm"].base == "BatchNorm2d"
    assert names["features.0.norm"].text == net.features[0].norm.extra_repr()
    assert names["head"].attributes == {"in_features": 4, "out_features": 2, "bias": None}
    assert names["again"].same_as == "layers.0"


def test_methods_name_the_modes_they_depend_on(net_bundle: Path) -> None:
    with Bundle.open(net_bundle) as bundle:
        methods = bundle.program.methods
    assert methods["train"].flags == {"features.0.norm": True, "features.1": True}
    assert methods["infer"].flags == {"features.0.norm": False, "features.1": False}


def _with_modules(net_bundle: Path, modules: list[schema.Module], **fields: Any) -> schema.Program:
    with Bundle.open(net_bundle) as bundle:
        return structs.replace(bundle.program, modules=modules, module_classes=[schema.ModuleClass("model.Net")], **fields)


def _tree(*paths: tuple[str, str | None]) -> list[schema.Module]:
    return [schema.Module(name, 0, same_as=same) for name, same in (("", None), *paths)]


_TWICE = [item for n in range(1, 30) for item in ((f"m{n}", None), (f"m{n}.x", f"m{n - 1}"), (f"m{n}.y", f"m{n - 1}"))]
"""Each holds the one before twice: more paths than any torch would walk."""


@pytest.mark.parametrize(
    ("modules", "rule"),
    [
        (_tree()[1:] + _tree(("a", None))[1:], "N1"),
        (_tree(("a.b", None)), "N1"),
        (_tree(("a", None), ("a", None)), "N1"),
        (_tree(("a", None), ("b", None), ("a.c", None)), "N1"),
        (_tree(("a", None), ("b", "a"), ("b.c", None)), "N1"),
        (_tree(*((".".join("a" * n), None) for n in range(1, 65))), "N1"),
        ([schema.Module("", 7)], "N1"),
        (_tree(("a", None), ("b", "c"), ("c", None)), "N2"),
        (_tree(("a", None), ("a.b", "a")), "N2"),
        (_tree(("a", None), ("b", "a"), ("c", "b")), "N2"),
        (_tree(("m0", None), *_TWICE), "N2"),
        (_tree(("a", None)), "N3"),
        (_tree(("features", None)), "N4"),
    ],
)
def test_modules_that_make_no_tree(net_bundle: Path, modules: list[schema.Module], rule: str) -> None:
    with pytest.raises(CorruptBundleError, match=f"{rule}: "):
        validate_program(_with_modules(net_bundle, modules), "program")


def test_what_lies_in_a_shared_module_is_tied(net_bundle: Path) -> None:  # N3
    with Bundle.open(net_bundle) as bundle:
        program = bundle.program
    validate_program(program, "program")
    untied = [structs.replace(entry, tied_to=None) for entry in program.state]
    with pytest.raises(CorruptBundleError, match=r"N3: 'again.weight' lies in the same module as 'layers.0.weight'"):
        validate_program(structs.replace(program, state=untied), "program")
