"""Copies of parameters that an optimizer keeps in its state: an average of the weights, and weights in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim import Optimizer

from aotpack_loader.errors import BuildError, Problem

from . import stepping

_HALF: Final = (torch.float16, torch.bfloat16)


def keep_copies(optimizer: Optimizer, *, ema_decay: float | None = None, master_weights: bool = False) -> Optimizer:
    """Return an optimizer that makes the same steps, and keeps copies of the parameters. It can be in a bundle.

    Args:
        optimizer: has made no step. It is taken over: its groups get the option ``ema_decay``.
        ema_decay: keep the exponential average of each parameter, as ``state[parameter]["ema"]``:
            ``ema = ema_decay * ema + (1 - ema_decay) * parameter``, from the parameter before the first step. In float32
            for parameters of half types. Can change between steps.
        master_weights: steps update a copy in float32 of each parameter of a half type (``state[parameter]["master"]``),
            and round it to the parameter.

    Raises:
        BuildError: nothing is to be kept, the decay is not from 0 to 1, or the optimizer has state.
    """
    problems = []
    if ema_decay is None and not master_weights:
        problems.append(Problem("", "nothing is to be kept: give ema_decay or master_weights"))
    if ema_decay is not None and not 0 <= ema_decay <= 1:
        problems.append(Problem("ema_decay", f"is {ema_decay!r}, and not from 0 to 1"))
    if optimizer.state:
        problems.append(Problem("optimizer", "has state already"))
    if problems:
        raise BuildError("No copies can be kept.", problems)
    made: Optimizer = object.__new__(_keeping(type(optimizer), masters=master_weights))
    made.__setstate__(dict(optimizer.__dict__))
    if ema_decay is not None:
        made.defaults["ema_decay"] = float(ema_decay)
        for group in made.param_groups:
            group["ema_decay"] = float(ema_decay)
    return made


def _keeping(kind: type[Optimizer], *, masters: bool) -> type[Optimizer]:
    """A class of the same name, so that its checkpoints are those of ``kind``."""

    @torch.no_grad()
    def step(self: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    one(self, group, parameter)
        return loss

    def one(self: Optimizer, group: dict[str, Any], parameter: torch.Tensor) -> None:
        state = dict(self.state[parameter])
        wide = torch.float32 if parameter.dtype in _HALF else parameter.dtype
        kept = {name: state.pop(name) for name in ("master", "ema") if name in state}
        if "ema_decay" in group and "ema" not in kept:
            kept["ema"] = parameter.detach().to(wide, copy=True)
        updated = parameter
        if masters and parameter.dtype is not wide:
            updated = kept["master"] = kept["master"] if "master" in kept else parameter.detach().to(wide, copy=True)
            updated.grad = parameter.grad.to(wide)  # type: ignore[union-attr]
        plain = stepping.copy_for(self, kind, group, [updated])
        if state:
            plain.state[updated] = state
        stepping.step(plain)
        if updated is not parameter:
            parameter.copy_(updated)
            updated.grad = None
        if "ema" in kept:
            kept["ema"].lerp_(updated.to(wide), 1 - group["ema_decay"])
        self.state[parameter] = {**plain.state[updated], **kept}

    return type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__, "__doc__": kind.__doc__})
