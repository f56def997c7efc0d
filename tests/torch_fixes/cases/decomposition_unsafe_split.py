# method: train
# check: full
import torch


def f(x):
    return x.unsafe_split(9)


def args():
    return (torch.rand(4, 3, requires_grad=True) * 1,)
