# method: train
import torch
import torch.nn.functional as F


def f(x):
    return F.interpolate(x, scale_factor=1.3)


def args():
    return (torch.arange(9.0).view(1, 1, 3, 3).requires_grad_(),)
