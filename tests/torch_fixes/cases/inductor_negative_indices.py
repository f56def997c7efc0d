# target: cpu
# dynamic: 0 1
# crashes: memory before a tensor is read
import torch


def f(x):
    return (x + 1).flatten().repeat_interleave(2).flip(0)


def args():
    return (torch.rand(3, 3),)


def other():
    return (torch.rand(2, 5),)
