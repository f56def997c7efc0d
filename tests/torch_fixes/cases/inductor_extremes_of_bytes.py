# target: cpu
import torch


def f(x):
    return x.amin()


def args():
    return (torch.arange(10, 100, dtype=torch.int8),)
