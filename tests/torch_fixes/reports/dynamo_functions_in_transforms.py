# Dynamo: torch.func.jvp of an autograd.Function leaves out its jvp
#
# Dynamo traces the operators of `forward`, because no argument requires a gradient there, and
# functorch differentiates those. `torch.func.grad` leaves out the backward up to torch 2.14
# (pytorch#193279). The gradient of `torch.func.vmap(f)` is wrong in torch 2.15, too.
import torch


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.round(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def jvp(ctx, tangent):
        return tangent


def f(x):
    return torch.func.jvp(StraightThrough.apply, (x,), (torch.ones_like(x),))[1]


x = torch.tensor([0.2, 0.7])
print("expected", f(x))
print("seen", torch.compile(f, backend="eager", fullgraph=True)(x))
