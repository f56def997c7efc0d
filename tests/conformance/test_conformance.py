"""Every case of the table, in process, on the portable target.

A commit runs the cases that a change touches and one in six of the others (``support/selection.py``). Of those with native
code it runs one in three.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.selection import Entered
from torch._subclasses.fake_tensor import FakeTensorMode

import aotpack
from aotpack_loader.errors import BuildError
from devtools.harness import Case, build, case, module_case, run, t

from .cases.recompute import layers
from .table import CASES, REFUSED, XFAIL


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


_KEPT = os.environ.get("AOTPACK_TEST_CACHE")
ENTERED = Entered(Path(_KEPT, "rows") if _KEPT else None)


def _parameter(case: Case) -> object:
    marks = [pytest.mark.turns(3 if "cpu" in case.targets else 6, touched=functools.partial(ENTERED.is_touched, case.name))]
    if case.name in XFAIL:
        marks.append(pytest.mark.xfail(strict=True, reason=XFAIL[case.name]))
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", [_parameter(case) for case in CASES])
def test_eager_and_bundle_agree(case: Case, tmp_path: Path) -> None:
    """What a caller can see of every call is the same; what cannot be kept true is refused at build."""
    out = tmp_path / "case.aotpack"
    # Copies of this process lower graphs for the CPU, so what such a row enters is not noted.
    with ENTERED.noting(case.name, functions="cpu" not in case.targets):
        _check(case, out)


def _check(case: Case, out: Path) -> None:
    if case.name in REFUSED:
        with pytest.raises(BuildError) as caught:
            build(case, out)
        assert re.search(REFUSED[case.name], str(caught.value), re.DOTALL)
        assert list(out.parent.iterdir()) == []
    else:
        run(case, out)


def test_tables_name_cases() -> None:
    """Names are distinct, and each refusal and expected failure belongs to a case."""
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert (REFUSED.keys() | XFAIL.keys()) <= set(names)
    assert not REFUSED.keys() & XFAIL.keys()


@torch.library.custom_op("aotpack_conformance::observed", mutates_args=())
def observed(x: torch.Tensor) -> torch.Tensor:
    """Notes when it runs on real data."""
    RAN.append(x.shape)
    return x * 2


@observed.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


RAN: list[torch.Size] = []


def test_extraction_does_not_run_the_model_on_real_data(tmp_path: Path) -> None:
    """A build traces with fake tensors; the example's values and the model's buffers are untouched."""
    model = torch.nn.BatchNorm1d(3)
    example = torch.full((4, 3), float("nan"))
    RAN.clear()
    build(module_case("no data", lambda: torch.nn.Sequential(model), lambda generator: example), tmp_path / "norm.aotpack")
    build(case("no data", observed, t(3)), tmp_path / "observed.aotpack")
    assert RAN == []
    assert torch.equal(model.running_mean, torch.zeros(3))
    assert model.num_batches_tracked == 0


@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_extraction_from_examples_without_data(tmp_path: Path, kind: str) -> None:
    """The notebook builds from fake tensors; meta tensors do as well. What is built runs on real ones."""
    with FakeTensorMode() if kind == "fake" else torch.device("meta"):
        examples = torch.empty(4, 4, requires_grad=True), torch.empty(4, 4)
    aotpack.build(layers, examples, out=tmp_path / "m", targets=("portable",), cache=False)
    a, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    (expected,) = torch.autograd.grad(layers(a, w).sum(), a)
    (found,) = torch.autograd.grad(aotpack.load(tmp_path / "m")(a, w).sum(), a)
    torch.testing.assert_close(found, expected)
