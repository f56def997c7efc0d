"""Traces batch norm with ``momentum=None``, whose running statistics are the plain average over all
batches.

Eager reads the number of batches from its counter as a Python number: ``1.0 /
float(num_batches_tracked)``. A graph cannot hold that. Here the factor stays a tensor, and the
statistics are updated as eager's kernel updates them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from .patching import hooked

_eager: Callable[[_BatchNorm, Tensor], Tensor] = _BatchNorm.forward
_eager_in_sync: Callable[[SyncBatchNorm, Tensor], Tensor] = SyncBatchNorm.forward


@contextlib.contextmanager
def traced_averages() -> Iterator[None]:
    """Let batch norm modules with ``momentum=None`` update their statistics with tensor operators
    only.
    """
    hook = "decomposition-averages-of-batch-norm"
    with hooked(hook, _BatchNorm, "forward", _forward), hooked(hook, SyncBatchNorm, "forward", _forward_in_sync):
        yield


def _forward_in_sync(self: SyncBatchNorm, input: Tensor) -> Tensor:
    """In one process, sync batch norm equals batch norm; eager counts batches with the same Python
    number.
    """
    if self.momentum is not None or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return _eager_in_sync(self, input)
    return _forward(self, input)


def _forward(self: _BatchNorm, input: Tensor) -> Tensor:  # callers may pass ``input`` by keyword
    if self.momentum is not None or not self.training or self.running_mean is None or self.num_batches_tracked is None:
        return _eager(self, input)
    if not self.track_running_stats or self.running_var is None:
        return _eager(self, input)
    self._check_input_dim(input)
    self.num_batches_tracked.add_(1)
    # With a momentum of 1 both become the batch's own statistics, the variance with Bessel's
    # correction.
    mean, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
    result = batch_norm(input, mean, variance, self.weight, self.bias, True, 1.0, self.eps)
    factor = 1.0 / self.num_batches_tracked.double()
    for running, of_batch in ((self.running_mean, mean), (self.running_var, variance)):
        with _unsafe_preserve_version_counter(running):  # the kernel does not move it either
            running.copy_(factor * of_batch.double() + (1.0 - factor) * running.double())
    return result
