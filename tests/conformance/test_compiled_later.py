"""Cases whose bundles are taken up again: graphs come back without loss, and native code made from them is eager's equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import aotpack
from devtools.harness import build, compare
from devtools.restored import check_restored

from .table import CASES

NAMES = (
    "input mutation: metadata and data",
    "buffer mutated: view of a buffer",
    "BatchNorm in a network",
    "RNG dropout: two of them, eager's numbers under one seed",
    "shapes: dynamic batch and sequence",
    "shapes: unbacked, dynamic batch beside it",
    "recompute: non-reentrant",
    "control flow: cond, dynamic batch",
    "control flow: scan, closures over parameters",
    "control flow: nested compile regions, identical layers",
)


RESTORED = (
    *NAMES,
    "outputs: alias of intermediate, base also output",
    "input mutation: metadata only, t_()",
    "outputs: multi-output views of an intermediate, unbind and base",
    "RNG dropout: two of them, eager's numbers under one seed",
    "tied weights",
    "shapes: unbacked, numbers as results",
    "shapes: unbacked, unique",
    "shapes: other strides at call, dynamic",
    "control flow: cond in cond, dictionary of results",
    "control flow: while_loop in while_loop",
    "control flow: map, dynamic length",
    "control flow: flex attention, mask made inside",
    "control flow: nested compile regions in regions",
    "second derivatives: one tangent missing",
    "subclasses: dynamic batch",
    "custom operators: writes to several, with a result",
    "shapes: an integer argument that varies",
)


@pytest.mark.turns(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted({*RESTORED}))
def test_graphs_come_back(name: str, tmp_path: Path) -> None:
    """The fake values say all that the document says of a value: types, sizes, strides, symbols, several results."""
    (case,) = (case for case in CASES if case.name == name)
    build(case, tmp_path / "case.aotpack")
    check_restored(tmp_path / "case.aotpack")


@pytest.mark.turns(3)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_eager_and_compiled_bundle_agree(name: str, tmp_path: Path) -> None:
    """Values, gradients, mutations, aliases; the portable graphs, which were partitioned for eager's operators, run as code."""
    torch.set_num_threads(1)
    (case,) = (case for case in CASES if case.name == name)
    source, out = tmp_path / "portable.aotpack", tmp_path / "native.aotpack"
    build(case, source)
    aotpack.compile_bundle(source, ["cpu"], out=out)
    compare(case, out, "cpu")
