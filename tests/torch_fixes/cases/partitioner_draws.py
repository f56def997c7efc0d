# method: train
# rng: eager
import torch


def f(x):
    return x * (torch.empty_like(x).exponential_() - torch.empty_like(x).exponential_())


def args():
    return (torch.rand(4, 5, requires_grad=True),)
