"""BatchNorm with ``momentum = None``: statistics are averages over all batches.

``torch.optim.swa_utils.update_bn`` sets this. Compiled code has the momentum of the build, and
computes ``(1 - momentum) * old + momentum * batch``. If the old statistic is zero, the result
divided by the momentum is the statistic of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..errors import EditError, Problem

_STATISTICS = ("running_mean", "running_var")
_COUNT = "num_batches_tracked"


def can_average(module: nn.Module, base: type[nn.Module], momentum: Any) -> bool:
    """Whether calls can average the statistics of ``module``.

    It must be torch's own class, with a momentum at the build.
    """
    has_all = all(isinstance(module._buffers.get(name), torch.Tensor) for name in (*_STATISTICS, _COUNT))
    return base in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) and isinstance(momentum, float) and momentum > 0 and has_all


@contextmanager
def averaged(modules: Sequence[tuple[str, nn.Module, float]], undo: Callable[[], None]) -> Iterator[None]:
    """Make a call inside the block average the statistics of ``modules``.

    Each comes with its path and the momentum of the build.

    Raises:
        EditError: a module runs more than once in a call. Its statistics are restored, and ``undo``
            was called.
    """
    training = [item for item in modules if item[1].training]
    before = [{name: _buffer(module, name) for name in (*_STATISTICS, _COUNT)} for _, module, _ in training]
    try:
        for (_, module, _), kept in zip(training, before, strict=True):
            module._buffers.update({name: torch.zeros_like(tensor) for name, tensor in kept.items()})
        yield
        found = [{name: _buffer(module, name) for name in kept} for (_, module, _), kept in zip(training, before, strict=True)]
    finally:
        for (_, module, _), kept in zip(training, before, strict=True):
            module._buffers.update(kept)
    passes = [int(made[_COUNT]) for made in found]
    again = [Problem(path, f"runs {n} times in a call") for (path, _, _), n in zip(training, passes, strict=True) if n > 1]
    if again:
        undo()
        raise EditError(
            "momentum = None: after a call, the statistics of a single pass through a module are not known.",
            again,
            hint="Set momentum to what it was. Average the statistics of the model itself, and load them with load_state_dict().",
        )
    for (_, _, momentum), kept, made in zip(training, before, found, strict=True):
        if made[_COUNT]:
            kept[_COUNT].add_(1)
            for name in _STATISTICS:
                kept[name].lerp_(made[name] / momentum, 1 / int(kept[_COUNT]))


def _buffer(module: nn.Module, name: str) -> torch.Tensor:
    buffer = module._buffers[name]
    assert buffer is not None
    return buffer
