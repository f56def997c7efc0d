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


def args():
    return (torch.rand(3),)
