# target: cpu
# method: train
import torch


def f(x):
    return torch.view_as_real(x * torch.full((3,), 1 + 2j))


def args():
    return (torch.rand(3, requires_grad=True),)
