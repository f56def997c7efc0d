# method: train
# dynamic: 0
import torch


def f(x):
    return x.as_strided((x.shape[0] - 1, 2), (1, 1)) * 2


def args():
    return (torch.rand(5, requires_grad=True),)


def other():
    return (torch.rand(7, requires_grad=True),)
