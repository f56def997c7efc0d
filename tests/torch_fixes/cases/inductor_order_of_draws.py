# target: cpu
# rng: eager
import torch


def f(x):
    torch.bernoulli(x, 0.4)
    first = torch.empty_like(x).bernoulli_(0.3)
    second = torch.rand(33)
    torch.bernoulli(x, 0.6)
    return torch.rand(33) * second, first


def args():
    return (torch.rand(33),)
