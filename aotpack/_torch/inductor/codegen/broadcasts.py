"""Costly operands of a broadcast, and costly images of a pool, are computed once and stored.

Inductor fuses what computes an operand into the loop that reads it. A broadcast operand is then computed
again for each element of the result. A normalization divides and takes a root for each element. A product
of matrices with vectors, which Inductor turns into a sum, computes each vector for each row.

The loop of a pool is not vectorized if it finds positions, as that of ``max_pool2d``, or if its rows are shorter than a
vector. A function that it calls computes one element, and takes nine times as long for it as in a loop of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Set
from typing import Any, Final

from torch._inductor import ir, virtualized
from torch.fx import Node

from ...api.patching import patched

_TIMES = 8
"""How often an element is read, from which on it is stored. Writing and reading it then costs a loop little."""

_ELEMENTS = 4096
"""Elements of a result from which on the operand is stored. For less, the memory costs more than the operations."""

_COSTLY: Final = {
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "digamma", "div_rn", "erf", "erfc",
    "erfcx", "erfinv", "exp", "exp2", "expm1", "floordiv", "fmod", "hypot", "igamma", "igammac", "int_truediv",
    "lgamma", "log", "log10", "log1p", "log2", "log_ndtr", "mod", "ndtr", "ndtri", "polygamma", "pow",
    "reciprocal", "remainder", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "truediv", "truncdiv",
    "zeta",
}  # fmt: skip
"""Inductor's operations that take a processor many times as long as an addition."""

_INSTRUCTIONS: Final = {
    "div_rn", "floordiv", "fmod", "int_truediv", "mod", "reciprocal", "remainder", "rsqrt", "sqrt", "truediv", "truncdiv",
}  # fmt: skip
"""Those that are instructions of a processor. The others are functions."""


@contextlib.contextmanager
def costly_operands_stored() -> Iterator[None]:
    """Store a broadcast operand that takes costly operations, instead of computing it for each element.

    Inductor marks values with several users by the same function, so those with many users are stored, too. A sum of
    several values is, even if it is cheap: these can be freed before its users run.
    """
    mark: Callable[..., None] = ir.StorageBox.mark_reuse

    def marked(box: Any, users: int, **how: Any) -> None:
        mark(box, users, **how)
        if users < _TIMES or not isinstance(box.data, ir.Pointwise | ir.Reduction):
            return
        has_users = how.get("graph_reuse", True)  # else it is a broadcast; before torch 2.13 Inductor does not tell
        if _is_costly(box.data, _COSTLY, users) or (has_users and len({read.name for read in box.data.get_reads()}) > 1):
            box.realize()
            if isinstance(box.data, ir.ComputedBuffer):
                vars(box.data)["_force_realize"] = True  # else what reads no memory, such as a window, is computed again

    with patched("inductor-costly-broadcasts", ir.StorageBox, "mark_reuse", marked):
        yield


def stored_if_pooled(node: Node, result: Any) -> Any:
    """What Inductor made of ``node``. The image of a pool is stored if it takes a costly function."""
    if (
        isinstance(result, ir.TensorBox)
        and isinstance(result.data, ir.StorageBox)
        and isinstance(result.data.data, ir.Pointwise)
        and _is_pooled(node)
        and _is_costly(result.data.data, _COSTLY - _INSTRUCTIONS)
    ):
        result.realize()
    return result


def _is_pooled(node: Node) -> bool:
    """Whether a pool of any kind reads a value or a view of it. Inductor has names of its own for some."""
    for user in node.users:
        name = getattr(user.target, "__name__", "")
        if ("pool" in name and "backward" not in name) or (getattr(user.target, "is_view", False) and _is_pooled(user)):
            return True
    return False


def _is_costly(data: Any, operations: Set[str], times: int = 1) -> bool:
    elements = virtualized.V.graph.sizevars.optimization_hint(data.get_numel())
    return elements * times >= _ELEMENTS and bool(operations & data.inner_fn_opcount().used_ops)
