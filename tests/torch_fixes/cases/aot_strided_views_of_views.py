import torch


def f(x):
    y = x * 1
    y[:2].as_strided((2,), (2,)).mul_(2)
    return y


def args():
    return (torch.arange(4.0),)
