"""Types and names of torch that the compiler uses as they are. Most are private in torch."""

from __future__ import annotations

import torch
from torch._functorch._aot_autograd import descriptors as desc
from torch._functorch._aot_autograd.schemas import MutationType, OutputType, ViewAndMutationMeta
from torch._higher_order_ops.effects import with_effects
from torch._prims_common import is_contiguous_for_memory_format_or_false
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._sympy.numbers import int_oo

__all__ = [
    "HALVES",
    "FakeTensorMode",
    "MutationType",
    "OutputType",
    "ShapeEnv",
    "StorageWeakRef",
    "ViewAndMutationMeta",
    "desc",
    "in_format",
    "int_oo",
    "statically_known_true",
    "with_effects",
]

HALVES = (torch.bfloat16, torch.float16)
"""Element types of half precision."""


def in_format(tensor: torch.Tensor, memory_format: torch.memory_format) -> bool:
    """Whether the elements are laid out so. False if sizes that depend on data decide it."""
    found: bool = is_contiguous_for_memory_format_or_false(tensor, memory_format=memory_format)
    return found
