# target: cpu
# threads: 2 2
# crashes: an exception leaves a parallel region
import torch


def f(x, i):
    return x.sin()[i] * 2


def args():
    return torch.rand(4, 5), torch.full((40000,), 3)


def other():
    return torch.rand(4, 5), torch.full((40000,), 4)
