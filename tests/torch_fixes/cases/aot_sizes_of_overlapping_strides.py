# method: train
# dynamic: 0
import torch


def f(x):
    return x.as_strided((x.shape[0], 6, 3), (8, 1, 1)) * 2


def args():
    return (torch.rand(5, 8, requires_grad=True),)


def other():
    return (torch.rand(7, 8, requires_grad=True),)
