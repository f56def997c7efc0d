# Inductor: memory before a tensor is read, because a modular index loses its sign
#
# `ModularIndexing.eval` drops multiples of the modulus though the rest may be negative. C++ rounds
# towards zero.
import torch


def f(x):
    return (x + 1).flatten().repeat_interleave(2).flip(0)


compiled = torch.compile(f, dynamic=True)
x = torch.arange(10.0).view(2, 5)
print("expected", f(x))
print("seen", compiled(x))
