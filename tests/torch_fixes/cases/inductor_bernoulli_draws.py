# target: cpu
# rng: eager
import torch


def f(x):
    return torch.bernoulli(x)


def args():
    return (torch.full((33,), 0.5, dtype=torch.float64),)
