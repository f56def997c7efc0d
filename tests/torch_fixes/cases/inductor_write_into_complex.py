# target: cpu
# method: train
import torch


def f(a):
    return torch.linalg.qr(a)[0] @ torch.linalg.qr(a)[1]


def args():
    return (torch.randn(3, 3, dtype=torch.complex128, requires_grad=True),)
