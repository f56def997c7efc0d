# Dynamo: the gradient of an autograd.Function that marks its argument as dirty is left out
#
# The function returns the tensor that it writes to. Dynamo traces its result as another tensor, so
# a later use of the argument has the gradient of before the write. torch 2.13 refuses such a
# function, or traces it.
import torch


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5


def f(x):
    y = x * 2
    return Doubled.apply(y) + y


def gradient(f):
    x = torch.ones(2, requires_grad=True)
    f(x).sum().backward()
    return x.grad


print("expected", gradient(f))
print("seen", gradient(torch.compile(f, backend="eager", fullgraph=True)))
