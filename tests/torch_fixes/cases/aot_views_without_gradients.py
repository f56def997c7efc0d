# method: train
import torch


def f(x):
    y = x * 2
    with torch.no_grad():
        return y, y[1:]


def args():
    return (torch.rand(4, requires_grad=True),)
