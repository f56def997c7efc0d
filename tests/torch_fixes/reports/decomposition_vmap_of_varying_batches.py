# `vmap` of `layer_norm`, `gather`, `conv1d` and others fixes the size of the batch
#
# Batching rules in C++ read sizes as `int64_t`, so a symbolic batch becomes that of the example.
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
rows = torch.ones(5, 4)
print("expected", "a batch that varies")
with FakeTensorMode(shape_env=ShapeEnv()) as mode, enable_python_dispatcher():
    x = mode.from_tensor(rows, symbolic_context=sizes)
    torch.func.vmap(lambda row: row.gather(0, (row > 0).long()))(x)
    batch = x.shape[0].node.maybe_as_int()
print("seen", "a batch that varies" if batch is None else f"a batch of {batch}")
