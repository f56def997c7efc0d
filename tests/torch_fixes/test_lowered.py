"""Each fix of Inductor acts on the code of its case: its hook is reached, and without it the code is different.

``test_fixes`` compiles the same cases and runs them. This needs no compiler, so it runs where a torch makes no native code.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sympy
import torch
from conftest import compiles_native_code
from support.releases import has_avx512
from support.selection import nightly
from torch.utils._sympy.functions import ModularIndexing

import aotpack
from aotpack._torch.fixes import applying
from aotpack._torch.fixes.entries import FIXES
from aotpack._torch.fixes.inductor.indices import keep_signs_of_indices
from aotpack._torch.fixes.register import Fix

from .harness import ROOT, check, load_case
from .lowering import lowered_only
from .test_fixes import NEEDS_AVX512


def compiled(fix: Fix) -> bool:
    return fix.is_needed(str(torch.__version__)) and "# target: cpu" in (ROOT / fix.case).read_text()


def code_of(fix: Fix, out: Path) -> list[str]:
    """The code of a case; a refusal of its build in place of the code."""
    case = load_case(fix)
    try:
        with lowered_only() as sources:
            check(case, out)
    except aotpack.AotpackError as error:
        return [type(error).__name__]
    return sources


@pytest.mark.skipif(compiles_native_code() and not nightly(), reason="test_fixes compiles these cases")
@pytest.mark.parametrize("fix", [pytest.param(fix, id=fix.id) for fix in FIXES if compiled(fix)])
def test_a_fix_changes_the_code_of_its_case(fix: Fix, tmp_path: Path) -> None:
    before = applying.calls()[fix.id]
    fixed = code_of(fix, tmp_path / "with.aotpack")
    assert applying.calls()[fix.id] > before, "its hook was never called"
    if fix.id in NEEDS_AVX512 and not has_avx512():
        return
    with applying.without(fix.id):
        assert code_of(fix, tmp_path / "without.aotpack") != fixed


KEEPS_SIGNS = next(fix for fix in FIXES if fix.id == "inductor-negative-indices")


@pytest.mark.skipif(not compiled(KEEPS_SIGNS), reason="this torch lacks the fault")
def test_torch_simplifies_as_before_after_a_fix_of_indices() -> None:
    """sympy remembers what an expression was simplified to."""
    y = sympy.Symbol("y", integer=True)

    def simplified() -> str:
        return str(ModularIndexing(y + 4, sympy.Integer(1), sympy.Integer(4)))

    sympy.core.cache.clear_cache()
    before = simplified()
    with keep_signs_of_indices():
        fixed = simplified()
    assert fixed != before
    assert simplified() == before
