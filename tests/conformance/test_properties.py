"""Random small programs of views, writes and copies: what a caller sees is eager's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import Tensor

import aotpack
from aotpack.checking.observation import differences
from aotpack_loader.errors import BuildError, InputError
from devtools.harness import (
    INFER,
    TRAIN,
    Case,
    Given,
    MismatchError,
    g,
    inputs,
    laid_out,
    n,
    observe,
    run,
    seeded,
    t,
    together,
    works_in_eager,
)

KNOWN: dict[str, str] = {}
"""Differences that the table already holds; a program that shows nothing else is no news."""

VIEWS = {
    "t": lambda x: x.transpose(0, -1) if x.dim() else x.view(1),
    "flatten": lambda x: x.reshape(-1),
    "view": lambda x: x.view(x.shape),
    "slice": lambda x: x[1:] if x.dim() and x.shape[0] > 1 else x.unsqueeze(0),
    "step": lambda x: x[..., ::2] if x.dim() else x.unsqueeze(0),
    "select": lambda x: x.select(0, -1) if x.dim() else x.unsqueeze(-1),
    "narrow": lambda x: x.narrow(0, 0, 1) if x.dim() and x.shape[0] else x.unsqueeze(0),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "detach": lambda x: x.detach(),
}
WRITES = {
    "mul_": lambda x, y: x.mul_(2),
    "add_": lambda x, y: x.add_(1),
    "add_ of another": lambda x, y: x.add_(y.sum()),
    "mul_ of another": lambda x, y: x.mul_(y.mean()),
    "no_grad": lambda x, y: _without_gradient(x),
}
COPIES = {
    "sin": lambda x, y: x.sin(),
    "double": lambda x, y: x * 2,
    "product": lambda x, y: x * y.sum(),
    "square": lambda x, y: x * x,
    "clone": lambda x, y: x.clone(),
}


SPECS = {"plain": t, "nonleaf": n, "leaf": g}

PAIRS = {
    "same": lambda x: (x, x),
    "base and view": lambda x: (x, x.view(4, 3)),
    "transposed": lambda x: (x, x.t()),
    "rows": lambda x: (x[:2], x[1:]),
    "columns": lambda x: (x[:, :2], x[:, 2:]),
    "every other": lambda x: (x[:, ::2], x[1:]),
    "detached": lambda x: (x, x.detach()),
    "detached part": lambda x: (x.detach()[1:], x),
    "data": lambda x: (x[:2].data, x.data[1:]),
    "apart": lambda x: (x, torch.ones(2, 3)),
}
"""Two arguments made of one tensor of 3 by 4."""

LAYOUTS = {"columns": (1, 2), "rows apart": (5, 1), "elements apart": (6, 2), "all apart": (9, 2)}
"""Strides for an argument of 2 by 3 that was contiguous at build."""
IN_MEMORY = re.compile(r"\.stride: |^only in (eager|the bundle): ")
"""What a LayoutWarning is about: strides of results, and whether they are views."""


def _without_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.mul_(3)


@dataclass(frozen=True)
class Program:
    """Steps ``(kind, op, operand, other)`` over a growing list of values, of which ``results`` are returned."""

    kinds: tuple[str, ...]
    steps: tuple[tuple[str, str, int, int], ...]
    results: tuple[int, ...]

    def __call__(self, *xs: Tensor) -> Any:
        values = list(xs)
        for kind, op, operand, other in self.steps:
            x, y = values[operand % len(values)], values[other % len(values)]
            if kind == "view":
                values.append(VIEWS[op](x))
            elif kind == "copy":
                values.append(COPIES[op](x, y))
            else:
                WRITES[op](x, y)
        # Distinct values: one returned twice is a row of the table.
        return tuple([values[i] for i in dict.fromkeys([i % len(values) for i in self.results])])

    def inputs(self, stride: tuple[int, int] | None = None) -> Given:
        """Plain tensors, leaves and results of earlier computation, contiguous or with other strides."""
        specs = [SPECS[kind](2, 3) for kind in self.kinds]
        return inputs(*(specs if stride is None else [laid_out(spec, stride) for spec in specs]))


@dataclass(frozen=True)
class Shared:
    """A program over two arguments that share memory in some way."""

    program: Program
    kind: str
    pair: str

    def inputs(self, pair: str = "") -> Given:
        """Arguments made of one tensor, as ``pair`` says."""
        return together(lambda generator: _with_source(SPECS[self.kind](3, 4)(generator), PAIRS[pair or self.pair]))


def _with_source(x: Tensor, pair: Any) -> tuple[Tensor, Tensor]:
    first, second = pair(x)
    if hasattr(x, "source"):
        first.source = x.source  # type: ignore[attr-defined]
    return first, second


_number = st.integers(0, 7)
_step = st.one_of(
    st.tuples(st.just("view"), st.sampled_from(sorted(VIEWS)), _number, _number),
    st.tuples(st.just("write"), st.sampled_from(sorted(WRITES)), _number, _number),
    st.tuples(st.just("copy"), st.sampled_from(sorted(COPIES)), _number, _number),
)


def _programs(kinds: st.SearchStrategy[list[str]]) -> st.SearchStrategy[Program]:
    steps = st.lists(_step, min_size=1, max_size=6).map(tuple)
    return st.builds(Program, kinds.map(tuple), steps, st.lists(_number, min_size=1, max_size=4).map(tuple))


programs = _programs(st.lists(st.sampled_from(sorted(SPECS)), min_size=1, max_size=2))
shared_programs = st.builds(
    Shared, _programs(st.just(["", ""])), st.sampled_from(sorted(SPECS)), st.sampled_from(sorted(set(PAIRS) - {"apart"}))
)


def function(program: Program) -> Any:
    """A plain function: Dynamo does not trace callable objects."""
    return (lambda x, y: program(x, y)) if len(program.kinds) == 2 else (lambda x: program(x))


def unknown_differences(error: MismatchError) -> list[str]:
    """The lines that no entry of ``KNOWN`` explains."""
    lines = str(error).splitlines()[1:]
    return [line for line in lines if not any(re.search(pattern, line) for pattern in KNOWN)]


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
@given(program=programs)
def test_random_programs_agree(program: Program, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Values, aliases, versions and gradients of a random program are eager's."""
    case = Case(repr(program), lambda: (function(program), program.inputs()), calls=(TRAIN, INFER))
    if not works_in_eager(case):
        event("eager refuses")
        return
    out: Path = tmp_path_factory.mktemp("program") / "case.aotpack"
    try:
        run(case, out)
    except BuildError:
        event("refused at build")
    except MismatchError as error:
        event("known difference")
        if unknown_differences(error):
            raise


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
@given(shared=shared_programs, other=st.sampled_from(sorted(PAIRS)))
def test_random_programs_over_shared_memory_agree(shared: Shared, other: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Arguments that share memory: as in eager; in another way than at build: as in eager, or refused with both paths."""
    case = Case(repr(shared), lambda: (function(shared.program), shared.inputs()), calls=(TRAIN, INFER))
    if not works_in_eager(case):
        event("eager refuses")
        return
    out: Path = tmp_path_factory.mktemp("program") / "case.aotpack"
    try:
        run(case, out)
    except BuildError:
        event("refused at build")
        return
    _call_otherwise(shared, other, out)


def _call_otherwise(shared: Shared, other: str, out: Path) -> None:
    """Call the bundle with arguments that share memory as ``other`` says."""
    case = Case(f"{shared!r} called with {other}", lambda: (function(shared.program), shared.inputs(other)))
    if not works_in_eager(case):
        event("eager refuses the other pattern")
        return
    model, make_inputs = seeded(case.make)
    loaded = aotpack.load(out, backend="portable")
    bundle = observe(case, TRAIN, loaded, make_inputs)
    if isinstance(bundle.error, InputError):
        event("another pattern refused")
        assert re.search(r"\b[a-z]\b", str(bundle.error))
        return
    lines = differences(observe(case, TRAIN, model, make_inputs), bundle)
    assert not lines, "\n".join([case.name, *lines])


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=25, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False
)
@given(program=programs, layout=st.sampled_from(sorted(LAYOUTS)))
def test_random_programs_take_other_layouts_or_refuse_them(
    program: Program, layout: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Arguments with other strides than at build: values, writes and gradients are eager's, or the call is refused."""
    case = Case(repr(program), lambda: (function(program), program.inputs()))
    otherwise = Case(f"{program!r}, {layout}", lambda: (function(program), program.inputs(LAYOUTS[layout])))
    if not works_in_eager(case) or not works_in_eager(otherwise):
        event("eager refuses")
        return
    out: Path = tmp_path_factory.mktemp("program") / "case.aotpack"
    model, make_inputs = seeded(case.make)
    args = make_inputs(1)[0]
    try:
        aotpack.build(model, args, out=out, targets=("portable",))
    except BuildError:
        event("refused at build")
        return
    model, make_inputs = seeded(otherwise.make)
    bundle = observe(otherwise, TRAIN, aotpack.load(out, backend="portable"), make_inputs)
    if isinstance(bundle.error, InputError):
        event("another layout refused")
        assert re.search(r"\b[a-z]\b: has the strides", str(bundle.error))
        return
    lines = [line for line in differences(observe(otherwise, TRAIN, model, make_inputs), bundle) if not IN_MEMORY.search(line)]
    assert not lines, "\n".join([otherwise.name, *lines])
    event("called")
