# target: cpu
# threads: 1 8
import torch


def f(x):
    total = x.sum()
    return x + total, total / 2


def args():
    return (torch.ones(1 << 16),)
