"""Fixes of guards that torch adds on sizes only to choose a kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

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
