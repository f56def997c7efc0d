"""Torch's fake kernels against its real ones: whether what they return has the same strides.

A build knows of a kernel's result what its fake counterpart tells. Compiled code reads the result by these strides
(``aotpack/_torch_compat/kernel_layouts.py`` lays it out anew where the kernel chose others). Compared are the ATen operators that
samples of torch's operator database call, forward and backward, with their tensors in several layouts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts" / "bench"))

from machine import provenance  # noqa: E402
from rich.progress import track  # noqa: E402

RESULTS = ROOT / "scripts" / "bench" / "results" / "fake_kernels.json"


def main() -> None:
    options = parse()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = Comparison()
    for operator in track(op_db, description="operators", disable=not sys.stderr.isatty()):
        end = time.monotonic() + options.seconds
        for call in calls(operator):
            with found:
                call()
            if time.monotonic() > end:
                break
    told = {
        **provenance(threads=1),
        "database": len(op_db),
        "operators": len(found.operators),
        "calls": len(found.known),
        "differ": dict(sorted(found.differ.items())),
        "not_compared": dict(sorted(found.refused.items())),
    }
    if options.results:
        options.results.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=2) if options.json else text(told))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8, help="for an operator of the database (default 8)")
    parser.add_argument("--results", type=Path, metavar="FILE", help=f"write what was found there ({RESULTS.relative_to(ROOT)})")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    return parser.parse_args()


def text(told: dict[str, Any]) -> str:
    lines = [f"{name}: {example}" for name, example in told["differ"].items()]
    return "\n".join([*lines, f"{len(told['differ'])} of {told['operators']} ATen operators differ, in {told['calls']} calls"])


# ---------------------------------------------------------------- what is called


def calls(operator: Any) -> Iterator[Callable[[], None]]:
    """Samples of an operator, each with its tensors in several layouts, forward and backward."""
    types = operator.supported_dtypes("cpu")
    if not types:
        return
    dtype = torch.float32 if torch.float32 in types else min(types, key=str)
    trained = operator.supports_autograd and dtype.is_floating_point
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=trained):
        for layout in LAYOUTS:
            yield lambda sample=sample, layout=layout: _step(operator, sample, layout)


def _step(operator: Any, sample: Any, layout: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def laid_out(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            return layout(value.detach()).requires_grad_(value.requires_grad)
        return value

    given = tree_map(laid_out, (sample.input, sample.args, sample.kwargs))
    try:
        results = operator.op(given[0], *given[1], **given[2])
        results = [value for value in tree_leaves(results) if isinstance(value, torch.Tensor) and value.requires_grad]
        leaves = [value for value in tree_leaves(given) if isinstance(value, torch.Tensor) and value.requires_grad]
        if results and leaves:
            torch.autograd.grad(results, leaves, [torch.ones_like(value) for value in results], allow_unused=True)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError):
        return  # samples are made for their own layout: some operators take no other


def _strided(value: torch.Tensor, steps: list[int]) -> torch.Tensor:
    return torch.empty_strided(value.shape, steps, dtype=value.dtype).copy_(value)


def _steps(sizes: list[int], first: int = 1, gap: int = 0) -> list[int]:
    """Strides of dimensions from the innermost out."""
    found, step = [], first
    for size in sizes:
        found.append(step)
        step *= max(size + gap, 1)
    return found


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return value.contiguous(memory_format=formats[value.dim()]) if value.dim() in formats else value


LAYOUTS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda value: value,
    lambda value: _strided(value, _steps(list(value.shape))),  # the first dimension innermost
    lambda value: _strided(value, _steps(list(value.shape)[::-1], first=2)[::-1]),  # every other element
    lambda value: _strided(value, _steps(list(value.shape)[::-1], gap=1)[::-1]),  # gaps between rows
    _channels_last,
)


# ---------------------------------------------------------------- comparison


@dataclass
class Comparison(TorchDispatchMode):
    """Calls each operator on fake tensors, too, once for arguments that are alike.

    Args:
        operators: those that were compared.
        known: calls that were.
        differ: an example by operator.
        refused: operators whose fake kernel raised an error, and the first.
    """

    operators: set[str] = field(default_factory=set)
    known: set[Any] = field(default_factory=set)
    differ: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        key = (str(func), *map(_kind, tree_leaves((args, kwargs))))
        fake = None
        if func.namespace == "aten" and key not in self.known:
            self.known.add(key)
            fake = self._faked(func, args, kwargs)
        real = func(*args, **kwargs)
        if fake is not None:
            self.operators.add(str(func))
            for one, other in zip(tree_leaves(real), tree_leaves(fake), strict=True):
                if isinstance(one, torch.Tensor) and one.shape == other.shape and _wide(one) != _wide(other):
                    told = f"{list(one.shape)}: {list(one.stride())}, the fake one {list(other.stride())}; of {key[1:]}"
                    self.differ.setdefault(str(func), told[:400])
        return real

    def _faked(self, func: Any, args: Any, kwargs: Any) -> Any:
        plain = {id(value): value.detach() for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)}
        with FakeTensorMode() as mode, torch.no_grad():
            made = {name: mode.from_tensor(value, static_shapes=True) for name, value in plain.items()}
            own, named = tree_map(lambda value: made.get(id(value), value), (args, kwargs))
            try:
                return func(*own, **named)
            except Exception as error:  # whatever a fake kernel raises is told
                self.refused.setdefault(str(func), f"{type(error).__name__}: {error}"[:200])
                return None


def _kind(value: Any) -> Any:
    return (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, torch.Tensor) else repr(value)


def _wide(value: torch.Tensor) -> list[tuple[int, int]]:
    """Strides that mean something, with their sizes."""
    if value.layout != torch.strided or not value.numel():
        return []
    return [(size, step) for size, step in zip(value.shape, value.stride(), strict=True) if size != 1]


if __name__ == "__main__":
    main()
