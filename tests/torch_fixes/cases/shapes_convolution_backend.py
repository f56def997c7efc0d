# method: train
# dynamic: 0
import torch
import torch.nn.functional as F

weight = torch.ones(2, 3, 3, 3)


def f(x):
    return F.conv2d(x, weight)


def args():
    return (torch.rand(4, 3, 6, 6, requires_grad=True),)


def other():
    return (torch.rand(20, 3, 6, 6, requires_grad=True),)
