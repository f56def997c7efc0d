# Fake tensors: a write to a slice guards on sizes of 1, to see whether the slice overlaps itself
#
# `_debug_has_internal_overlap` first asks whether the slice is dense. The fake kernel of
# `copy_` calls it, also while Inductor compiles a graph. The guard refuses a batch of 1.
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

env = ShapeEnv(specialize_zero_one=False)
sizes = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
x = FakeTensorMode(shape_env=env).from_tensor(torch.rand(3, 5), symbolic_context=sizes)
x[:, :-1].copy_(x[:, 1:])
print("expected", [])
print("seen", [guard.expr for guard in env.guards])
