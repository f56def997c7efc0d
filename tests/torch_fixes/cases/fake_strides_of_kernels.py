# method: train
import torch


def f(x):
    return (2 ** x.t()).as_strided((5,), (2,)) * 2


def args():
    return (torch.rand(4, 5, dtype=torch.float64).requires_grad_(),)
