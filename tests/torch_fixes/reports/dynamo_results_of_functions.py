# Dynamo's capture for export: an autograd.Function that returns its argument gives no new tensor
#
# Eager returns another tensor, a view of the argument. Without gradients, Dynamo traces `forward`
# alone.
import torch
from torch._dynamo.functional_export import dynamo_graph_capture_for_export


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Model(torch.nn.Module):
    def forward(self, x):
        return Same.apply(x)


x = torch.rand(3)
with torch.no_grad():
    print("expected", Model()(x) is x)
    print("seen", dynamo_graph_capture_for_export(Model())(x)(x) is x)
