"""Traces functions of torch that check their arguments' values and raise; the graph then checks
while it runs.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode

from .patching import hooked

_LENGTHS = ("input_lengths", "target_lengths")


def _ctc_loss_of_tensors(function: Any, args: Any, kwargs: Any) -> Any:
    """Call ``ctc_loss`` with lengths as tensors.

    With lists, it would read the values of its targets while it is traced.
    """
    named = {
        **dict(zip(("log_probs", "targets", *_LENGTHS, "blank", "reduction", "zero_infinity"), args, strict=False)),
        **kwargs,
    }
    for name in _LENGTHS:
        if isinstance(named.get(name), (list, tuple)):
            named[name] = torch.tensor(list(named[name]))
    return function(**named)


def _assertion(condition: Any, message: str) -> None:
    """``torch._assert``: it would ask a tensor for its truth while it is traced."""
    if isinstance(condition, torch.Tensor):
        torch.ops.aten._assert_async.msg(condition, str(message))
    elif not condition:
        raise AssertionError(message)


_QUANTILES = (torch.quantile, torch.nanquantile, torch.Tensor.quantile, torch.Tensor.nanquantile)


def _assert_quantiles(function: Any, x: Any, q: Any, *args: Any, **kwargs: Any) -> None:
    """Assert that quantiles are asked for that there are. torch looks at real tensors alone."""
    if isinstance(q, torch.Tensor):
        name = function.__name__
        torch.ops.aten._assert_async.msg(((q >= 0) & (q <= 1)).all(), f"{name}() q values must be in the range [0, 1]")


_SIGNATURE = inspect.signature(torch.nn.functional.gaussian_nll_loss)


def _clamped_variances(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of ``gaussian_nll_loss`` with variances that it need not clamp, and an assertion of them.

    It clamps under ``no_grad``, which `torch.export` does not see inside a function of torch: variances
    below ``eps`` would get no gradient.
    """
    given = _SIGNATURE.bind(*args, **kwargs)
    given.apply_defaults()
    variances, eps = given.arguments["var"], given.arguments["eps"]
    if isinstance(variances, torch.Tensor):
        torch.ops.aten._assert_async.msg(torch.any(variances < 0).logical_not(), "var has negative entry/entries")
        given.arguments["var"] = torch.where(variances < eps, variances - variances.detach() + eps, variances)
    return given.args, given.kwargs


class AssertedArguments(TorchFunctionMode):
    """While active, assumes that such a function's check passes, and adds an assertion of it to the
    graph.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.ctc_loss:
            return _ctc_loss_of_tensors(function, args, kwargs or {})
        if function is torch._assert:
            return _assertion(*args, **(kwargs or {}))
        if function is torch._assert_async and len(args) == 1 and not kwargs:
            # torch.fx takes this overload for a call without an effect, and removes it.
            return torch.ops.aten._assert_async.msg(*args, "Expected Tensor with single nonzero value, but got zero")
        if function in _QUANTILES:
            _assert_quantiles(
                function, *args, **{"x" if name == "input" else name: given for name, given in (kwargs or {}).items()}
            )
        if function is not torch.nn.functional.gaussian_nll_loss:
            return function(*args, **(kwargs or {}))
        args, kwargs = _clamped_variances(args, kwargs or {})

        def is_wrong(found: torch.Tensor) -> bool:
            return False  # the graph asserts it

        with (
            hooked("fake-asserted-arguments", torch.Tensor, "__bool__", is_wrong),
            hooked("fake-asserted-arguments", FunctionalTensor, "__bool__", is_wrong),
        ):
            return function(*args, **kwargs)
