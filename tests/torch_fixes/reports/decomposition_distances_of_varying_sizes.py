# `cdist` with a number of rows that varies: its algorithm for up to 25 rows is traced, with a guard
#
# `at::native::cdist` compares the numbers of rows with 25 above autograd. Its kernel makes the same choice at run time.
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
points = torch.ones(5, 3)
print("expected", "no guard")
with FakeTensorMode(shape_env=ShapeEnv()) as mode:
    x = mode.from_tensor(points, symbolic_context=sizes)
    torch.cdist(x, x)
    most = mode.shape_env.bound_sympy(x.shape[0].node.expr).upper
print("seen", f"a guard: at most {most} rows" if most == 25 else "no guard")
