"""Each fix: with all of them its case is eager's, and its hook is reached; with this one left out the case fails.

Cases of Inductor are compiled; those with a fix left out are slow (``slow_fixes``), and run by ``scripts/test-torch``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import aotpack
from aotpack._torch.fixes import applying
from aotpack._torch.fixes.entries import FIXES
from aotpack._torch.fixes.register import Fix

from .harness import ROOT, MismatchError, check, load_case

ELSEWHERE = {
    "decomposition-zeros-without-memory": "tests/conformance, compiled: gradients that are zero",
    "decomposition-lists-of-numbers": "tests/conformance, compiled: numbers for each",
    "inductor-view-of-whole-result": "tests/test_cpu_target.py",
    "aot-lazy-tangents": "tests/conformance, outputs: lazily conjugated results",
    "shapes-convolution-backend": "tests/conformance, shapes: convolutions of any batch",
    "fake-masked-select-of-expanded": "scripts/conformance, masked_select",
    "fake-layouts-of-varying-sizes": "tests/conformance, places: images of any number",
    "aot-views-of-several-outputs": "tests/conformance, outputs: views of several outputs",
    "aot-scan-returns-a-result-twice": "tests/conformance, control flow: scan",
    "partitioner-draws": "tests/conformance, RNG",
    "dynamo-hints-of-values": "tests/conformance, shapes: sizes that depend on data",
    "decomposition-products-as-views": "tests/conformance, outputs: products of batches",
    "decomposition-pools-as-views": "tests/conformance, outputs",
    "decomposition-lstm-of-inference": "tests/conformance, autograd: recurrent layers",
    "decomposition-fractional-pool-gradient": "scripts/conformance, fractional_max_pool3d",
    "decomposition-unsafe-split": "tests/conformance, outputs: unsafe_split",
    "fake-strides-of-views": "tests/conformance, sizes of 1",
    "fake-sizes-of-attention": "tests/conformance, attention of any size",
    "partitioner-compared-values": "tests/conformance, extremes: what is compared is computed once",
    "dynamo-attributes-of-the-model": "tests/test_capture.py",
    "inductor-one-thread-regions": "tests/test_cpu_target.py",
    "inductor-tile-index-twice": "tests/conformance, gradients of a list of indices",
    "inductor-stride-order-guards": "tests/test_sizes_of_one.py",
    "inductor-overlap-guards": "tests/test_sizes_of_one.py",
    "inductor-write-order-after-fusion": "tests/test_cpu_target.py",
    "inductor-extremes-computed-twice": "tests/conformance, extremes scattered",
    "inductor-checks-end-the-process": "tests/test_refusals.py",
    "inductor-integer-division-by-zero": "tests/test_refusals.py",
    "inductor-draws-in-patterns": "tests/conformance, RNG",
    "inductor-order-of-draws": "tests/conformance, RNG",
    "inductor-bernoulli-draws": "tests/conformance, RNG",
}
"""Fixes without a case of their own yet: where they are tested with all fixes. This list only gets shorter."""

NEEDED = [fix for fix in FIXES if fix.is_needed(str(torch.__version__)) and fix.id not in ELSEWHERE]


def parameters(*, left_out: bool) -> list[Any]:
    slow = [pytest.mark.slow_fixes, pytest.mark.slow]
    compiled = {fix.id for fix in NEEDED if "# target: cpu" in (ROOT / fix.case).read_text()}
    return [pytest.param(fix, id=fix.id, marks=slow if fix.id in compiled else ()) for fix in NEEDED]


def test_every_fix_has_a_case() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/torch_fixes/cases").glob("*.py")}
    assert files == {fix.case for fix in FIXES if fix.id not in ELSEWHERE}
    assert set(ELSEWHERE) <= {fix.id for fix in FIXES}


@pytest.mark.parametrize("fix", parameters(left_out=False))
def test_with_all_fixes_a_case_is_eagers(fix: Fix, tmp_path: Path) -> None:
    case = load_case(fix)
    before = applying.calls()[fix.id]
    if case.refused:
        with pytest.raises(aotpack.AotpackError):
            check(case, tmp_path / "case.aotpack")
    else:
        check(case, tmp_path / "case.aotpack")
    assert applying.calls()[fix.id] > before, "its hook was never called"


@pytest.mark.parametrize("fix", parameters(left_out=True))
def test_with_a_fix_left_out_its_case_fails(fix: Fix, tmp_path: Path) -> None:
    case = load_case(fix)
    with applying.without(fix.id):
        if case.refused:
            with pytest.raises(MismatchError):
                check(case, tmp_path / "case.aotpack")
        else:
            with pytest.raises((MismatchError, aotpack.AotpackError)):
                check(case, tmp_path / "case.aotpack")
