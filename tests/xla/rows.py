"""Rows of the conformance table on ``xla:cpu``: the bundle there against eager.

All that a caller can see is compared. Of random numbers, which are not eager's, only types and sizes are.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from conformance.table import XFAIL

import aotpack
from aotpack.checking.observation import Observation, differences
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AutogradError, BuildError, InputError, ModeError, TargetError
from aotpack_loader.format import schema
from devtools.harness import EXAMPLE_SEED, Call, Case, build, observe, seeded

Status = Literal["pass", "refused", "known", "wrong"]
TARGET = "xla:cpu"
VALUES = r": values differ, .*…(, by up to [\d.e+-]+ of [\d.e+-]+)?"
"""What :mod:`aotpack.checking.observation` says of two values, where it does not go on to say that they are too far apart."""


@dataclass(frozen=True)
class Known:
    """Why a row differs, and the pattern that each of its differences is of, less the number of the call.

    ``within``: how far values may be apart, as a share of the largest. ``rounding``: the difference is one of roundings,
    so the row agrees on some processors.
    """

    cause: str
    pattern: str
    within: float = 0.0
    rounding: bool = False


KNOWN = {
    "state: odd parameters": Known(
        "a gradient in float64 of a sum in float32", rf"state\.f64\.grad{VALUES}", within=1e-6, rounding=True
    ),
    "input mutation: out= of another type, logsumexp": Known(
        "a result in float64 of exponentials in float32", rf"out{VALUES}", within=1e-7, rounding=True
    ),
    "outputs: multi-output views, unbind, in place afterwards (eager raises)": Known(
        "views of a result that was not returned are not known to be parts of one operator's results",
        "eager's forward raises RuntimeError: Output 0 of Unbind is a view .*; the bundle works",
    ),
    "overlaps: gradients of an argument at uneven steps": Known(
        "eager writes to a copy whose elements share memory; values in XLA share none",
        rf"out{VALUES}|args\[0\]\.grad{VALUES}",
        within=float("inf"),
    ),
}
"""Rows that differ and are not refused, beside those that differ on portable."""


@dataclass(frozen=True)
class Outcome:
    """What became of a row; ``reason`` has the refusal's text, or a line for each difference."""

    status: Status
    reason: str = ""


def run(case: Case, folder: Path) -> Outcome:
    """Build the case for XLA in ``folder``, load it, compare every call. A build that fails otherwise raises."""
    out = folder / "case.aotpack"
    try:
        _build(case, out)
    except BuildError as error:
        return Outcome("refused", str(error))
    try:
        lines = _compare(case, out)
    except _RefusedError as error:
        return Outcome("refused", f"at the call: {error}")
    except TargetError as error:
        return Outcome("refused", f"at load: {error}")
    finally:
        out.unlink()
    known = KNOWN.get(case.name)
    if lines and known and all(re.fullmatch(rf"call \d+: ({known.pattern})", line, re.DOTALL) for line in lines):
        return Outcome("known", known.cause)
    if lines and case.name in XFAIL:
        return Outcome("known", f"{XFAIL[case.name]}: on portable too")
    return Outcome("wrong", "\n".join(lines)) if lines else Outcome("pass")


def _build(case: Case, out: Path) -> None:
    """For the sizes of the example and of each call, where they vary: the target is then added to the graphs."""
    if case.dynamic_shapes is None:
        build(replace(case, targets=(TARGET,)), out)
        return
    graphs = out.with_suffix(".graphs")
    build(replace(case, targets=("portable",)), graphs)
    make_inputs = seeded(case.make)[1]
    given = [make_inputs(EXAMPLE_SEED), *((call.inputs or make_inputs)(call.seed) for call in case.calls if not call.refused)]
    with Bundle.open(graphs) as bundle:
        methods = [method for method in bundle.program.methods.values() if method.serves]
    found = [sizes for args, kwargs, *_ in given if (sizes := _sizes(methods, pytree.tree_leaves((args, kwargs))))]
    aotpack.compile_bundle(graphs, targets=(TARGET,), out=out, specializations=found)
    graphs.unlink()


def _sizes(methods: Sequence[schema.Method], leaves: Sequence[Any]) -> dict[str, int]:
    """The value of each size that varies, as a call's arguments have it; nothing where a method does not take them."""
    found: dict[str, int] = {}
    for method in methods:
        for leaf, value in zip(method.leaves, leaves, strict=True):
            if isinstance(leaf, schema.IntegerLeaf):
                found[leaf.size] = value
            if isinstance(leaf, schema.TensorLeaf):
                found |= {size: n for size, n in zip(leaf.shape, value.shape, strict=True) if isinstance(size, str)}
    symbols = {symbol.name: symbol for method in methods for symbol in method.symbols}
    takes = all(name in found and symbol.takes(found[name]) for name, symbol in symbols.items())
    return {symbol.label or name: found[name] for name, symbol in symbols.items()} if takes else {}


class _RefusedError(Exception):
    """The bundle does not take such a call, and says why."""


def draws(path: Path) -> bool:
    """Whether a bundle's computations for XLA take seeds: their numbers are not eager's."""
    with Bundle.open(path) as bundle:
        target = bundle.targets[TARGET]
    fixed = [*target.xla.values()]
    sized = [item for several in target.specializations.values() for one in several for item in (one.forward, one.backward)]
    return any(parameter.input is None for item in (*fixed, *sized) if item is not None for parameter in item.parameters)


def _compare(case: Case, out: Path) -> list[str]:
    loaded = aotpack.load(out, backend=TARGET, subclasses=case.subclasses)
    other_numbers = draws(out)
    model, make_inputs = seeded(case.make)
    found: list[str] = []
    for number, call in enumerate(case.calls):
        make = call.inputs or make_inputs
        there = observe(case, call, loaded, make)
        if call.refused:
            found += [f"call {number}: {line}" for line in _refusal(call, there)]
            continue
        here = observe(case, call, model, make)
        if isinstance(there.error, (AutogradError, InputError, ModeError)) and here.error is None:
            raise _RefusedError(there.error)
        for seen in (here, there):
            seen.constants = {path: (kind, _rounded(value)) for path, (kind, value) in seen.constants.items()}
            if other_numbers:
                _forget_values(seen)
        lines = [_with_distance(line, here, there, case.name) for line in differences(here, there)]
        found += [f"call {number}: {line}" for line in lines if not case.ignore or not re.search(case.ignore, line)]
    return found


def _with_distance(line: str, here: Observation, there: Observation, name: str) -> str:
    """A difference of a known row with how far the values are apart, where that is further than is known."""
    path, differ, _ = line.partition(": values differ")
    if not differ or name not in KNOWN:
        return line
    eager, bundle = _value(here, path), _value(there, path)
    distance = float((eager - bundle).abs().max() / eager.abs().max())
    return line if distance <= KNOWN[name].within else f"{line} by {distance:.2g} of the largest"


def _value(seen: Observation, path: str) -> torch.Tensor:
    value = seen.tensors[path].value if path in seen.tensors else seen.after[path]
    assert value is not None
    return value.double()


def _refusal(call: Call, seen: Observation) -> list[str]:
    if not isinstance(seen.error, aotpack.AotpackError):
        return [f"should have been refused: {seen.error!r}"]
    words = f"{call.refused}|has no code for"  # sizes out of range, for which there is no code either
    return [] if re.search(words, str(seen.error)) else [f"refused with other words: {seen.error}"]


def _rounded(value: object) -> object:
    """Numbers that a row has read from tensors, to the digits that are compared."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _forget_values(seen: Observation) -> None:
    for path, facts in seen.tensors.items():
        seen.tensors[path] = replace(facts, value=torch.zeros_like(facts.value))
    seen.after = {path: None if value is None else torch.zeros_like(value) for path, value in seen.after.items()}


def explain(error: BaseException) -> str:
    """An exception that no row should raise, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} [at {where.filename}:{where.lineno}]"


def named(cases: Sequence[Case], name: str) -> Case:
    """The row with this name."""
    return next(case for case in cases if case.name == name)
