# target: cpu
import torch


def f(x, y):
    return x.conj() - y


def args():
    return torch.rand(3, 4, dtype=torch.complex128), torch.rand(3, 4, dtype=torch.complex128)
