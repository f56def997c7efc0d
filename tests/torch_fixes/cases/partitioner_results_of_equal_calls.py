# method: train
import torch


def f(x):
    one, other = x.sort(), x.sort()
    return one.values, other.values, x.max(0).values, x.max(0).values


def args():
    return (torch.rand(4, 5, requires_grad=True),)
