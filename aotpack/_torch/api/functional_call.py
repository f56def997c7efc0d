"""Calls a module with other parameters and buffers, as ``torch.func.functional_call`` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.utils.stateless import _reparametrize_module


def functional_call(
    module: torch.nn.Module, state: Mapping[str, torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Call ``module`` with the tensors ``state`` by name. Afterwards it has its own ones again.

    ``torch.func.functional_call`` leaves the given tensors in a submodule that has several names: it saves what was there for
    each name, the second time the given tensor, and puts that back last.
    """
    with _reparametrize_module(module, {**state}, tie_weights=True, stack_weights=True):
        return module(*args, **kwargs)
