# Inductor: a sum in int8 adds too much
#
# The reduction includes the lanes of a vector that hold no number; they hold what was computed of zeros.
import torch


def f(x):
    return (x + 2).sum(dtype=torch.int8)


x = torch.zeros(3, 4, dtype=torch.int8)
print("expected", f(x))
print("seen", torch.compile(f)(x))
