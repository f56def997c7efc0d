"""Records which results are views that no gradient flows through, as torch does from 2.12 on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import aot_autograd

from ...api.patching import hooked, patched

_FIX = "aot-views-without-gradients"


@contextlib.contextmanager
def record_views_without_gradients() -> Iterator[None]:
    """Set ``requires_grad_for_backward`` in the metadata of each result.

    A view that is made under ``no_grad`` requires a gradient if its base does, but has no
    ``grad_fn``. Without this flag such a result counts as one that gradients flow through.
    """
    collect: Callable[..., Any] = aot_autograd.run_functionalized_fw_and_collect_metadata  # type: ignore[attr-defined]
    capture: Callable[..., Any] = aot_autograd.aot_stage1_graph_capture  # type: ignore[attr-defined]
    without_gradients: list[bool] = []

    def collecting(function: Callable[..., Any], **options: Any) -> Any:
        def noted(*args: Any) -> Any:
            results = function(*args)
            without_gradients[:] = map(_is_view_without_gradient, results)
            return results

        return collect(noted, **options)

    def capturing(state: Any, *args: Any, **options: Any) -> Any:
        captured = capture(state, *args, **options)
        for info, without in zip(state.fw_metadata.output_info, without_gradients, strict=True):
            object.__setattr__(info, "requires_grad_for_backward", info.requires_grad and not without)  # a frozen record
        return captured

    with (
        hooked(_FIX, aot_autograd, "run_functionalized_fw_and_collect_metadata", collecting),
        patched(_FIX, aot_autograd, "aot_stage1_graph_capture", capturing),
    ):
        yield


def _is_view_without_gradient(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.requires_grad and result._base is not None and result.grad_fn is None
