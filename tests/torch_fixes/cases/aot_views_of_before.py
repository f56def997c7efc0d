# method: train
# refused: yes
import torch


def f(x):
    y = x * 1
    row = y[0]
    y.t_()
    row.mul_(2)
    return y


def args():
    return (torch.rand(3, 3, requires_grad=True),)
