import torch
import torch.nn.functional as F


def f(x):
    return F.one_hot(x.t(), 5)


def args():
    return (torch.tensor([[0, 1, 2], [3, 4, 0]]),)
