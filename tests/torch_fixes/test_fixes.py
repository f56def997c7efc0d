"""Each fix: with all of them its case is eager's, and its hook is reached; with this one left out the case fails.

Cases of Inductor are compiled (``compiled``). Their objects are found in the tests' cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.releases import TORCH, has_avx512

import aotpack
from aotpack._torch.fixes import applying
from aotpack._torch.fixes.entries import FIXES
from aotpack._torch.fixes.register import Fix, minor

from .harness import ROOT, MismatchError, check, load_case
from .trial import attempt

NOT_SHOWN = {
    "decomposition-zeros-without-memory": "2.14",  # Inductor allocates them there; XLA and portable graphs need the fix
    "inductor-defaults-of-kernels": "2.15",  # torch records the default; the fix also refuses an empty list
    "inductor-write-into-complex": "2.14",  # the scheduler keeps this case's order; its rule for views is the same
    "inductor-tile-tails": "2.15",  # what is overwritten is nobody's here; the program of its report aborts there, too
}
"""Fixes whose case passes without them from that release of torch on, and why a build still applies them."""

NOT_SHOWN_BEFORE = {
    "aot-scan-returns-a-result-twice": "2.11",
    "decomposition-fractional-pool-gradient": "2.11",
    "fake-layouts-of-varying-sizes": "2.11",
}
"""Fixes whose case passes without them on earlier releases; other programs may need them there."""

NEEDS_AVX512 = {"inductor-tile-tails"}
"""Fixes whose case passes without them where vectors have eight numbers: tiles have no rest there."""

NEEDED = [fix for fix in FIXES if fix.is_needed(str(torch.__version__))]


def parameters(fixes: Sequence[Fix]) -> list[Any]:
    compiled = {fix.id for fix in fixes if "# target: cpu" in (ROOT / fix.case).read_text()}
    return [pytest.param(fix, id=fix.id, marks=pytest.mark.compiled if fix.id in compiled else ()) for fix in fixes]


def test_every_fix_has_a_case() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/torch_fixes/cases").glob("*.py")}
    assert files == {fix.case for fix in FIXES}


NO_COMPLEX_CODE = pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")


@NO_COMPLEX_CODE
@pytest.mark.parametrize("fix", parameters(FIXES))
def test_with_all_fixes_a_case_is_eagers(fix: Fix, tmp_path: Path) -> None:
    """Also where torch has mended the fault: another part of a build may bring it back."""
    case = load_case(fix)
    before = applying.calls()[fix.id]
    if case.refused:
        with pytest.raises(aotpack.AotpackError):
            check(case, tmp_path / "case.aotpack")
    else:
        check(case, tmp_path / "case.aotpack")
    if fix in NEEDED:
        assert applying.calls()[fix.id] > before, "its hook was never called"


@NO_COMPLEX_CODE
@pytest.mark.turns(3)
@pytest.mark.parametrize("fix", parameters(NEEDED))
def test_with_a_fix_left_out_its_case_fails(fix: Fix, tmp_path: Path) -> None:
    first, end = minor(NOT_SHOWN_BEFORE.get(fix.id, "0.0")), minor(NOT_SHOWN.get(fix.id, "99.0"))
    if not first <= TORCH < end or (fix.id in NEEDS_AVX512 and not has_avx512()):
        pytest.skip("this torch, or this processor, passes the case without the fix")
    case = load_case(fix)
    if case.crashes:
        found = attempt(fix.id, without=True).result
        if found == "same" and fix.id in NEEDS_AVX512:
            pytest.skip("what is overwritten is nobody's in this machine's heap")
        assert found in ("crashed", "differs")
        return
    with applying.without(fix.id):
        if case.refused:
            with pytest.raises(MismatchError):
                check(case, tmp_path / "case.aotpack")
        else:
            with pytest.raises((MismatchError, aotpack.AotpackError)):
                check(case, tmp_path / "case.aotpack")
