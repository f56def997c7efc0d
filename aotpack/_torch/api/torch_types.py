"""Types and names of torch that the compiler uses as they are. Most are private in torch."""

from __future__ import annotations

import torch
from torch._functorch._aot_autograd import descriptors as desc
from torch._functorch._aot_autograd.schemas import MutationType, OutputType, ViewAndMutationMeta
from torch._higher_order_ops.effects import with_effects
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
    "int_oo",
    "statically_known_true",
    "with_effects",
]

HALVES = (torch.bfloat16, torch.float16)
"""Element types of half precision."""
