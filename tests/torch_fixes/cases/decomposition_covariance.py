import torch


def f(x, weights):
    return torch.cov(x, fweights=weights)


def args():
    return torch.rand(2, 4, dtype=torch.float64), torch.tensor([1, 2, 1, 3])
