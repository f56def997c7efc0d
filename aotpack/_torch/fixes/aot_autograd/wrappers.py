"""Fixes of the wrappers that AOTAutograd traces with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.symbolic_shapes import (
    statically_known_true,
)

from ...api.fake_tensors import is_wrapper_subclass
from ...api.patching import hooked, patched
from ..applying import count_call

_BEFORE_STORAGE_SIZE = 13
"""Number of positional arguments of ``_make_wrapper_subclass`` between the class and the size of
the storage.
"""


@contextlib.contextmanager
def enlarge_wrapper_storages(inputs: Any) -> Iterator[None]:
    """Let ``as_strided_`` move an input within its storage while it is traced.

    The wrapper that AOTAutograd traces with has a storage as large as the tensor alone, and torch
    rejects any access beyond it. The run on fake tensors has already shown that the model stays
    within the real storage.
    """
    plain = [x for x in torch.utils._pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor) and not is_wrapper_subclass(x)]
    sizes = [(x.untyped_storage().nbytes(), x.numel() * x.element_size()) for x in plain if x.layout == torch.strided]
    sizes_within = [size for size, own in sizes if statically_known_true(size > own)]
    make: Callable[..., Any] = torch.Tensor._make_wrapper_subclass

    def make_wrapper(cls: type, *described: Any, **named: Any) -> Any:
        if cls is not FunctionalTensor:
            return make(cls, *described, **named)
        # Each wrapper gets the sum of all sizes: with dynamic shapes it may not be known which of
        # two sizes is larger.
        count_call("aot-wrappers-with-room")
        # From torch 2.15 on, one more positional argument describes the size of the storage. It is
        # the last one.
        return make(cls, *described[:_BEFORE_STORAGE_SIZE], sum(sizes_within), **named)

    if not sizes_within:
        yield
        return
    with hooked("aot-wrappers-with-room", torch.Tensor, "_make_wrapper_subclass", make_wrapper):
        yield


def keep_multi_output_views() -> contextlib.AbstractContextManager[Any]:
    """Keep the outputs of multi-output views (``chunk``) views: AOTAutograd hides from autograd
    that they share memory.
    """
    return patched("aot-views-of-several-outputs", torch, "_functionalize_is_multi_output_view", lambda *given: False)
