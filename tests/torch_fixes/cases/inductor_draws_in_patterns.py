# target: cpu
# rng: eager
import torch


def f(x, y):
    order = torch.randperm(x.shape[0])
    noise = torch.rand(3)
    index = order[: y.shape[0]]
    return x.index_add(0, index, y), index, noise


def args():
    return torch.zeros(4, 8), torch.ones(2, 8)
