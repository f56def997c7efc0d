# Fake tensors: the size of `x[:2]` is unknown if the sliced dimension is dynamic
#
# The slice may end before its bound, so the size is a new symbol that depends on data. Operators that
# ask for it fail.
import torch
from functorch.compile import aot_function, nop


def f(x):
    return x[:2].roll(1, 0)


x = torch.arange(4.0).view(4, 1)
print("expected", f(x))
print("seen", aot_function(f, nop, nop, dynamic=True)(x))
