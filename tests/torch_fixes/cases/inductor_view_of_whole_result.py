# target: cpu
# method: train
# dynamic: 0
import torch


def f(x, weight):
    y, taken = x.sin(), x[[0, 2, 1]]
    return y, y[:], y.view(-1).view(y.shape), (x * weight).exp(), taken.squeeze(), taken


def args():
    return torch.rand(5, 4), torch.rand(4, requires_grad=True)


def other():
    return torch.rand(7, 4), torch.rand(4, requires_grad=True)
