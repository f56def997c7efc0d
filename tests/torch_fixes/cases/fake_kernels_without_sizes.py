import torch


def f(a, b):
    return torch.linalg.lstsq(a, b).solution


def args():
    return torch.rand(5, 3, dtype=torch.float64), torch.rand(5, 2, dtype=torch.float64)
