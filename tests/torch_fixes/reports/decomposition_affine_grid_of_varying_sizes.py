# `affine_grid` with a batch that varies: its derivative takes concrete sizes
#
# The schema of `affine_grid_generator_backward` has `SymInt[] size`, and its only kernel converts them to integers.
import torch
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext


class Model(torch.nn.Module):
    def forward(self, theta):
        return (torch.nn.functional.affine_grid(theta, [theta.shape[0], 1, 3, 4], align_corners=False).sum(),)


theta = torch.ones(2, 2, 3, requires_grad=True)
sizes = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.STATIC])
print("expected", "a graph of the forward and the backward")
with FakeTensorMode(shape_env=ShapeEnv()) as mode:
    fake = mode.from_tensor(theta, symbolic_context=sizes)
    graph, _ = aot_export_module(Model(), (fake,), trace_joint=True, output_loss_index=0)
print("seen", "a graph of the forward and the backward")
