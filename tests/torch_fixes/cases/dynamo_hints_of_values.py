import torch


def f(x, count):
    n = count.item()
    torch._check(n >= 0)
    torch._check(n <= 4)
    return x[:n] * 2


def args():
    return torch.arange(4.0), torch.tensor(2)


def other():
    return torch.arange(4.0), torch.tensor(3)
