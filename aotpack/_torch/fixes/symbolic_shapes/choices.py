"""Fixes of guards that torch adds on sizes only to choose a kernel, or an order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.backends.opt_einsum

from ...api.fake_tensors import hint_of
from ...api.patching import patched


@contextlib.contextmanager
def choose_convolutions_without_guards() -> Iterator[None]:
    """Trace and compile convolutions with a dynamic batch size.

    Torch chooses a convolution backend by whether the batch is large, and would guard on it. The
    choice only selects a kernel, and is made again at run time. So the guard is dropped.
    """
    names = ("_select_conv_backend", "_conv_determine_backend_memory_format")
    originals = {name: getattr(torch._C, name) for name in names}

    def unguarded(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            values = torch.utils._pytree.tree_leaves((args, kwargs))
            env = next((v.fake_mode.shape_env for v in values if isinstance(v, torch._subclasses.FakeTensor)), None)
            with env.suppress_guards() if env is not None else contextlib.nullcontext():
                return function(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for name, function in originals.items():
            stack.enter_context(patched("shapes-convolution-backend", torch._C, name, unguarded(function)))
        yield


@contextlib.contextmanager
def order_contractions_without_guards() -> Iterator[None]:
    """Trace ``einsum`` of three operands and more with sizes that vary, where opt_einsum is installed.

    It compares sizes to choose an order of the products, and torch would guard on all of them. The order of the
    example serves all sizes: results differ by rounding alone.
    """
    module: Any = torch.backends.opt_einsum
    original = module.get_opt_einsum

    def chosen(equation: str, *operands: torch.Tensor, optimize: Any) -> Any:
        sizes = [tuple(hint_of(size) for size in operand.shape) for operand in operands]
        return original().contract_path(equation, *sizes, optimize=optimize, shapes=True)

    found = SimpleNamespace(contract_path=chosen)
    with patched("shapes-order-of-contractions", module.m, "get_opt_einsum", lambda: found):
        yield
