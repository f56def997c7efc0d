# Dynamo: a view of a tensor that is written to does not require a gradient, so a backward is left out
#
# Dynamo keeps `requires_grad`, sizes and strides of a tensor as they were when it first appeared.
# `y.add_(x)` changes `requires_grad` of `y`, and of views of it. The autograd.Function is then
# traced without its backward, and the gradient is that of `round`: zero. Up to torch 2.13 `y.t_()`
# is such a write, too: `y.shape` is that of before (pytorch#185888).
import torch


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def f(x):
    y = torch.zeros(3)
    part = y[:2]
    y.add_(x)
    return StraightThrough.apply(part)


x = torch.rand(3, requires_grad=True)
for name, model in (("expected", f), ("seen", torch.compile(f, backend="eager", fullgraph=True))):
    print(name, torch.autograd.grad(model(x).sum(), x)[0])
