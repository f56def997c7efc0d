# rng: eager
import torch
import torch.nn.functional as F


def f(x):
    return F.rrelu(x.t(), training=True)


def args():
    return (torch.linspace(-1, 1, 6).view(2, 3),)
