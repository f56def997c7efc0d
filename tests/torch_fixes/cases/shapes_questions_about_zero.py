# dynamic: 0
# refused later: a size of 0
import torch


def f(x):
    return x.sum() + (1 if x.shape[0] > 0 else 2)


def args():
    return (torch.ones(3),)


def other():
    return (torch.ones(0),)
