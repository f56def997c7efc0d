# method: train
import torch


def f(x):
    return (x * 2).conj()


def args():
    return (torch.rand(3, dtype=torch.complex64, requires_grad=True),)
