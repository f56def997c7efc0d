# Inductor: `0.5 // 0.1` is 5; eager gives 4
#
# Inductor rounds the quotient, whose nearest number is 5, then takes the floor of it.
import torch


def f(x):
    return x // 0.1


x = torch.full((3,), 0.5, dtype=torch.float64)
print("expected", f(x))
print("seen", torch.compile(f)(x))
