"""The case of a fix: a program that torch alone has wrong. It is built, loaded, and compared with eager in all that is seen."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

import aotpack
from aotpack._torch.fixes.register import Fix

ROOT = Path(__file__).resolve().parents[2]


class MismatchError(AssertionError):
    """A bundle does something else than eager."""


@dataclass(frozen=True)
class Case:
    """A file of ``cases/``: the head says how it is built.

    Args:
        f: the model; ``args`` makes its arguments, ``other`` those of a call of other sizes.
        after: what is done to the results.
        refused: whether a build must refuse it.
    """

    f: Any
    args: Callable[[], tuple[Any, ...]]
    other: Callable[[], tuple[Any, ...]] | None
    after: Callable[[Any], Any] | None
    target: str
    method: str
    rng: str
    dynamic: tuple[int, ...]
    refused: bool


def load_case(fix: Fix) -> Case:
    """Read the file of a fix."""
    path = ROOT / fix.case
    head = [line[2:].partition(":") for line in path.read_text().splitlines() if line.startswith("# ")]
    facts = {name: value.strip() for name, _, value in head}
    names = runpy.run_path(str(path))
    return Case(
        names["f"],
        names["args"],
        names.get("other"),
        names.get("after"),
        facts.get("target", "portable"),
        facts.get("method", "infer"),
        facts.get("rng", "default"),
        tuple(map(int, facts.get("dynamic", "").split())),
        "refused" in facts,
    )


def check(case: Case, out: Path) -> None:
    """Build a case, and compare it with eager.

    Raises:
        MismatchError: says what differs.
        BuildError: it cannot be built.
    """
    args, shapes = case.args(), None
    if case.dynamic:
        varying: dict[int, Any] = dict.fromkeys(case.dynamic, Dim.DYNAMIC)
        shapes = (varying, *(None for _ in args[1:]))
    aotpack.build(
        copy.deepcopy(case.f) if isinstance(case.f, torch.nn.Module) else case.f,
        args,
        out=out,
        targets=(case.target,),
        methods=(case.method,),
        dynamic_shapes=shapes,
        rng=case.rng,  # type: ignore[arg-type]
    )
    for make in filter(None, (case.args, case.other)):
        loaded: Any = aotpack.load(out)
        expected, found = _seen(case, case.f, make), _seen(case, loaded, make)
        if expected != found:
            lines = [f"{a} in eager, {b} in the bundle" for a, b in zip(expected, found, strict=False) if a != b]
            raise MismatchError("\n".join(lines) or "another number of results")


def _seen(case: Case, call: Any, make: Callable[[], tuple[Any, ...]]) -> list[str]:
    """All that a caller sees of a call, rounded, as text."""
    torch.manual_seed(3)
    args = make()
    training = case.method == "train"
    if isinstance(call, torch.nn.Module):
        call.train(training)
        for parameter in call.parameters():
            parameter.grad = None
    torch.manual_seed(7)
    try:
        with torch.set_grad_enabled(training):
            result = call(*args)
            leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            if case.after is not None:
                case.after(result)
        graded = [leaf for leaf in leaves if leaf.requires_grad]
        if graded:
            torch.autograd.backward(graded, [torch.linspace(1, 2, leaf.numel()).view(leaf.shape).to(leaf) for leaf in graded])
    except aotpack.AotpackError:
        return _seen(case, case.f, make)  # a call of other sizes that the bundle refuses is right
    except RuntimeError as error:
        return [type(error).__name__]
    inputs = [arg for arg in args if isinstance(arg, torch.Tensor)]
    parameters = list(call.parameters()) if isinstance(call, torch.nn.Module) else []
    gradients = [value.grad for value in (*inputs, *parameters) if value.grad is not None]
    return [*map(_text, (*leaves, *inputs, *gradients)), *_identity([*leaves, *inputs])]


def _text(tensor: torch.Tensor) -> str:
    values = tensor.detach().resolve_conj()
    if values.is_complex():
        values = torch.view_as_real(values)
    digits = 9 if values.dtype == torch.float64 else 4
    numbers = [f"{value:.{digits}g}" if isinstance(value, float) else str(value) for value in values.flatten().tolist()]
    steps = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return f"{tensor.dtype}{list(tensor.shape)} strides {steps}: {' '.join(numbers)}"


def _identity(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Which are the same tensor, and which share memory."""
    same = [next(i for i, other in enumerate(tensors) if other is one) for one in tensors]
    memory = [one.untyped_storage().data_ptr() for one in tensors]
    return [f"same {same}", f"memory {[memory.index(one) for one in memory]}"]
