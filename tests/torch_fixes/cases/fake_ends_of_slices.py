# dynamic: 0
import torch


def f(x):
    return x[:2].roll(1, 0)


def args():
    return (torch.linspace(0, 1, 20).view(4, 5),)


def other():
    return (torch.linspace(0, 1, 15).view(3, 5),)
