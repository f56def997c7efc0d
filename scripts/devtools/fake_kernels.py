"""Compares the strides that torch predicts for results with those of the real results.

A build knows the results of a kernel only from its fake kernel, and those of a composite operator
from its parts. The comparison uses the samples of torch's operator database, forward and backward,
with tensors of several layouts:

- kernels: each ATen operator that is called. It runs with torch's own fake kernels, and with those
  that aotpack replaces and decomposes (``aotpack/_torch/fixes/fake_tensor/strides.py``) for ``portable`` and for
  ``cpu``.
- operators: results as a build for ``portable`` traces them, and gradients, whose formulas come
  from torch.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from aotpack._torch.fixes.applying import apply_fixes
from aotpack._torch.fixes.fake_tensor.strides import decomposed_like_kernels
from aotpack._torch.inductor.decompositions import inductor_decompositions
from aotpack._torch.tracing import decompositions
from aotpack._torch.tracing.decompose import decomposed_as_eager
from aotpack._torch.tracing.randomness import traced_random
from devtools.machine import provenance
from devtools.paths import RESULTS, ROOT

RECORD = RESULTS / "fake_kernels.json"


def main() -> None:
    options = parse()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kernels, operators = Kernels(), Operators()
    for operator in track(op_db, description="operators", disable=not sys.stderr.isatty()):
        end = time.monotonic() + options.seconds
        for arguments, gradients in samples(operator):
            operators.compare(operator, arguments, gradients, kernels)
            if time.monotonic() > end:
                break
    summary = {
        **provenance(threads=1),
        "database": len(op_db),
        "kernels": {"compared": len(kernels.compared), "calls": len(kernels.known), "differ": kernels.differ},
        "operators": {"calls": len(operators.known), "differ": operators.differ},
        "not_compared": {**kernels.refused, **operators.refused},
    }
    if options.results:
        options.results.write_text(json.dumps(summary, indent=1, sort_keys=True) + "\n")
    print(json.dumps(summary, indent=2) if options.json else text(summary))
    sys.exit(any(wrong for name, wrong in [*kernels.differ.items(), *operators.differ.items()] if name not in TORCH))


TORCH = ("torch", "gradients")
"""What is not aotpack's to keep alike: torch's own fake kernels, and its formulas of gradients."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/fake-kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30, help="for an operator of the database (default 30)")
    parser.add_argument("--results", type=Path, metavar="FILE", help=f"write what was found there ({RECORD.relative_to(ROOT)})")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    return parser.parse_args()


def text(summary: dict[str, Any]) -> str:
    kernels, operators = summary["kernels"], summary["operators"]
    lines = []
    for kind, found in (("kernels", kernels), ("operators", operators)):
        for name, wrong in found["differ"].items():
            lines += [f"{kind}, {name}: {operator}: {example}" for operator, example in wrong.items()]
    lines.append(f"of {kernels['compared']} ATen operators, in {kernels['calls']} calls, " + _counts(kernels["differ"]))
    lines.append(f"of {summary['database']} operators, in {operators['calls']} calls, " + _counts(operators["differ"]))
    return "\n".join(lines)


def _counts(differ: Mapping[str, Mapping[str, str]]) -> str:
    return ", ".join(f"{name}: {len(wrong)} differ" for name, wrong in differ.items())


# ---------------------------------------------------------------- samples

Layout = Callable[[torch.Tensor], torch.Tensor]


def samples(operator: Any) -> Iterator[tuple[Any, Layout]]:
    """Arguments for an operator with tensors of several layouts, and the layout of the gradients of its results."""
    types = operator.supported_dtypes("cpu")
    if not types:
        return
    dtype = torch.float32 if torch.float32 in types else min(types, key=str)
    trained = operator.supports_autograd and dtype.is_floating_point
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=trained):
        for layouts in LAYOUTS:
            yield _laid_out((sample.input, sample.args, sample.kwargs), layouts), layouts[-1]


def _laid_out(arguments: Any, layouts: Sequence[Layout]) -> Any:
    """Arguments with ``layouts`` applied to their tensors in order, repeated as needed."""
    following = itertools.cycle(layouts)

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            return next(following)(value.detach()).requires_grad_(value.requires_grad)
        return value

    return tree_map(one, arguments)


def _as_it_is(value: torch.Tensor) -> torch.Tensor:
    return value


def _reversed(value: torch.Tensor) -> torch.Tensor:
    """Strides with the first dimension innermost and the last outermost."""
    return _strided(value, _steps(list(value.shape)))


def _first_innermost(value: torch.Tensor) -> torch.Tensor:
    return value.movedim(0, -1).contiguous().movedim(-1, 0) if value.dim() > 1 else value


def _transposed(value: torch.Tensor) -> torch.Tensor:
    return value.mT.contiguous().mT if value.dim() > 1 else value


def _every_other(value: torch.Tensor) -> torch.Tensor:
    return _strided(value, _steps(list(value.shape)[::-1], first=2)[::-1])


def _with_gaps(value: torch.Tensor) -> torch.Tensor:
    return _strided(value, _steps(list(value.shape)[::-1], gap=1)[::-1])


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return value.contiguous(memory_format=formats[value.dim()]) if value.dim() in formats else value


def _strided(value: torch.Tensor, steps: list[int]) -> torch.Tensor:
    return torch.empty_strided(value.shape, steps, dtype=value.dtype).copy_(value)


def _steps(sizes: list[int], first: int = 1, gap: int = 0) -> list[int]:
    """Strides of dimensions, starting from the innermost."""
    found, step = [], first
    for size in sizes:
        found.append(step)
        step *= max(size + gap, 1)
    return found


LAYOUTS: tuple[tuple[Layout, ...], ...] = (
    (_as_it_is,),
    (_reversed,),
    (_first_innermost,),
    (_transposed,),
    (_every_other,),
    (_with_gaps,),
    (_channels_last,),
    *((one, _as_it_is) for one in (_reversed, _first_innermost, _channels_last)),
    *((_as_it_is, one) for one in (_reversed, _transposed, _channels_last)),
)


# ---------------------------------------------------------------- comparison


@dataclass
class Kernels(TorchDispatchMode):
    """Runs each operator that has a kernel also on fake tensors, once for each kind of arguments.

    Args:
        compared: operators that were compared.
        known: calls that were compared.
        differ: for each source of strides, an example by operator.
        refused: operators whose fake kernel raised an error, each with its first error.
    """

    compared: set[str] = field(default_factory=set)
    known: set[Any] = field(default_factory=set)
    differ: dict[str, dict[str, str]] = field(default_factory=lambda: {name: {} for name in ("torch", "portable", "cpu")})
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        tables = {"portable": {}, "cpu": inductor_decompositions(exact_random=True)}
        self._tables = {name: decomposed_like_kernels({**table, **decompositions.TABLE}) for name, table in tables.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = (str(func), *map(_kind, tree_leaves((args, kwargs))))
        if func.namespace != "aten" or _is_composite(func) or key in self.known:
            return func(*args, **kwargs)
        self.known.add(key)
        fakes = {name: self._run_fake(name, func, args, kwargs) for name in self.differ}  # first, because the kernel may write
        real = func(*args, **kwargs)
        if None not in fakes.values():
            self.compared.add(str(func))
            for name, fake in fakes.items():
                for one, other in zip(tree_leaves(real), tree_leaves(fake), strict=True):
                    _compare(self.differ[name], str(func), one, other, key[1:])
        return real

    def _run_fake(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        traced: list[Any] = [apply_fixes("fake_tensor"), _Decomposed(self._tables[name])] if name in self._tables else []
        plain = {id(value): value.detach() for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
        with FakeTensorMode() as mode, torch.no_grad(), contextlib.ExitStack() as stack:
            made = {key: mode.from_tensor(value, static_shapes=True) for key, value in plain.items()}
            own, named = tree_map(lambda value: made.get(id(value), value), (args, kwargs))
            for context in traced:
                stack.enter_context(context)
            try:
                return func(*own, **named)
            except Exception as error:  # every error of a fake kernel is reported
                self.refused.setdefault(str(func), f"{type(error).__name__}: {error}"[:200])
                return None


class _Decomposed(TorchDispatchMode):
    """Decomposes operators as tracing does."""

    def __init__(self, table: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._table = table

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._table:
            with self:
                found = self._table[func](*args, **kwargs)
            if found is not NotImplemented:
                return found
        return func(*args, **kwargs)


def _is_composite(func: Any) -> bool:
    """Whether traces never contain an operator, because it consists of others above autograd."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@dataclass
class Operators:
    """Runs whole operators and their gradients also on fake tensors.

    Args:
        known: calls that were compared.
        differ: for results and for gradients, an example by operator.
        refused: operators that raise an error on fake tensors, each with its first error.
    """

    known: set[Any] = field(default_factory=set)
    differ: dict[str, dict[str, str]] = field(default_factory=lambda: {"results": {}, "gradients": {}})
    refused: dict[str, str] = field(default_factory=dict)

    def compare(self, operator: Any, arguments: Any, gradients: Layout, kernels: Kernels) -> None:
        key = (operator.name, *map(_kind, tree_leaves(arguments)))
        if key in self.known:
            return
        try:
            with kernels:
                real = _run(operator, arguments, gradients)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
            return  # samples are made for their own layout; some operators accept no other
        self.known.add(key)
        tracing = (enable_python_dispatcher(), apply_fixes("fake_tensor"), decomposed_as_eager(), traced_random(exact=False))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, contextlib.ExitStack() as stack:
            own = tree_map(lambda x: mode.from_tensor(x, static_shapes=True) if isinstance(x, torch.Tensor) else x, arguments)
            for context in tracing:
                stack.enter_context(context)
            try:
                fake = _run(operator, own, gradients)
            except Exception as error:  # every error is reported
                self.refused.setdefault(operator.name, f"{type(error).__name__}: {error}"[:200])
                return
        for (name, found), others in zip(self.differ.items(), fake, strict=True):
            for one, other in zip(real[name == "gradients"], others, strict=True):
                _compare(found, operator.name, one, other, key[1:])


def _run(operator: Any, arguments: Any, gradients: Layout) -> tuple[list[Any], list[Any]]:
    """Results of an operator, and gradients of its arguments."""
    results = operator.op(arguments[0], *arguments[1], **arguments[2])
    trained = [value for value in tree_leaves(results) if isinstance(value, torch.Tensor) and value.requires_grad]
    leaves = [value for value in tree_leaves(arguments) if isinstance(value, torch.Tensor) and value.requires_grad]
    found: list[Any] = []
    if trained and leaves:
        given = [gradients(torch.ones(value.shape, dtype=value.dtype)) for value in trained]
        found = list(torch.autograd.grad(trained, leaves, given, allow_unused=True))
    return tree_leaves(results), found


def _compare(differ: dict[str, str], name: str, real: Any, fake: Any, arguments: Any) -> None:
    if (
        isinstance(real, torch.Tensor)
        and isinstance(fake, torch.Tensor)
        and real.shape == fake.shape
        and _wide(real) != _wide(fake)
    ):
        example = f"{list(real.shape)}: {list(real.stride())}, fake {list(fake.stride())}; of {arguments}"
        differ.setdefault(name, example[:400])


def _kind(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return tuple(value.shape), value.stride(), value.dtype
    return repr(value)


def _wide(value: torch.Tensor) -> list[tuple[int, int]]:
    """Strides of dimensions whose size is not 1, with their sizes. Other strides have no effect."""
    if value.layout != torch.strided or not value.numel():
        return []
    return [(size, step) for size, step in zip(value.shape, value.stride(), strict=True) if size != 1]


if __name__ == "__main__":
    main()
