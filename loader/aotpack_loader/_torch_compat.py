"""Every private, release-dependent torch API the loader touches, and nothing else.

Tried on: torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

TRIED_ON = ("2.13.0",)


def keeps_graph() -> bool:
    """Whether the running backward was called with ``retain_graph=True``."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def release_saved_tensors(ctx: Any) -> None:
    """Drop a function's saved tensors now, unless the graph is kept: they then live only as long as they are used."""
    ctx.maybe_clear_saved_tensors()


def is_plain_tensor(value: Any) -> bool:
    """A tensor or parameter, not a tensor subclass that intercepts operations."""
    kind = type(value)
    return kind is torch.Tensor or kind is torch.nn.Parameter or kind is torch.nn.Buffer


def is_dispatched(operator: torch._ops.OpOverload) -> bool:
    """Whether torch's dispatcher has the operator, rather than TorchScript's interpreter alone."""
    return torch._C._dispatch_has_kernel(operator.name())


def aoti_runner(package: Path) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Open an unpacked AOTInductor package; the runner takes ownership of the inputs it is given."""
    return torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, -1).boxed_run
