import torch
import torch.nn.functional as F


def f(x):
    y = F.max_pool1d(x, 2)
    return y, y[0]


def args():
    return (torch.rand(2, 3, 8),)
