"""Rows of the conformance table on an XLA device: the bundle there against eager on the CPU.

All that a caller can see is compared but what tensors on XLA devices do not have: strides, offsets, addresses. That two of them
share memory is seen by torch_xla's views having one storage object.
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
from aotpack_loader.module.program import LoadedProgram
from devtools.harness import EXAMPLE_SEED, Call, Case, Inputs, MakeInputs, build, observe, seeded

Status = Literal["pass", "refused", "known", "wrong"]

_NO_GRAD = "torch before 2.12 does not tell a view made under no_grad from another: on portable too, with torch 2.9"
_HALF = "XLA keeps values between two operators of a half type in float32"
_CPU_AUTOCAST = "the row turns autocast on for the CPU, which changes nothing on an XLA device"
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


_EXAMPLES = ("every other row", "every other column", "contiguous")
_UNDER_NO_GRAD = Known(_NO_GRAD, r"out(\[\d+\])?\.is_leaf: eager True, bundle False|args\[0\]\.grad: .*")
_SIZES = Known(
    "torch.export of 2.9 returns a plain tuple for torch.Size: on portable too", r"structure: .*'Size\[2\]'.*, bundle .*"
)
_NOT_REFUSED = Known(_CPU_AUTOCAST, "should have been refused: None")
_CONTIGUOUS = "tensors on XLA devices are all contiguous, to torch_xla too: contiguous() and ravel() copy nothing there"
_VIEWS = Known(_CONTIGUOUS, r"only in the bundle: out(\[\d\])? (is|shares storage with) .*")
_WRITES = Known(_CONTIGUOUS, rf"args\[0\](\.base)?.*{VALUES}|out.*{VALUES}|should have been refused: None", within=float("inf"))
_LAYOUTS = {
    _VIEWS: (
        "ravel, returned",
        "ravel, returned, requires grad",
        "ravel, returned, cpu",
        "copies and views, returned",
        "contiguous, returned",
        *(f"{name}, dynamic, {example}" for name in ("returned", "returned_beside_views") for example in _EXAMPLES),
    ),
    _WRITES: (
        "written in any",
        "written where contiguous",
        "written where contiguous, cpu",
        "read after a write",
        "written where contiguous, built where it is not",
        "offsets in memory, as_strided",
        "offsets in memory, as_strided of what is computed",
        "offsets in memory, resize_ of a copy",
    ),
}
KNOWN = {
    **{f"layouts: {name}": known for known, names in _LAYOUTS.items() for name in names},
    "outputs: view of a view under no_grad": _UNDER_NO_GRAD,
    "outputs: views without gradients": _UNDER_NO_GRAD,
    "outputs: views without gradients, in place afterwards": _UNDER_NO_GRAD,
    "outputs: views without gradients, cpu": _UNDER_NO_GRAD,
    "outputs: views that change requires_grad, view under no_grad": _UNDER_NO_GRAD,
    "outputs: views that change requires_grad, view of the input under no_grad": _UNDER_NO_GRAD,
    "outputs: multi-output views, unbind, in place afterwards (eager raises)": Known(
        "torch_xla does not raise either", "eager's forward raises RuntimeError: Output 0 of UnbindBackward0 .*; the bundle works"
    ),
    "recompute: BatchNorm inside": Known(
        f"{XFAIL['recompute: BatchNorm inside']}: on portable too",
        rf"(out|state\.layers\.1\.\w+( afterwards)?){VALUES}",
        within=1.0,
    ),
    "overlaps: gradients of an argument at uneven steps": Known(
        "eager writes to a copy whose elements share memory; tensors on XLA devices share none",
        rf"out{VALUES}|args\[0\]\.grad{VALUES}",
        within=float("inf"),
    ),
    "outputs: sizes, dynamic": _SIZES,
    "autograd: inside the caller's checkpoint": Known(
        "torch.utils.checkpoint fails on XLA tensors: torch has no module 'xla'", ".*module 'torch' has no attribute 'xla'"
    ),
    "autograd: on several threads": Known(
        "torch_xla alone raises so too where one thread syncs while another computes",
        "eager works; .* TargetError: .*tensor_data:.*",
    ),
    "autograd: autocast bf16 inside the model": Known(_HALF, rf".*{VALUES}", within=0.01),
    "autograd: autocast bf16 inside the model, bf16 result": Known(_HALF, rf".*{VALUES}", within=0.01),
    "autograd: autocast at call, none at build, is refused": _NOT_REFUSED,
    "autograd: autocast at call, none at build, is refused without gradients": _NOT_REFUSED,
    "control flow: nested compile regions, dynamic batch": Known(
        "LayerNorm of four elements magnifies roundings of float32: eager's gradient itself is off that of float64 by 1e-6",
        rf"state\.first\.\w+\.grad{VALUES}",
        within=1e-5,
        rounding=True,
    ),
    "RNG dropout: same seed same numbers": Known(
        "torch.manual_seed does not seed XLA devices; xm.set_rng_state does",
        r"out\[0\]: eager \('bool', True\), bundle \('bool', False\)",
    ),
    "shapes: other strides at call, alias that view() cannot take (eager raises)": Known(
        "without strides any view() can be taken; eager raises",
        "eager's forward raises RuntimeError: view size .*; the bundle works",
    ),
}
"""Rows that differ and are not refused; those of torch 2.9 and torch_xla alone are not this target's to mend."""


@dataclass(frozen=True)
class Outcome:
    """What became of a row; ``reason`` has the refusal's text, or a line for each difference."""

    status: Status
    reason: str = ""


def run(case: Case, folder: Path, device: torch.device) -> Outcome:
    """Build the case for XLA in ``folder``, load it on ``device``, compare every call. A build that fails otherwise raises."""
    out = folder / "case.aotpack"
    try:
        _build(case, out)
    except BuildError as error:
        return Outcome("refused", str(error))
    try:
        lines = _compare(case, out, device)
    except _RefusedError as error:
        return Outcome("refused", f"at the call: {error}")
    except TargetError as error:
        return Outcome("refused", f"at load: {error}")
    finally:
        out.unlink()
    known = KNOWN.get(case.name)
    if lines and known and all(re.fullmatch(rf"call \d+: ({known.pattern})", line, re.DOTALL) for line in lines):
        return Outcome("known", known.cause)
    return Outcome("wrong", "\n".join(lines)) if lines else Outcome("pass")


def _build(case: Case, out: Path) -> None:
    """For the sizes of the example and of each call, where they vary: the target is then added to the graphs."""
    if case.dynamic_shapes is None:
        build(replace(case, targets=("xla",)), out)
        return
    graphs = out.with_suffix(".graphs")
    build(replace(case, targets=("portable",)), graphs)
    make_inputs = seeded(case.make)[1]
    given = [make_inputs(EXAMPLE_SEED), *((call.inputs or make_inputs)(call.seed) for call in case.calls if not call.refused)]
    with Bundle.open(graphs) as bundle:
        methods = [method for method in bundle.program.methods.values() if method.serves]
    found = [sizes for args, kwargs, *_ in given if (sizes := _sizes(methods, pytree.tree_leaves((args, kwargs))))]
    aotpack.compile_bundle(graphs, targets=("xla",), out=out, specializations=found)
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
    """The bundle does not take such a call on an XLA device, and says why."""


def draws(path: Path) -> bool:
    """Whether a bundle's computations for XLA take seeds: their numbers are not eager's."""
    with Bundle.open(path) as bundle:
        return any(parameter.input is None for item in bundle.targets["xla"].xla.values() for parameter in item.parameters)


def _compare(case: Case, out: Path, device: torch.device) -> list[str]:
    loaded = aotpack.load(out, device=str(device), subclasses=case.subclasses)
    other_numbers = draws(out)
    model, make_inputs = seeded(case.make)
    found: list[str] = []
    for number, call in enumerate(case.calls):
        make = call.inputs or make_inputs
        there = _observe_there(case, call, loaded, make, device)
        if call.refused:
            found += [f"call {number}: {line}" for line in _refusal(call, there)]
            continue
        here = observe(case, call, model, make)
        if isinstance(there.error, (AutogradError, InputError, ModeError)) and here.error is None:
            raise _RefusedError(there.error)
        for seen in (here, there):
            _forget_layouts(seen)
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


def _observe_there(case: Case, call: Call, loaded: LoadedProgram, make: MakeInputs, device: torch.device) -> Observation:
    """As :func:`observe`, with what a case makes on its own (``act``, ``prepare``) on the device too."""

    def make_there(seed: int) -> Inputs:
        with torch.device("cpu"):
            args, kwargs, *watched = make(seed)
        move = _Move(device)
        return (*move((args, kwargs)), *(move(item) for item in watched))  # type: ignore[return-value]

    if call.act is None and call.prepare is None:
        return observe(case, call, loaded, make_there)
    with torch.device(device):
        return observe(case, call, loaded, make_there)


def _refusal(call: Call, seen: Observation) -> list[str]:
    if not isinstance(seen.error, aotpack.AotpackError):
        return [f"should have been refused: {seen.error!r}"]
    words = f"{call.refused}|has no code for"  # sizes out of range, of which the device needs none
    return [] if re.search(words, re.sub(r" on xla:\d", "", str(seen.error))) else [f"refused with other words: {seen.error}"]


def _forget_layouts(seen: Observation) -> None:
    """Strides and offsets; of what shares memory, where. Which tensor is whose ``_base`` is the device's own affair."""
    for facts in seen.tensors.values():
        for key in ("stride", "offset", "conj", "neg"):
            facts.about.pop(key, None)
    seen.constants = {path: (kind, _rounded(value)) for path, (kind, value) in seen.constants.items()}
    seen.relations = {line.partition(" at ")[0] for line in seen.relations if "._base is " not in line}


def _rounded(value: object) -> object:
    """Numbers that a row has read from tensors, to the digits that are compared."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _forget_values(seen: Observation) -> None:
    for path, facts in seen.tensors.items():
        seen.tensors[path] = replace(facts, value=torch.zeros_like(facts.value))
    seen.after = {path: None if value is None else torch.zeros_like(value) for path, value in seen.after.items()}


class _Move:
    """Takes arguments to a device: one tensor stays one, a view of another is one there, a leaf is one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[torch.Tensor, torch.Tensor] = {}

    def __call__(self, values: Any) -> Any:
        with torch.enable_grad():
            return pytree.tree_map_only(torch.Tensor, self._tensor, values)

    def _tensor(self, value: torch.Tensor) -> torch.Tensor:
        if value not in self._known:
            self._known[value] = self._moved(value)
        return self._known[value]

    def _moved(self, value: torch.Tensor) -> torch.Tensor:
        if value._base is not None and not value.is_conj():
            elements = self._tensor(value._base).view(-1)  # of a matrix, torch_xla reads others
            view = elements.as_strided(value.shape, value.stride(), value.storage_offset())
            return view.detach().requires_grad_() if value.is_leaf and value.requires_grad else view
        if hasattr(value, "source"):  # the harness's ``n``: a result of earlier computation
            return self._tensor(value.source) * 1
        moved = value.detach().to(self._device)
        if not value.is_leaf:
            return moved.requires_grad_() * 1
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(moved, requires_grad=value.requires_grad)
        return moved.requires_grad_(value.requires_grad)


def explain(error: BaseException) -> str:
    """An exception that no row should raise, and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} [at {where.filename}:{where.lineno}]"


def named(cases: Sequence[Case], name: str) -> Case:
    """The row called ``name``."""
    (case,) = (case for case in cases if case.name == name)
    return case
