"""Fixes of the decomposition of LSTMs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._decomp import decompositions as lstm_decompositions

from ...api.patching import patched, replaced


@contextlib.contextmanager
def trace_lstms_for_training() -> Iterator[None]:
    """Keep LSTMs whose weights get gradients out of oneDNN's inference kernel, which saves nothing
    for a backward.

    torch selects that kernel whenever the input itself needs no gradient. For other LSTMs torch 2.11
    returns the last states with one dimension too many.
    """
    select: Callable[..., Any] = lstm_decompositions.select_one_layer_lstm_function
    layer: Callable[..., Any] = lstm_decompositions.one_layer_lstm

    def one_layer_lstm(given: torch.Tensor, hidden: Any, *rest: Any, **how: Any) -> Any:
        rows, last = layer(given, hidden, *rest, **how)
        return rows, tuple(
            state.squeeze(0) if state.dim() > first.dim() else state for state, first in zip(last, hidden, strict=True)
        )

    def chosen(given: torch.Tensor, hidden: Any, weights: Any) -> Any:
        trained = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in torch.utils._pytree.tree_leaves((hidden, weights))
        )
        return lstm_decompositions.one_layer_lstm if trained else select(given, hidden, weights)

    with (
        patched("decomposition-lstm-of-inference", lstm_decompositions, "select_one_layer_lstm_function", chosen),
        replaced("decomposition-lstm-of-inference", lstm_decompositions, "one_layer_lstm", one_layer_lstm),
    ):
        yield
