"""Checks the optimizers of the bundle that a build makes: some steps of each update, beside the optimizer's own.

Parameters of every kind take steps in both, with gradients of equal values and numbers that change. Parameters and state
must agree up to rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from aotpack_loader.errors import Problem, WrongResultsError
from aotpack_loader.format import schema
from aotpack_loader.opening.documents import load_candidate

from ..optimizer.asked import AskedOptimizer, Group
from ..optimizer.sparse import sparse_rows
from ..optimizer.stepping import step

_STEPS: Final = 3
_LARGEST: Final = 1 << 20
"""Elements. A larger parameter is taken only if its kind has no smaller one."""


def check(folder: Path, targets: Sequence[str], program: schema.Program, asked: Mapping[str, AskedOptimizer]) -> None:
    """Compare steps of every update on every target.

    Raises:
        WrongResultsError: a parameter or its state differs by more than rounding.
        TargetError: a target cannot run here.
    """
    for target in targets if asked else ():
        module, _ = load_candidate(folder, target)
        for name, optimizer in asked.items():
            loaded = module.aotpack.optimizer(name)
            for update in program.optimizers[name].updates:
                chosen = _chosen(update.parameters, dict(module.named_parameters(remove_duplicate=False)))
                problems = list(
                    _differences(optimizer, optimizer.groups[update.group], update, loaded, module.get_parameter(chosen), chosen)
                )
                if problems:
                    kind = type(optimizer.optimizer).__name__
                    raise WrongResultsError(
                        f"The optimizer {name!r} of target {target!r} makes other steps than {kind}.",
                        problems,
                        hint="This is a fault of aotpack or torch: please report it. --no-check builds without this check.",
                    )


def _chosen(names: Sequence[str], parameters: Mapping[str, torch.nn.Parameter]) -> str:
    """The largest parameter that is not too large, or the smallest."""
    by_size = sorted(names, key=lambda name: parameters[name].numel())
    small = [name for name in by_size if parameters[name].numel() <= _LARGEST]
    return small[-1] if small else by_size[0]


def _differences(
    asked: AskedOptimizer,
    group: Group,
    update: schema.OptimizerUpdate,
    loaded: Any,
    parameter: torch.nn.Parameter,
    name: str,
) -> Iterator[Problem]:
    """What differs after some steps of one parameter, in the bundle and in eager."""
    generator = torch.Generator().manual_seed(0)
    original = parameter.detach().clone().requires_grad_()
    eager = asked.fresh(group.traced(group.numbers), [original], own=True)
    if asked.constructs:
        eager.state[original] = loaded._aotpack_update_of[parameter][1].new_state(original, group.numbers)
    place = next(g for g in loaded.param_groups if any(p is parameter for p in g["params"]))
    before = parameter.detach().clone(), dict(place)
    try:
        for i in range(_STEPS):
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter.dtype)
            if update.sparse == "required":
                values = sparse_rows(torch.arange(0, len(values), 2), values[::2], values)
            parameter.grad, original.grad = values.clone(), values.clone()
            for options in (place, eager.param_groups[0]):
                if "lr" in group.numbers:
                    options["lr"] = group.numbers["lr"] / (i + 1)
            loaded.step()
            with torch.no_grad():
                step(eager)
        yield from _compared(name, parameter.detach(), original.detach())
        state = {key: value for key, value in eager.state[original].items() if value is not None}
        for key, value in state.items():
            yield from _compared(f"{name}: {key}", torch.as_tensor(loaded.state[parameter][key]), torch.as_tensor(value))
    finally:
        with torch.no_grad():
            parameter.copy_(before[0])
        parameter.grad = None
        place.update(before[1])
        loaded.state.pop(parameter, None)


def _compared(where: str, found: torch.Tensor, expected: torch.Tensor) -> Iterator[Problem]:
    """What differs by more than rounding: of half types, eager rounds after each operator."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        yield Problem(where, f"is {found.dtype}{list(found.shape)}, and not {expected.dtype}{list(expected.shape)}")
        return
    tolerance = 64 * torch.finfo(expected.dtype).eps if expected.is_floating_point() or expected.is_complex() else 0
    one, other = (x.to(torch.complex128 if x.is_complex() else torch.float64) for x in (found, expected))
    size = other.abs().nan_to_num().max().item() if other.numel() else 0
    if not torch.isclose(one, other, rtol=16 * tolerance, atol=tolerance * size, equal_nan=True).all():
        difference = (one - other).abs().nan_to_num(float("inf")).max().item()
        yield Problem(where, f"differs by {difference:.3g} from {size:.3g}")
