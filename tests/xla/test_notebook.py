"""The cases of the notebook that the project was created from, by name, on XLA devices; test_recompute.py has its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conformance.cases.recompute import NOTEBOOK, layers, recurrent, two_pytrees
from torch._subclasses.fake_tensor import FakeTensorMode

import aotpack
from aotpack_loader.archive.bundle import Bundle
from devtools.harness import Case

from . import rows
from .models import assert_computes_layers


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", NOTEBOOK, ids=[case.name for case in NOTEBOOK])
def test_eager_and_bundle_agree(case: Case, tmp_path: Path) -> None:
    """Values, gradients, and which result is which: ``return a, w`` with ``w = a`` returns one tensor twice."""
    assert rows.run(case, tmp_path) == rows.Outcome("pass")


def build(function: Callable[..., object], args: tuple[object, ...], path: Path) -> Bundle:
    aotpack.build(function, args, out=path, targets=("xla:cpu",), cache=False)  # type: ignore[arg-type]
    return Bundle.open(path)


def test_arguments_are_in_the_callers_order_whatever_xlas_is(tmp_path: Path) -> None:
    """Carry before x, dictionary by dictionary; the computation's own parameters name theirs."""
    (carry, x), _ = two_pytrees(torch.Generator().manual_seed(0))
    bundle = build(recurrent, (carry, x), tmp_path / "m")
    method = bundle.program.methods["train"]
    assert [leaf.path for leaf in method.leaves] == [
        "carry['a']",
        "carry['b']",
        "x['weights']",
        "x['biases']",
    ]
    order = [parameter.input for parameter in bundle.targets["xla:cpu"].xla["train.forward"].parameters]
    assert sorted(order) == [0, 1, 2, 3]  # type: ignore[type-var]
    shapes = [parameter.type.shape for parameter in bundle.targets["xla:cpu"].xla["train.forward"].parameters]
    assert [shapes[order.index(i)] for i in range(4)] == [[2, 3], [2, 3], [3, 3], [2, 3]]


@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_extraction_from_examples_without_data(kind: str, tmp_path: Path) -> None:
    """The notebook builds from fake tensors; meta tensors do as well. What is built runs on real ones."""
    with FakeTensorMode() if kind == "fake" else torch.device("meta"):
        examples = torch.empty(4, 4, requires_grad=True), torch.empty(4, 4)
    build(layers, examples, tmp_path / "m")
    assert_computes_layers(tmp_path / "m", torch.randn(4, 4, requires_grad=True), torch.randn(4, 4))
