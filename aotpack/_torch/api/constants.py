"""Lets a trace read constants that pass through tensors, such as ``torch.arange(1,
x.dim()).tolist()``.

A tensor that functions of torch make from Python numbers only has the same value at every call.
"""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from .patching import hooked


class _Recipe(NamedTuple):
    """How a tensor was made, for one version of it; ``position`` is its index if the function
    returned several.
    """

    tensor: weakref.ref[torch.Tensor]
    version: int
    function: Callable[..., Any]
    args: Any
    kwargs: Any
    position: int | None


_MADE_BY = frozenset({torch.arange, torch.tensor, torch.linspace, torch.zeros, torch.ones, torch.full, torch.eye})
_READ_BY = frozenset({
    torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__bool__, torch.Tensor.__int__, torch.Tensor.__float__,
    torch.Tensor.__index__, torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose,
})  # fmt: skip
_NAMES = ["prod", "sum", "cumsum", "cumprod", "max", "min", "amax", "amin", "any", "all", "flip", "reshape", "flatten", "view"]
_NAMES += ["to", "long", "int", "float", "bool", "diff", "stack", "cat", "unbind", "meshgrid", "add", "sub", "mul", "div", "pow"]
_NAMES += ["floor_divide", "sqrt", "ceil", "floor", "eq", "ne", "lt", "gt", "__getitem__", "__add__", "__sub__", "__mul__"]
_NAMES += ["triu", "tril", "masked_fill", "where", "expand", "repeat", "squeeze", "unsqueeze", "transpose", "permute", "t"]
_NAMES += ["logical_not", "logical_and", "logical_or", "__invert__", "__and__", "__or__", "le", "ge", "__le__", "__ge__"]
_NAMES += ["neg", "__neg__", "__rsub__", "abs", "exp", "log", "clamp", "roll", "double", "contiguous", "clone", "detach"]
_NAMES += ["__truediv__", "__radd__", "__rmul__", "__floordiv__", "__mod__", "__pow__", "__eq__", "__ne__", "__lt__", "__gt__"]
_KEPT_BY = frozenset(
    getattr(owner, name) for owner in (torch, torch.Tensor) for name in _NAMES if callable(getattr(owner, name, 0))
)


class KnownConstants(TorchFunctionMode):
    """Lets Python read the value of a tensor that is made from Python numbers only.

    The value is computed when it is read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._recipes: dict[int, _Recipe] = {}
        # ``tolist`` of this class reads its inner tensor, which no torch function mode sees.
        original = FunctionalTensor.tolist
        self._lists = contextlib.ExitStack()
        self._listed = lambda x: self._list(x) if self._recipe(x) else original(x)

    def __enter__(self) -> Any:
        self._lists.enter_context(hooked("fake-constants", FunctionalTensor, "tolist", self._listed))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *raised: Any) -> None:
        self._lists.close()
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor is made from Python numbers only."""
        return self._recipe(tensor) is not None

    def _list(self, tensor: torch.Tensor) -> Any:
        with _disable_current_modes(), torch.no_grad():
            return self._value(tensor).tolist()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _READ_BY and self._is_known((args, kwargs)):
            with _disable_current_modes(), torch.no_grad():
                return func(*self._real(args), **self._real(kwargs))
        if _writes(func, kwargs) or (_may_write(func) and self._is_known_argument((args, kwargs))):
            self._recipes.clear()  # views of the mutated tensor may have recipes too
        result = func(*args, **kwargs)
        known = func in _MADE_BY or (func in _KEPT_BY and "out" not in kwargs)
        if known and self._is_known((args, kwargs)):
            made = enumerate(result) if isinstance(result, (tuple, list)) else [(None, result)]
            for position, tensor in made:
                if isinstance(tensor, torch.Tensor) and self._recipe(tensor) is None:  # `to` may return its argument
                    recipe = _Recipe(weakref.ref(tensor), tensor._version, func, args, kwargs, position)
                    self._recipes[id(tensor)] = recipe
        return result

    def _is_known_argument(self, value: Any) -> bool:
        return len(self._recipes) > 0 and any(id(leaf) in self._recipes for leaf in torch.utils._pytree.tree_leaves(value))

    def _is_known(self, value: Any) -> bool:
        leaves = torch.utils._pytree.tree_leaves(value)
        return all(self._recipe(leaf) is not None if isinstance(leaf, torch.Tensor) else _is_plain(leaf) for leaf in leaves)

    def _recipe(self, tensor: torch.Tensor) -> _Recipe | None:
        recipe = self._recipes.get(id(tensor))
        return recipe if recipe is not None and recipe.tensor() is tensor and recipe.version == tensor._version else None

    def _real(self, value: Any) -> Any:
        return torch.utils._pytree.tree_map_only(torch.Tensor, self._value, value)

    def _value(self, tensor: torch.Tensor) -> torch.Tensor:
        recipe = self._recipe(tensor)
        assert recipe is not None
        made: Any = recipe.function(*self._real(recipe.args), **self._real(recipe.kwargs))
        return made if recipe.position is None else made[recipe.position]  # type: ignore[no-any-return]


def _writes(function: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function's name or arguments show that it writes to an argument."""
    name = getattr(function, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in _WRITES or "out" in kwargs or bool(kwargs.get("inplace"))


def _may_write(function: Any) -> bool:
    """Whether a function may write to an argument without showing it; functions in C and attribute
    reads do not.
    """
    if isinstance(function, types.MethodWrapperType):
        return bool(function.__name__ != "__get__")
    in_c = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    return not isinstance(function, in_c) and function not in _READ_BY | _KEPT_BY | _MADE_BY


_WRITES = frozenset({"__setitem__", *(f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"))})
_WRITES |= frozenset(f"__i{name}__" for name in ("and", "or", "xor", "lshift", "rshift"))


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, slice, torch.dtype, torch.device, type(None), type(...)))
