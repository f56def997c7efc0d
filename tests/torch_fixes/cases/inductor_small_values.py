# target: cpu
import torch


def f(x):
    of_rows = torch.expm1(x[:8])[:, None] * x.view(8, 8)
    return torch.expm1(x) / x, torch.atanh(x) / x, torch.acosh(1 / x), torch.expm1(x.double()) / x, of_rows


def args():
    return (torch.logspace(-30, -0.5, 64),)
