"""torch's own functions for common operators, which take a microsecond less than a call of the operator.

Each parses its arguments in C and refuses None for a tensor. Positions alone are the operator's: the names differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "aten.add.Tensor": torch.add,
    "aten.addmm.default": torch.addmm,
    "aten.bmm.default": torch.bmm,
    "aten.clone.default": torch.clone,
    "aten.detach.default": torch.Tensor.detach,
    "aten.div.Tensor": torch.div,
    "aten.mm.default": torch.mm,
    "aten.mul.Tensor": torch.mul,
    "aten.permute.default": torch.permute,
    "aten.relu.default": torch.relu,
    "aten.sigmoid.default": torch.sigmoid,
    "aten.sub.Tensor": torch.sub,
    "aten.sum.dim_IntList": torch.sum,
    "aten.t.default": torch.t,
    "aten.tanh.default": torch.tanh,
    "aten.transpose.int": torch.transpose,
    "aten.unsqueeze.default": torch.unsqueeze,
    "aten.view.default": torch.Tensor.view,
    "aten.where.self": torch.where,
}
"""None of these operators has a rule for untrusted bundles."""
