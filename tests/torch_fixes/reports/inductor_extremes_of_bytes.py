# Inductor: the least of positive int8 numbers is 0
#
# The reduction includes the lanes of a vector that hold no number.
import torch


def f(x):
    return x.amin()


x = torch.arange(10, 100, dtype=torch.int8)
print("expected", f(x))
print("seen", torch.compile(f)(x))
