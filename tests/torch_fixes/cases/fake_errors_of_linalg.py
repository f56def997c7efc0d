import torch


def f(x):
    return torch.linalg.cholesky(x) + 1


def args():
    return (torch.tensor([[1.0, 2.0], [2.0, 1.0]]),)
