import torch


def f(x):
    x.as_strided_((2,), (1,), 3)
    return x * 2


def args():
    return (torch.arange(6.0)[:2],)
