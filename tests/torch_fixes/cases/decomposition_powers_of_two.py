# target: cpu
import torch


def f(half, single, count):
    return torch.ldexp(half, single), torch.ldexp(single, count)


def args():
    return torch.rand(3).half(), torch.rand(3), torch.tensor([1, 2, 3])
