# method: train
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
    return Doubled.apply(y).sin() + y


def args():
    return (torch.rand(4, requires_grad=True),)
