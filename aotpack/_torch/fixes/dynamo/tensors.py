"""Fixes what Dynamo knows of a tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.variables import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

from ...api.counting import count_call
from ...api.patching import Replacing, constant, replaced

_FIX = "dynamo-tensors-changed-in-place"
_ATTRIBUTES = ("ndim", "_size", "stride", "is_contiguous", "requires_grad", "has_grad_fn")


class _OfFakeTensor:
    """An attribute of Dynamo's variables that is read from the fake tensor each time."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, variable: Any, owner: type) -> Any:
        fake = variable.proxy.node.meta.get("example_value")
        if not isinstance(fake, torch.Tensor):
            return vars(variable)[self._name]
        count_call(_FIX)
        return variable.specialize(fake).get(self._name)

    def __set__(self, variable: Any, value: Any) -> None:
        vars(variable)[self._name] = value


@contextlib.contextmanager
def read_fake_tensors() -> Iterator[None]:
    """Read sizes, strides and flags of a tensor from its fake tensor, as they are now.

    Dynamo keeps those that the tensor had when it first appeared. An operator may change them in
    place (``t_``, ``squeeze_``), also by another name of the tensor or through a view of it. If a
    tensor does not seem to require a gradient, an ``autograd.Function`` is traced without its
    backward.
    """
    with contextlib.ExitStack() as stack:
        for name in _ATTRIBUTES:
            stack.enter_context(constant(_FIX, TensorVariable, name, _OfFakeTensor(name)))
        yield


def keep_divided_products() -> Replacing:
    """Trace ``addcdiv`` by a number as the operator that it is: Dynamo divides, multiplies and adds."""
    handlers = TorchInGraphFunctionVariable._get_handlers
    decomposed = handlers()[torch.addcdiv]

    def traced(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        value = kwargs.get("value")
        if value is None or not value.is_python_constant():
            return decomposed(self, tx, *args, **kwargs)
        count_call("dynamo-divided-products")
        return None

    with_ours: dict[Any, Any] = {**handlers(), torch.addcdiv: traced}
    return replaced("dynamo-divided-products", TorchInGraphFunctionVariable, "_get_handlers", lambda: with_ours)
