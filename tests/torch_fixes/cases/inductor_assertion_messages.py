# target: cpu
import torch


def f(x, count):
    n = count.item()
    torch._check(n > 0, lambda: 'the "count" is not positive')
    return x * n


def args():
    return torch.rand(3), torch.tensor(2)
