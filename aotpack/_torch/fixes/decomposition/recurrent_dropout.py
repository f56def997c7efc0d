"""Fixes the dropout between recurrent layers."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._decomp import decompositions

from ...api.dispatch_rules import Rule
from ...api.patching import patched


def apply_dropout_between_layers() -> contextlib.AbstractContextManager[Any]:
    """Draw the dropout between recurrent layers, which torch's decomposition omits."""
    return patched("decomposition-dropout-of-recurrent-layers", decompositions, "_rnn_helper", _rnn_with_dropout)


_rnn_without_dropout: Rule = decompositions._rnn_helper


def _rnn_with_dropout(
    x: Any, hidden: Any, params: Any, has_biases: bool, layers: int, dropout: float, train: bool, *rest: Any
) -> Any:
    """torch's decomposition of recurrent layers omits the dropout between them (``num_layers < i -
    1``).
    """
    *flags, layer_function = rest
    last: list[Any] = []

    def layer(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not last:
            last[:] = [x, x]
        elif x is not last[0]:  # not the other direction of the same layer
            last[:] = [x, torch.dropout(x, dropout, True)]
        return layer_function(last[1], *args, **kwargs)

    chosen = layer if dropout and train else layer_function
    return _rnn_without_dropout(x, hidden, params, has_biases, layers, 0.0, train, *flags, chosen)
