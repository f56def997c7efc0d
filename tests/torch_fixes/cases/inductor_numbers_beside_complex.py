# target: cpu
import torch


def f(x):
    return x.sum() * 3.5


def args():
    return (torch.rand(3, dtype=torch.complex64),)
