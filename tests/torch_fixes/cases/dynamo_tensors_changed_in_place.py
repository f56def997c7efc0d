# method: train
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


def args():
    return (torch.rand(3, requires_grad=True),)
