"""Refuses arguments that eager's kernels refuse, and that a trace takes: other element types or sizes.

Fake kernels and decompositions check less than kernels do. They multiply matrices of two types, and
expand what ``index_add`` adds. So eager's own function is called with other tensors of the same
types and sizes where its arguments are unusual. Its error is the error of the trace.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dispatch.python import no_python_dispatcher
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from aotpack_loader.runtime.memory import extent

from ...api.counting import count_call
from ...api.fake_tensors import hint_of
from .overlaps import is_plain

_OF_ONE_TYPE = re.compile(
    r"add(bmm|mm|mv|r)|baddbmm|binary_cross_entropy|bmm|chain_matmul|conv\d+d|conv_transpose\d+d|convolution|dot|inner"
    r"|linear|linear_cross_entropy|r?matmul|mm|mv|tensordot|vdot"
)
"""Functions that convert no argument to the type of another. Most have no kernel for booleans."""
_OF_SIZES = re.compile(
    r"add(bmm|mm|mv|r)|baddbmm|bernoulli|binary_cross_entropy_with_logits|bucketize|celu|clamp|complex|cross|cross_entropy(_loss)?|cummax|cummin|diagonal_scatter|frac"
    r"|hardshrink|hardtanh|heaviside|huber_loss|index_(add|copy|fill|reduce)|isin|lerp|linalg_cross|log_ndtr|logaddexp2?|logcumsumexp|logit"
    r"|(log_)?softmax_backward_data|masked_(scatter|select)|multi_margin_loss|multilabel_margin_loss|multinomial|native_group_norm"
    r"|nll_loss(2d|_nd)?|pixel_(un)?shuffle|polar|random|select_scatter|smooth_l1_loss|soft_margin_loss|special_(log_ndtr|xlogy)|threshold|xlogy"
)
"""Functions that take more sizes, types or numbers in a trace.

``as_strided_scatter`` reads beyond its tensor, so it is left out.
"""
_OF_REAL_NUMBERS = frozenset(
    {name.strip("_") for name in (*dir(torch._C._nn), *dir(torch.nn.functional))}
    | {"mvlgamma", "nanmean", "nansum", "round", "safe_softmax", "std", "std_mean", "trace", "var", "var_mean"}
)
"""Activations, pools, losses: most have no kernels for whole and complex numbers. A trace computes with them."""
_OF_TWO_TYPES = frozenset({"embedding", "embedding_bag", "one_hot"})
"""Those of them that take tensors of two types as a rule, and check them in a trace."""
_MODULES = frozenset({"torch", "torch._tensor", "torch.functional", "torch.nn.functional", "torch._ops.aten"})
_MOST = 1 << 24
"""How many elements are made of one tensor. A build of a large model must not take its memory."""
_NORMS = re.compile(r"(native_)?(batch|group|layer)_norm(_legit|_with_update)?|instance_norm")


class KernelArgumentsMode(TorchFunctionMode):
    """While active, asks eager's functions whether they take unusual arguments."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        values = tree_leaves((args, kwargs))
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        name = getattr(function, "__name__", "").partition(".")[0].strip("_")
        dtypes = [value for value in values if isinstance(value, torch.dtype)]
        is_unusual = _is_unusual(name, tensors, dtypes)
        if is_unusual and _computes(function) and all(map(_can_be_made, values)):
            count_call("aot-arguments-of-kernels")
            _call_on_others(function, args, kwargs)
        return function(*args, **kwargs)


def _is_unusual(name: str, tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> bool:
    """Whether a function may refuse these tensors or types, or checks more than a trace does."""
    if name == "arange":
        return any(dtype.is_complex or dtype is torch.bool for dtype in dtypes)
    if not tensors:
        return False
    types = {tensor.dtype for tensor in tensors}
    numbers = {dtype for dtype in types if dtype.is_floating_point or dtype.is_complex}
    if (
        _OF_SIZES.fullmatch(name)
        or len(numbers) > 1
        or (name in _OF_REAL_NUMBERS and not any(dtype.is_floating_point for dtype in types))
        or (name in _OF_REAL_NUMBERS and not all(dtype.is_floating_point for dtype in dtypes))
        or (name in _OF_REAL_NUMBERS - _OF_TWO_TYPES and len(types) > 1)
        or ((len(types) > 1 or torch.bool in types) and _OF_ONE_TYPE.fullmatch(name))
    ):
        return True
    return _NORMS.fullmatch(name) is not None and (len(types) > 1 or not numbers or not _fit(*tensors))


def _fit(x: torch.Tensor, *parameters: torch.Tensor) -> bool:
    """Whether parameters have the sizes of the channels, or of the last dimensions; no guard is added."""
    sizes = _hints(x.shape)
    found = (_hints(each.shape) for each in parameters)
    return all(one and one in (sizes[1:2], sizes[len(sizes) - len(one) :]) for one in found)


def _hints(numbers: Sequence[int | torch.SymInt]) -> tuple[int, ...]:
    return tuple(map(hint_of, numbers))


def _computes(function: Callable[..., Any]) -> bool:
    """Whether a function only computes with tensors; ``torch.autograd.grad`` and a model's own operator may do more."""
    module = getattr(function, "__module__", None) or getattr(function, "__objclass__", type(function)).__module__
    return module in _MODULES or module.startswith("torch._C")


def _can_be_made(value: object) -> bool:
    """Whether another argument of this kind can be made. Numbers and sizes that depend on data are not known."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return not free_unbacked_symbols(value)
    if not isinstance(value, torch.Tensor):
        return True
    tensor = value
    if tensor.device.type != "cpu" or not is_plain(tensor) or free_unbacked_symbols(tensor):
        return False
    return extent(_hints(tensor.shape), _hints(tensor.stride())) <= _MOST


def _call_on_others(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Call a function on tensors of the same types, sizes and strides.

    Raises:
        Exception: what the function raises.
    """

    def other(tensor: torch.Tensor) -> torch.Tensor:
        sizes, strides = _hints(tensor.shape), _hints(tensor.stride())
        number = 1 if tensor.dtype.is_floating_point else 0  # an index or a mask of zeros is always right
        return torch.full((max(extent(sizes, strides), 0),), number, dtype=tensor.dtype).as_strided(sizes, strides)

    with (
        _disable_current_modes(),
        no_python_dispatcher(),
        torch._C.DisableTorchFunction(),
        torch.no_grad(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # the model's own call warns
        numbers = tree_map_only(torch.SymInt, hint_of, (args, kwargs))
        given, named = tree_map_only(torch.Tensor, other, numbers)
        state = torch.default_generator.get_state()
        try:
            function(*given, **named)
        finally:
            torch.default_generator.set_state(state)
