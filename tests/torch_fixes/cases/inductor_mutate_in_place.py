# target: cpu
import torch


def f(x):
    z = x @ x.t()
    y = z[:2] * 3
    z[z > 0] = 1
    return y, z


def args():
    torch.manual_seed(0)
    return (torch.randn(6, 8),)
