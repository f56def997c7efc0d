"""Rows of the conformance table on the second device: the portable bundle there against eager on the CPU, with all that is seen.

Arguments are made on the device, with the numbers of the CPU's generator. The device's own generator draws the same numbers as
the CPU's, so what a model draws is compared, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from conformance.table import XFAIL
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

import aotpack
from aotpack.checking.observation import Observation, differences
from aotpack_loader.devices.generator import random_state
from aotpack_loader.errors import AotpackError, BuildError, TargetError
from devtools.harness import Call, Case, Inputs, MakeInputs, build, observe, seeded

Status = Literal["pass", "refused", "known", "wrong"]


_CPU_AUTOCAST = "the row turns autocast on for the CPU, which is not the device's"
KNOWN = {
    **XFAIL,
    "autograd: autocast at call, none at build, is refused": _CPU_AUTOCAST,
    "autograd: autocast at call, none at build, is refused without gradients": _CPU_AUTOCAST,
}
"""Rows that differ, and why."""


@dataclass(frozen=True)
class Outcome:
    """What became of a row; ``reason`` has the refusal's text, or a line for each difference."""

    status: Status
    reason: str = ""


class Made(TorchFunctionMode):
    """Tensors that are made by name are on the device. Random ones have the CPU's numbers."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function not in _device_constructors() or kwargs.get("device") is not None:
            return function(*args, **kwargs)
        if kwargs.get("generator") is None:
            return function(*args, **kwargs, device=self._device)
        requires_grad = kwargs.pop("requires_grad", False)
        return function(*args, **kwargs, device="cpu").to(self._device).requires_grad_(requires_grad)


def run(case: Case, folder: Path, device: torch.device) -> Outcome:
    """Build the case in ``folder``, load it on ``device``, and compare every call. A build that fails otherwise raises."""
    out = folder / "case.aotpack"
    try:
        build(replace(case, targets=("portable",)), out)
    except BuildError as error:
        return Outcome("refused", str(error))
    try:
        lines = _compare(case, out, device)
        if lines and not _compare(case, out, device, eager_there=True):
            return Outcome("pass", f"as eager there, which differs from the CPU: {lines[0]}")
    except TargetError as error:
        return Outcome("refused", f"at load: {error}")
    if lines and case.name in KNOWN:
        return Outcome("known", KNOWN[case.name])
    return Outcome("wrong", "\n".join(lines)) if lines else Outcome("pass")


def _compare(case: Case, out: Path, device: torch.device, *, eager_there: bool = False) -> list[str]:
    """Differences of all calls from eager on the CPU, or on the device itself."""
    loaded = aotpack.load(out, device=device, trust="all", subclasses=case.subclasses)
    model, make_inputs = seeded(case.make)
    if eager_there and isinstance(model, torch.nn.Module):
        model.to(device)
    found: list[str] = []
    for number, call in enumerate(case.calls):
        make = call.inputs or make_inputs
        moved, make_there = _on(call, device), _given(make, device)
        there = observe(case, moved, loaded, make_there)
        drawn = random_state(device)
        if call.refused:
            lines = _refusal(call, there, device)
        elif eager_there:
            with Made(device):
                here = observe(case, moved, model, make_there)
            here.generator = there.generator = []
            lines = differences(here, there)
            drawn_here = random_state(device)
        else:
            here = observe(case, call, model, make)
            drawn_here = here.generator[-1] if here.generator else drawn
            lines = differences(here, _as_on_the_cpu(there, device))
        if not call.refused and case.rng == "eager" and not torch.equal(drawn, drawn_here):
            lines.append("generator: another state after the call")
        found += [f"call {number}: {line}" for line in lines if not case.ignore or not re.search(case.ignore, line)]
    return found


def _refusal(call: Call, there: Observation, device: torch.device) -> list[str]:
    told = str(there.error).replace(f" on {device}", "")
    if not isinstance(there.error, AotpackError) or not re.search(call.refused, told):
        return [f"should have been refused: {there.error}"]
    return []


def _on(call: Call, device: torch.device) -> Call:
    """The call, whose own functions make tensors on the device."""
    prepare, act = call.prepare, call.act
    return replace(call, prepare=prepare and _under(prepare, device), act=act and _under(act, device))


def _under(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with Made(device):
            return function(*args, **kwargs)

    return run


def _given(make: MakeInputs, device: torch.device) -> MakeInputs:
    """Arguments on the device, and what is left on the CPU moved there: tensors that the table holds."""

    def moved(value: torch.Tensor) -> torch.Tensor:
        return value.detach().to(device).requires_grad_(value.requires_grad) if value.is_cpu else value

    def run(seed: int) -> Inputs:
        try:
            made = _under(make, device)(seed)
        except RuntimeError:  # it computes with a tensor that the table holds
            made = make(seed)
        args, kwargs, *more = pytree.tree_map_only(torch.Tensor, moved, made)
        return args, kwargs, *more  # type: ignore[return-value]

    return run


def _as_on_the_cpu(seen: Observation, device: torch.device) -> Observation:
    """What was seen, where a tensor on the device counts as one on the CPU; one that was left on the CPU does not."""
    for facts in seen.tensors.values():
        found = facts.about["device"]
        facts.about["device"] = "cpu" if found == device.type else f"left on {found}"
    seen.generator = []  # of the CPU, from which nothing was drawn
    return seen
