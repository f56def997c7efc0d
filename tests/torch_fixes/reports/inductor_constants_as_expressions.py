# Inductor: a cast of arange to bool or int8 is dropped
#
# Index propagation computes with constants and indices as sympy expressions, which keep their value in a cast.
import torch


def f(x):
    return torch.arange(5).bool().long() + x


x = torch.zeros(5, dtype=torch.int64)
print("expected", f(x))
print("seen", torch.compile(f)(x))
