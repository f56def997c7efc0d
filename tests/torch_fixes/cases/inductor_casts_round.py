# target: cpu
import torch


def f(x):
    return x.bfloat16().float()


def args():
    return (torch.rand(33),)
