import torch


def f(x):
    y = x * 2
    return y, *torch.unsafe_split(y, 6)


def args():
    return (torch.rand(6),)
