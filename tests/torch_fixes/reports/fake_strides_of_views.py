# Fake tensors: `view` guards on whether a size is 1, though the strides are the same either way
#
# A graph with such a guard refuses a batch of 1, also where sizes of 1 are not specialized.
# `_compute_stride(..., size_oblivious=True)` finds the same strides, and needs no guard.
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

env = ShapeEnv(specialize_zero_one=False)
sizes = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.DYNAMIC, DimDynamic.STATIC])
x = FakeTensorMode(shape_env=env).from_tensor(torch.rand(2, 6, 48), symbolic_context=sizes)
x.view(x.shape[0], x.shape[1], 3, 16)
print("expected", [])
print("seen", [guard.expr for guard in env.guards])
