"""Operators on rows, which take no negative index: ``index_select``, ``index_add``, ``index_copy``.

A bundle's graphs keep them. Only the graph that Inductor compiles has indexing instead
(``inductor/codegen/negative_indices.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch._functorch import partitioners
from torch.fx import Node

from .patching import hooked

_aten = torch.ops.aten
ROWS: Final = (_aten.index_select.default, _aten.index_add.default, _aten.index_copy.default)
KEPT: Final = (*ROWS, _aten.repeat_interleave.Tensor)
"""Operators that check values which Inductor's decompositions of them do not check."""
MARK: Final = "aotpack_rows"
"""Entry in the ``meta`` of indexing: the operator that it stands for."""


def operator_of(node: Node) -> Any:
    """The operator that a node calls, or that it stands for."""
    return node.meta.get(MARK, node.target)


@contextlib.contextmanager
def recompute_rows() -> Iterator[None]:
    """Let the partitioner compute ``index_select`` again in the backward, as it does with indexing."""
    listed = partitioners.get_default_op_list

    def with_rows() -> partitioners.OpTypes:
        known = listed()
        for operators in (known.fusible_ops, known.recomputable_ops):
            operators.add(_aten.index_select)
        return known

    with hooked("partitioner-rows", partitioners, "get_default_op_list", with_rows):
        yield
