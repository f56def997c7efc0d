# target: cpu
# message: index 100 is out of bounds
import torch


def f(x, index):
    return x.scatter_reduce(0, index, x[:2] * 2, "mean")


def args():
    return torch.rand(8), torch.tensor([0, 1])


def other():
    return torch.rand(8), torch.tensor([0, 100])
