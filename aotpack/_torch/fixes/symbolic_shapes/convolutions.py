"""Fixes of guards on sizes that only pick a kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..applying import patched


@contextlib.contextmanager
def unguarded_convolutions() -> Iterator[None]:
    """Trace and compile convolutions without fixing the batch size.

    Choosing a convolution backend asks whether the batch is large; the answer only picks a kernel, but
    torch would record it as a condition on the size. The choice is made again at run time, so the condition is dropped.
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
