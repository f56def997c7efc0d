"""The case of a fix: a program that torch alone has wrong. It is built, loaded, and compared with eager in all that is seen."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
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
        front_ends: which front ends trace it; by default any.
        threads: the numbers of threads that it is compiled and run with; by default torch's.
        check: what a load checks at each call.
        message: a text that an error of eager has, and the bundle's must have.
        refused: whether a build must refuse it.
        crashes: whether it ends the process without the fix.
        refused_later: whether the bundle may refuse the call of other sizes.
    """

    f: Any
    args: Callable[[], tuple[Any, ...]]
    other: Callable[[], tuple[Any, ...]] | None
    after: Callable[[Any], Any] | None
    target: str
    method: str
    rng: str
    dynamic: tuple[int, ...]
    front_ends: tuple[str, ...]
    threads: tuple[int, ...]
    check: str
    message: str
    crashes: bool
    refused: bool
    refused_later: bool


def load_case(fix: Fix) -> Case:
    """Read the file of a fix."""
    path = ROOT / fix.case
    head = [line[2:].partition(":") for line in path.read_text().splitlines() if line.startswith("# ")]
    facts = {name: value.strip() for name, _, value in head}
    names = vars(_imported(path))
    return Case(
        names["f"],
        names["args"],
        names.get("other"),
        names.get("after"),
        facts.get("target", "portable"),
        facts.get("method", "infer"),
        facts.get("rng", "default"),
        tuple(map(int, facts.get("dynamic", "").split())),
        tuple(facts.get("front_ends", "dynamo export trace").split()),
        tuple(map(int, facts.get("threads", "").split())),
        facts.get("check", "arguments"),
        facts.get("message", ""),
        "crashes" in facts,
        "refused" in facts,
        "refused later" in facts,
    )


def _imported(path: Path) -> ModuleType:
    """Import a file as a module that Dynamo finds by its name."""
    spec = importlib.util.spec_from_file_location(f"case_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def _threads(numbers: Sequence[int]) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(*numbers or (before,))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check(case: Case, out: Path) -> None:
    """Build a case, and compare it with eager.

    Raises:
        MismatchError: says what differs.
        BuildError: it cannot be built.
    """
    with _threads(case.threads[:1]):
        build(case, out)
    for make in filter(None, (case.args, case.other)):
        loaded: Any = aotpack.load(out, check=case.check)  # type: ignore[arg-type]
        with _threads(case.threads[1:]):
            expected, found = _seen(case, case.f, make), _seen(case, loaded, make)
        if found == _REFUSED and case.refused_later and make is case.other:
            continue
        if len(expected) != len(found):
            raise MismatchError(f"{expected} in eager, {found} in the bundle")
        if lines := [f"{a} in eager, {b} in the bundle" for a, b in zip(expected, found, strict=True) if not _alike(a, b)]:
            raise MismatchError("\n".join(lines))


def build(case: Case, out: Path) -> None:
    """Build a case."""
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
        front_ends=case.front_ends,
        rng=case.rng,  # type: ignore[arg-type]
        cache="objects",
        check=False,  # :func:`check` compares
    )


_REFUSED: list[str | torch.Tensor] = ["refused"]


def _raised(case: Case, error: Exception) -> list[str | torch.Tensor]:
    return ["RuntimeError" if case.message in str(error) else f"RuntimeError without {case.message!r}"]


def _seen(case: Case, call: Any, make: Callable[[], tuple[Any, ...]]) -> list[str | torch.Tensor]:
    """All that a caller sees of a call: facts as text, and numbers."""
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
        cut_off = {id(leaf) for leaf in leaves if leaf._base is not None and leaf.grad_fn is None}
        differentiable = [leaf for leaf in leaves if leaf.requires_grad and id(leaf) not in cut_off]
        if differentiable:
            torch.autograd.backward(
                differentiable, [torch.linspace(1, 2, leaf.numel()).view(leaf.shape).to(leaf) for leaf in differentiable]
            )
    except aotpack.AotpackError as error:
        return _raised(case, error) if isinstance(error, RuntimeError) else _REFUSED
    except (RuntimeError, IndexError) as error:
        return _raised(case, error)
    except Exception as error:
        if call is case.f:
            raise  # the case is wrong
        return [f"{type(error).__name__}: {error}"]
    inputs = [arg for arg in args if isinstance(arg, torch.Tensor)]
    parameters = list(call.parameters()) if isinstance(call, torch.nn.Module) else []
    gradients = [value.grad.to_dense() for value in (*inputs, *parameters) if value.is_leaf and value.grad is not None]
    facts = [f"requires_grad {leaf.requires_grad}" for leaf in leaves]
    every = (*leaves, *inputs, *gradients)
    numbers = [_numbers(value) for value in every]
    return [*map(_facts, every), *numbers, *facts, *_identity([*leaves, *inputs])]


def _facts(tensor: torch.Tensor) -> str:
    """The type, the sizes and the strides of a tensor; those of sizes of 1 mean nothing."""
    if tensor.device.type == "meta" or (tensor.numel() and not tensor._is_zerotensor() and not tensor.data_ptr()):
        return f"{tensor.dtype}{list(tensor.shape)} without memory"
    steps = [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return f"{tensor.dtype}{list(tensor.shape)} strides {steps}"


def _numbers(tensor: torch.Tensor) -> str | torch.Tensor:
    """A copy of the values, if the tensor has memory."""
    return (tensor.detach().resolve_conj() + 0).clone() if tensor.device.type == "cpu" else "none"


def _alike(expected: str | torch.Tensor, found: str | torch.Tensor) -> bool:
    """Whether facts are equal, and numbers are but for the rounding of sums."""
    if isinstance(expected, str) or isinstance(found, str):
        return isinstance(expected, str) and expected == found
    rounding = 1e-9 if expected.dtype in (torch.float64, torch.complex128) else 1e-4
    exact = not (expected.is_floating_point() or expected.is_complex())
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return False
    if exact:
        return torch.equal(expected, found)
    return torch.allclose(found, expected, rtol=rounding, atol=rounding / 10, equal_nan=True)


def _identity(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Which are the same tensor, which share memory, and which are views of one base."""
    same = [next(i for i, other in enumerate(tensors) if other is one) for one in tensors]
    memory = [one.untyped_storage().data_ptr() for one in tensors]
    owners = [id(one if one._base is None else one._base) for one in tensors]
    views = [[i for i, other in enumerate(tensors) if one._base is other] for one in tensors]
    return [
        f"same {same}",
        f"memory {[memory.index(one) for one in memory]}",
        f"bases {[owners.index(one) for one in owners]}",
        f"views of {views}",
    ]
