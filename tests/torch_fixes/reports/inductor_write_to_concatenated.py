# Inductor: a write to a tensor that was concatenated before changes the concatenation
import torch


def f(x):
    y = x.sin()
    z = torch.cat([y, x.cumsum(0)])
    y.diagonal().mul_(2)
    return z, y * 2


x = torch.ones(2, 2)
print("expected", f(x))
print("seen", torch.compile(f)(x))
