# method: train
# rng: eager
import torch


def f(x):
    return (torch.poisson(x.detach() * 50) - torch.poisson(x.detach() * 50)) * x.sin()


def args():
    return (torch.ones(20, requires_grad=True),)
