# method: train
import torch


def f(x):
    return x.prod() + x.prod(1)


def args():
    factors = [[1e200, 1e200, 1e-200, 1e-200], [float("inf"), 2.0, 3.0, 4.0], [float("nan"), 1.0, 2.0, 3.0]]
    return (torch.tensor(factors, dtype=torch.float64, requires_grad=True),)
