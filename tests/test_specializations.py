"""Sizes that are asked for by name, for targets whose code is for fixed sizes; tests/xla has what such code computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from msgspec import structs
from torch.export import Dim

import aotpack
from aotpack.pipeline.reopen import graphs_of
from aotpack.pipeline.specializations import specialize
from aotpack.targets.xla.specialize import at_sizes
from aotpack.tools.cli import main
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError, CorruptBundleError
from aotpack_loader.format import schema
from aotpack_loader.format.validate_xla import validate_computations


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.reshape(x.shape[1], x.shape[0]) * x.shape[0], y.repeat(x.shape[0] // 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("specialized") / "model.aotpack"
    batch, length = Dim("batch", min=2, max=64), Dim("length", min=2, max=64)
    args = (torch.randn(4, 6, requires_grad=True), torch.randn(6))
    shapes = ({0: batch, 1: length}, {0: length})
    aotpack.build(Model(), args, out=out, targets=("portable",), dynamic_shapes=shapes)
    return out


def test_symbols_keep_the_names_of_their_dimensions(path: Path) -> None:
    for method in Bundle.open(path).program.methods.values():
        assert {symbol.label for symbol in method.symbols} == {"batch", "length"}


def test_graphs_at_sizes(path: Path) -> None:
    """No size is left to be computed, and the graphs compute what the model does."""
    asked = [{"batch": 2, "length": 3}, {"batch": 8, "length": 5}]
    graphs = specialize(graphs_of(Bundle.open(path)), asked)
    item = next(item for item in graphs if item.key == "infer.forward")
    assert [set(sizes.values()) for sizes in item.specializations] == [{2, 3}, {8, 5}]
    for sizes, by_symbol in zip(asked, item.specializations, strict=True):
        module = at_sizes(item, by_symbol)
        assert all(isinstance(node.meta["val"], torch.Tensor) for node in module.graph.nodes if node.op == "call_function")
        x, y = torch.randn(sizes["batch"], sizes["length"]), torch.randn(sizes["length"])
        torch.testing.assert_close(list(module(x, y)), list(Model()(x, y)))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"batch": 8}, r"train: no value for length=2\.\.64"),
        ({"batch": 8, "length": 65}, r"train: 65 is not in the range of length=2\.\.64"),
        (
            {"batch": 8, "length": 8, "width": 1},
            r"no size is called 'width'(?s:.*)Its sizes: (batch|length)=2\.\.64, (batch|length)=2\.\.64\.",
        ),
        ({"batch": 8, "length": True}, "length is True, not an integer"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        specialize(graphs_of(Bundle.open(path)), [asked])


def test_sizes_against_a_constraint_are_refused(path: Path) -> None:
    graphs = graphs_of(Bundle.open(path))
    method = graphs[0].method
    assert method is not None
    name = next(symbol.name for symbol in method.symbols if symbol.label == "batch")
    constrained = structs.replace(method, constraints=[f"{name} % 4 == 0"])
    changed = [replace(item, method=constrained) for item in graphs]
    with pytest.raises(BuildError, match=rf"the model takes only sizes with {name} % 4 == 0"):
        specialize(changed, [{"batch": 6, "length": 6}])


def test_a_program_of_fixed_sizes_takes_none(tiny_bundle: Path) -> None:
    with pytest.raises(BuildError, match="no size of this program varies"):
        specialize(graphs_of(Bundle.open(tiny_bundle)), [{"batch": 8}])


def test_targets_that_take_all_sizes_refuse_them(path: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="targets whose code is for fixed sizes; asked for: portable"):
        aotpack.compile_bundle(path, ("portable",), out=tmp_path / "out.aotpack", specializations=[{"batch": 8, "length": 8}])


def test_the_command_line_takes_them(path: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> Any:
        command = ["compile", str(path), "--target", "portable", "-o", str(tmp_path / "out.aotpack"), *arguments]
        return CliRunner().invoke(main, command)

    assert "is not of the form batch=8" in run("--specialize", "batch").output
    assert "for fixed sizes; asked for: portable" in run("--specialize", "batch=8, length=8").output


FLOATS = schema.ArrayType("float32", [1])


@pytest.mark.parametrize(
    ("sizes", "changes", "message"),
    [
        ([{"batch": 8}], {}, "C25: there is a size for each symbol"),
        ([{"batch": 8, "length": 99}], {}, "C25: a size is not in the range"),
        ([{"batch": 8, "length": 9}] * 2, {}, "C25: these sizes are there twice"),
        ([{"batch": 8, "length": 9}], {"backward": None}, "C14: there is a computation for each graph"),
        ([{"batch": 8, "length": 9}], {"forward": schema.XlaExecutable([], [FLOATS], [0])}, "C14: 1 outputs for a graph with 2"),
    ],
)
def test_documents_that_do_not_fit(path: Path, sizes: list[dict[str, int]], changes: Any, message: str) -> None:  # C14, C25
    program = Bundle.open(path).program
    method = program.methods["train"]
    assert method.backward is not None
    empty = schema.Descriptor("code", "sha256:" + "0" * 64, 1)
    forward = schema.XlaExecutable([], [FLOATS], [0] * method.num_outputs, empty)
    backward = schema.XlaExecutable([], [FLOATS], [0], empty)
    by_symbol = [{symbol.name: given[symbol.label] for symbol in method.symbols if symbol.label in given} for given in sizes]
    codes = [schema.Specialization(values, forward, backward) for values in by_symbol]
    target = schema.Target("xla", "xla", "xla", specializations={"train": [structs.replace(code, **changes) for code in codes]})
    with pytest.raises(CorruptBundleError, match=message):
        validate_computations(target, program, "target")
    with pytest.raises(CorruptBundleError, match="C14: only code for XLA has sizes of its own"):
        validate_computations(structs.replace(target, kind="aoti"), program, "target")
