# target: cpu
# method: train
import torch


def f(x):
    return torch.fft.rfft(x).abs()


def args():
    return (torch.rand(8, requires_grad=True),)
