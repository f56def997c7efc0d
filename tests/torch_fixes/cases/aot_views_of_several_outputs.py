# method: train
import torch


def f(x):
    return (x * 2).chunk(2)


def args():
    return (torch.rand(4, requires_grad=True),)


def after(results):
    return results[0].add_(1)
