# Inductor: `abs` of an int8 is computed as an int of C++
#
# torch 2.14 fixed it for unsigned types only.
import torch


def f(x):
    return x.abs().int()


x = torch.tensor(-128, dtype=torch.int8)
print("expected", f(x))
print("seen", torch.compile(f)(x))
